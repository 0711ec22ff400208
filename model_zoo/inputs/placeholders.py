"""Text with placeholders: as many image, video or audio tokens in `input_ids` as the towers give features."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils import _pytree as pytree

from model_zoo.inputs.call import Call
from model_zoo.inputs.draw import BATCH

KINDS = (
    ("image", "pixel_values", ("image_token_id", "image_token_index", "media_placeholder_token_id")),
    ("audio", "input_features", ("audio_token_id", "audio_token_index")),
    ("audio", "input_values", ("audio_token_id", "audio_token_index")),
    ("video", "pixel_values_videos", ("video_token_id", "video_token_index")),
)


def place(call: Call) -> None:
    """Writes the placeholders into `call.made["input_ids"]`; nothing where the model has none."""
    ids = call.made["input_ids"]
    for kind, argument, names in KINDS:
        token = call.facts.find(*names)
        if argument in call.made and isinstance(token, int):
            count = _features(call, kind)
            if count:
                run = torch.full((BATCH, count // BATCH), token, dtype=ids.dtype)
                ids = torch.cat([ids[:, :4], run, ids[:, 4:]], dim=1)
    call.made["input_ids"] = ids
    if "attention_mask" in call.made:
        call.made["attention_mask"] = torch.ones_like(ids)


def owner(module: torch.nn.Module, method: str) -> Any:
    """The module itself or its base model, whichever has the method; None if neither has."""
    for candidate in (module, getattr(module, "base_model", None), getattr(module, "model", None)):
        if callable(getattr(candidate, method, None)):
            return candidate
    return None


def required_by_towers(module: Any) -> set[str]:
    """Arguments that the image or audio tower insists on although the forward does not."""
    found: set[str] = set()
    for method in ("get_image_features", "get_audio_features"):
        if (holder := owner(module, method)) is not None:
            parameters = inspect.signature(getattr(holder, method)).parameters.values()
            found |= {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    return found


def _features(call: Call, kind: str) -> int:
    """How many feature vectors the tower of that kind gives for what was drawn."""
    module = owner(call.module, f"get_{kind}_features")
    if module is None:
        return 0
    method = getattr(module, f"get_{kind}_features")
    parameters = inspect.signature(method).parameters
    with torch.no_grad():
        out = method(**{n: v for n, v in call.made.items() if n in parameters})
    pooled = getattr(out, "pooler_output", None)
    out = pooled if pooled is not None else getattr(out, "last_hidden_state", out)
    leaves = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    return sum(x.numel() // x.shape[-1] for x in leaves)


def token_types(call: Call) -> torch.Tensor:
    """0 for text, 1 for an image's place, 2 for a video's, 3 for audio's."""
    ids = call.made["input_ids"]
    types = torch.zeros_like(ids)
    for value, names in ((1, KINDS[0][2]), (2, KINDS[3][2]), (3, KINDS[1][2])):
        token = call.facts.find(*names)
        if isinstance(token, int):
            types[ids == token] = value
    return types


def rope_positions(call: Call) -> torch.Tensor | None:
    """Multi-axis position ids as the model itself would count them; None where it does not."""
    module = owner(call.module, "get_rope_index")
    if module is None:
        return None
    parameters = inspect.signature(module.get_rope_index).parameters
    positions = module.get_rope_index(**{n: v for n, v in call.made.items() if n in parameters})
    positions = positions[0] if isinstance(positions, tuple) else positions
    return positions if isinstance(positions, torch.Tensor) else None
