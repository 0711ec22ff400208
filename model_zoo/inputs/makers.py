"""One maker per name of a forward argument: the conventions of transformers, argument by argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from model_zoo.inputs.draw import BATCH, LENGTH, Draw, image_batch, token_batch
from model_zoo.inputs.facts import Facts


@dataclass
class Call:
    """A call in the making: what is known of the model, and the arguments made so far."""

    module: Any
    facts: Facts
    draw: Draw
    layouts: Mapping[str, str]
    """Argument -> which of its layouts to use."""
    made: dict[str, Any] = field(default_factory=dict)

    def tokens(self, length: int = LENGTH, vocabulary: int | None = None) -> torch.Tensor:
        """Token ids (batch, length) without special ids."""
        size = vocabulary or self.facts.vocabulary
        size = min(size, self.embeddings or size)
        return token_batch(size, self.draw.generator, length=length, avoid=self.facts.special)

    @property
    def embeddings(self) -> int | None:
        """Rows of the input embedding, if the model says which it is, else of the first in it."""
        try:
            embedding = self.module.get_input_embeddings()
        except (NotImplementedError, AttributeError):
            embedding = next((m for m in self.module.modules() if isinstance(m, torch.nn.Embedding)), None)
        return getattr(embedding, "num_embeddings", None)

    @property
    def length(self) -> int:
        """Length of the text."""
        return int(self.made["input_ids"].shape[1]) if "input_ids" in self.made else LENGTH


Maker = Callable[[Call], Any]

LAYOUTS: dict[str, tuple[str, ...]] = {
    "pixel_values": ("image", "frames", "grid", "patches", "tiles", "patch-images", "media"),
    "input_values": ("wave", "channel", "spectrogram"),
    "input_features": ("mel-time", "time-mel", "channel-time-mel"),
}
"""Arguments whose shape differs between families, and the shapes, the likeliest first."""


def layouts(facts: Facts, accepted: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
    """The layouts to try per argument, the one that the config speaks for first."""
    order = {n: LAYOUTS[n] for n in LAYOUTS if n in accepted}

    def first(name: str, layout: str) -> None:
        order[name] = (layout, *(x for x in order[name] if x != layout))

    if "pixel_values" in order:
        if "image_grid_thw" in accepted or "grid_thw" in accepted:
            first("pixel_values", "grid")
        elif "aspect_ratio_ids" in accepted:
            first("pixel_values", "media")
        elif "image_attention_mask" in accepted:
            first("pixel_values", "tiles")
        elif "spatial_shapes" in accepted or "pixel_position_ids" in accepted or "image_position_ids" in accepted:
            first("pixel_values", "patches")
        elif "input_ids" in accepted and (
            facts.find("image_grid_pinpoints") is not None or "pixel_attention_mask" in accepted
        ):
            first("pixel_values", "tiles")
        elif facts.find("num_frames", "tubelet_size") is not None and "input_ids" not in accepted:
            first("pixel_values", "frames")
    if "input_values" in order:
        if facts.find("num_mel_bins") is not None and facts.find("conv_stride") is None:
            first("input_values", "spectrogram")
        elif facts.find("audio_channels", "upsampling_ratios", "downsampling_ratios") is not None:
            first("input_values", "channel")
    if "input_features" in order:
        if facts.find("spec_size") is not None:
            first("input_features", "channel-time-mel")
        elif facts.audio.find("max_source_positions") is None or facts.find("input_feat_per_channel") is not None:
            first("input_features", "time-mel")
    return order


def pixel_values(call: Call) -> torch.Tensor:
    """Images in the layout of the family."""
    facts, draw = call.facts.vision, call.draw
    (height, width), patch, channels = facts.image, facts.patch, facts.channels
    layout = call.layouts.get("pixel_values", "image")
    if layout == "frames":
        frames = facts.number("num_frames", "frames_per_clip", default=4)
        return draw.normal(BATCH, frames, channels, height, width)
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


def input_values(call: Call) -> torch.Tensor:
    """A waveform, with or without a channel axis, or a spectrogram (batch, time, mel)."""
    layout = call.layouts.get("input_values", "wave")
    if layout == "spectrogram":
        time = call.facts.number("max_length", default=64)
        return call.draw.normal(BATCH, time, call.facts.number("num_mel_bins", default=80))
    if layout == "channel":
        return call.draw.normal(BATCH, call.facts.number("audio_channels", default=1), 4000)
    return call.draw.normal(BATCH, 4000)


def input_features(call: Call) -> torch.Tensor:
    """Mel features: (batch, mel, time), (batch, time, mel) or (batch, 1, time, mel)."""
    facts = call.facts.audio
    mel = facts.number(
        "num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim", "input_size",
        "n_mel_bins", "input_dim", "input_feat_size", "mel_bins", default=128,
    )  # fmt: skip
    layout = call.layouts.get("input_features", "mel-time")
    if layout == "channel-time-mel":
        return call.draw.normal(BATCH, 1, 64, mel)
    if layout == "time-mel":
        return call.draw.normal(BATCH, 64, mel)
    positions = facts.number("max_source_positions", default=32)
    return call.draw.normal(BATCH, mel, 2 * positions)


def past_values(call: Call) -> torch.Tensor:
    """A time series (batch, time, channels), or (batch, time) where it is univariate."""
    facts = call.facts
    lags = facts.find("lags_sequence")
    if lags is not None:
        past = facts.number("context_length", "prediction_length", default=32) + max(lags)
        size = facts.number("input_size", default=1)
        return call.draw.normal(BATCH, past) if size == 1 else call.draw.normal(BATCH, past, size)
    return call.draw.normal(
        BATCH, facts.number("context_length", default=32), facts.number("num_input_channels", default=1)
    )


def hidden_states(call: Call) -> torch.Tensor:
    """Rows of pixels where a grid goes with them, else what a layer takes."""
    if "grid_thw" in call.made:
        facts = call.facts
        row = facts.channels * facts.number("temporal_patch_size", default=1) * facts.patch**2
        return call.draw.normal(int(call.made["grid_thw"].prod(-1).sum()), row)
    return call.draw.normal(BATCH, LENGTH, call.facts.number("hidden_size", "d_model", default=64))


def heard_mask(call: Call) -> torch.Tensor | None:
    """Ones over the time axis of what is heard."""
    if "input_features" in call.made:
        features = call.made["input_features"]
        time = features.shape[1] if call.layouts.get("input_features") == "time-mel" else features.shape[-1]
        return torch.ones(BATCH, time, dtype=torch.long)
    if "input_values" in call.made:
        return torch.ones(BATCH, call.made["input_values"].shape[-1], dtype=torch.long)
    return None


def codes(call: Call) -> torch.Tensor:
    """Token ids (batch, length), or with an axis of codebooks where the family has one."""
    kind, codebooks = call.facts.text.model_type, call.facts.number("num_codebooks", default=0)
    if kind.startswith("musicgen") and codebooks:
        return call.tokens().repeat(codebooks, 1)
    if kind.startswith("kyutai"):
        return torch.stack([call.tokens() for _ in range(codebooks + 1)], dim=-1)
    return call.tokens()


def decoder_codes(call: Call) -> torch.Tensor:
    """Ids for the decoder (batch, length), or (batch, length, channels) where it speaks in several codebooks."""
    channels = call.facts.number("num_channels", default=1) if call.facts.config.model_type == "dia" else 1
    ids = call.tokens(12)
    return ids if channels == 1 else torch.stack([call.tokens(12) for _ in range(channels)], dim=-1)


def future_values(call: Call) -> torch.Tensor:
    """What follows the past."""
    length = call.facts.number("prediction_length", default=8)
    return call.draw.normal(BATCH, length, *call.made["past_values"].shape[2:])


def grid_positions(call: Call) -> torch.Tensor:
    """(x, y) of 4 x 4 patches: (batch, 16, 2)."""
    return (
        torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
        .reshape(1, 16, 2)
        .repeat(BATCH, 1, 1)
    )


def boxes(call: Call) -> torch.Tensor:
    """Boxes (batch, length, 4) in integer layout coordinates, with x0 <= x1 and y0 <= y1."""
    corners = call.draw.integers(min(1000, call.facts.number("max_2d_position_embeddings", default=1000)) // 2 - 1,
                                 BATCH, call.length, 2)  # fmt: skip
    return torch.cat([corners, corners + call.draw.integers(40, BATCH, call.length, 2)], dim=-1)


def _ones(name: str) -> Maker:
    def make(call: Call) -> Any:
        like = call.made.get(name)
        return None if like is None else torch.ones(like.shape[:2], dtype=torch.long)

    return make


def _like_ids(value: int) -> Maker:
    return lambda call: torch.full((BATCH, call.length), value, dtype=torch.long)


def _features(*names: str, shape: tuple[int, ...] = (LENGTH,), default: int = 64) -> Maker:
    return lambda call: call.draw.normal(BATCH, *shape, call.facts.number(*names, default=default))


CORE: dict[str, Maker] = {
    "input_ids": codes,
    "attention_mask": _ones("input_ids"),
    "bbox": boxes,
    "decoder_input_ids": decoder_codes,
    "image_grid_thw": grid_thw,
    "grid_thw": grid_thw,
    "image_sizes": lambda call: (
        torch.tensor([list(call.facts.vision.image)] * BATCH) if call.layouts.get("pixel_values") == "tiles" else None
    ),
    "pixel_values": pixel_values,
    "spatial_shapes": lambda call: (
        torch.tensor([[4, 4]] * BATCH) if call.layouts.get("pixel_values") == "patches" else None
    ),
    "image_attention_mask": lambda call: (
        torch.ones(BATCH, call.length, 1, dtype=torch.long) if call.layouts.get("pixel_values") == "tiles" else None
    ),
    "cross_attention_mask": lambda call: torch.ones(
        BATCH, call.length, 1, call.facts.vision.number("max_num_tiles", default=1), dtype=torch.long
    ),
    "input_values": input_values,
    "input_features": input_features,
    "states": lambda call: call.draw.normal(BATCH, LENGTH, call.facts.number("state_dim", default=17)),
    "actions": lambda call: call.draw.normal(BATCH, LENGTH, call.facts.number("act_dim", default=4)),
    "rewards": lambda call: call.draw.normal(BATCH, LENGTH, 1),
    "returns_to_go": lambda call: call.draw.normal(BATCH, LENGTH, 1),
    "timesteps": lambda call: torch.arange(LENGTH).repeat(BATCH, 1),
    "visual_feats": lambda call: call.draw.normal(BATCH, 8, call.facts.number("visual_feat_dim", default=2048)),
    "visual_pos": lambda call: call.draw.normal(BATCH, 8, call.facts.number("visual_pos_dim", default=4)),
    "aspect_ratio_ids": lambda call: torch.ones(BATCH, 1, dtype=torch.long),
    "aspect_ratio_mask": lambda call: torch.ones(BATCH, 1, call.facts.vision.number("max_num_tiles", default=4)),
    "past_values": past_values,
    "past_observed_mask": lambda call: torch.ones_like(call.made["past_values"]),
    "past_time_features": lambda call: call.draw.normal(
        BATCH, call.made["past_values"].shape[1], call.facts.number("num_time_features", default=1)
    ),
    "future_time_features": lambda call: call.draw.normal(
        BATCH, call.facts.number("prediction_length", default=8), call.facts.number("num_time_features", default=1)
    ),
    "static_categorical_features": lambda call: (
        call.draw.integers(1, BATCH, n)
        if (n := call.facts.number("num_static_categorical_features", default=0))
        else None
    ),
    "static_real_features": lambda call: (
        call.draw.normal(BATCH, n) if (n := call.facts.number("num_static_real_features", default=0)) else None
    ),
}
"""Arguments that are always given where a forward has them, in the order in which they are made."""

REQUIRED: dict[str, Maker] = {
    "pixel_values_videos": lambda call: call.draw.normal(
        BATCH,
        call.facts.vision.number("frames_per_clip", "num_frames", default=4),
        call.facts.vision.channels,
        *call.facts.vision.image,
    ),  # fmt: skip
    "inputs_embeds": _features("hidden_size", "d_model"),
    "hidden_states": hidden_states,
    "input_features_mask": heard_mask,
    "padding_mask": heard_mask,
    "feature_attention_mask": heard_mask,
    "pixel_attention_mask": lambda call: torch.ones(
        call.made["pixel_values"].shape[:2], dtype=torch.bool if call.layouts["pixel_values"] == "tiles" else torch.long
    ),
    "image_merge_sizes": lambda call: torch.tensor([2] * BATCH),
    "merge_sizes": lambda call: torch.tensor([2] * BATCH),
    "high_res_pixel_values": lambda call: image_batch(
        call.facts.find("high_res_vision_config", default=call.facts.config).image_size, call.draw.generator
    ),
    "pixel_position_ids": lambda call: grid_positions(call),
    "image_position_ids": lambda call: grid_positions(call),
    "query_embeds": _features("hidden_size"),
    "classes_input_ids": lambda call: call.tokens(6),
    "audio_mel": lambda call: call.draw.normal(BATCH, 64, call.facts.number("input_feat_size", default=80)),
    "audio_mel_mask": lambda call: torch.zeros(BATCH, 64, dtype=torch.bool),
    "inputs": lambda call: call.draw.normal(BATCH, LENGTH, call.facts.number("d_model", default=64)),
    "past_values_padding": lambda call: torch.zeros(call.made["past_values"].shape, dtype=torch.long),
    "freq": lambda call: torch.zeros(BATCH, 1, dtype=torch.long),
    "prompt_pixel_values": lambda call: image_batch(call.facts.image, call.draw.generator),
    "prompt_masks": lambda call: image_batch(call.facts.image, call.draw.generator),
    "encoder_hidden_states": _features("encoder_hidden_size", "hidden_size"),
    "qformer_input_ids": lambda call: call.tokens(8),
    "future_values": future_values,
}
"""Arguments that are given only where a forward insists on them."""
