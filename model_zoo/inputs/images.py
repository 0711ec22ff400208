"""Images, videos, patches, and boxes on a page."""

from __future__ import annotations

import torch

from model_zoo.inputs.call import Call
from model_zoo.inputs.draw import BATCH, LENGTH, image_batch


def pixel_values(call: Call) -> torch.Tensor:
    """Images in the layout of the family."""
    facts, draw = call.facts.vision, call.draw
    (height, width), patch, channels = facts.image, facts.patch, facts.channels
    layout = call.layouts.get("pixel_values", "image")
    if layout == "frames":
        frames = facts.number("num_frames", "frames_per_clip", default=4)
        return draw.normal(BATCH, frames, channels, height, width)
    if layout == "pair":
        return draw.normal(BATCH, 2, channels, height, width)
    if layout == "tiles":
        return draw.normal(BATCH, tiles(call), channels, height, width)
    if layout == "media":
        return draw.normal(BATCH, 1, facts.number("max_num_tiles", default=1), channels, height, width)
    if layout == "patch-images":
        return draw.normal(BATCH * 16, channels, patch, patch)
    if layout in ("grid", "patches"):
        temporal = facts.number("temporal_patch_size", default=1)
        row = channels * temporal * patch * patch
        if layout == "grid":
            return draw.normal(int(grid_thw(call).prod(-1).sum()), row)
        return draw.normal(BATCH, 16, row)
    return image_batch((height, width), draw.generator, channels=channels)


def tiles(call: Call) -> int:
    """Crops per image: the whole and its parts in the smallest of the resolutions that a config knows."""
    pinpoints = call.facts.find("image_grid_pinpoints")
    height, width = call.facts.vision.image
    return 1 + min(h * w // (height * width) for h, w in pinpoints) if pinpoints else 1


def grid_thw(call: Call) -> torch.Tensor:
    """Two images of 1 x 4 x 4 patches (time, height, width)."""
    merge = call.facts.vision.number("spatial_merge_size", "merge_size", default=2)
    side = merge * max(1, 4 // merge)
    return torch.tensor([[1, side, side]] * BATCH)


def grid_positions(call: Call) -> torch.Tensor:
    """(x, y) of 4 x 4 patches: (batch, 16, 2)."""
    return (
        torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
        .reshape(1, 16, 2)
        .repeat(BATCH, 1, 1)
    )


def hidden_states(call: Call) -> torch.Tensor:
    """Rows of pixels where a grid goes with them, else what a layer takes."""
    if "grid_thw" in call.made:
        facts = call.facts
        row = facts.channels * facts.number("temporal_patch_size", default=1) * facts.patch**2
        return call.draw.normal(int(call.made["grid_thw"].prod(-1).sum()), row)
    return call.draw.normal(BATCH, LENGTH, call.facts.number("hidden_size", "d_model", default=64))


def boxes(call: Call) -> torch.Tensor:
    """Boxes (batch, length, 4) in integer layout coordinates, with x0 <= x1 and y0 <= y1."""
    corners = call.draw.integers(min(1000, call.facts.number("max_2d_position_embeddings", default=1000)) // 2 - 1,
                                 BATCH, call.length, 2)  # fmt: skip
    return torch.cat([corners, corners + call.draw.integers(40, BATCH, call.length, 2)], dim=-1)
