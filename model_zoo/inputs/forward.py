"""Finds arguments that a model's forward accepts: makes them by convention, and runs the model to see."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from model_zoo.inputs.call import Call
from model_zoo.inputs.draw import Draw
from model_zoo.inputs.facts import Facts
from model_zoo.inputs.layouts import LAYOUTS, layouts
from model_zoo.inputs.makers import CORE, REQUIRED
from model_zoo.inputs.placeholders import place, required_by_towers, rope_positions, token_types
from model_zoo.spec import InputsUnknown

ATTEMPTS = 12
"""Combinations of layouts that are tried before giving up."""


TEXT = {"input_ids", "attention_mask", "decoder_input_ids"}
"""What a model of several modalities is given when its other towers accept nothing."""


@dataclass(frozen=True)
class Inputs:
    """Keyword arguments for a forward, and what kind of thing they are."""

    kwargs: dict[str, Any]
    modality: str


def inputs_for(module: torch.nn.Module, config: Any, seed: int) -> Inputs:
    """Arguments that `module(**kwargs)` accepts, drawn from `seed`; `InputsUnknown` with the last error if none."""
    accepted = accepted_by(module)
    facts = Facts(config)
    first: Exception | None = None
    for choice in _choices(facts, accepted):
        call = Call(module, facts, Draw.seeded(seed), choice)
        try:
            _make(call, accepted)
            with torch.no_grad():
                module(**call.made)
        except Exception as error:
            first = first or error
            continue
        return Inputs(call.made, modality_of(call.made))
    reason = " ".join(str(first).split())[:200] or repr(first)
    raise InputsUnknown(
        f"no inputs found that {type(module).__name__}.forward accepts: {type(first).__name__}: {reason}"
    )


def accepted_by(module: torch.nn.Module) -> dict[str, bool]:
    """Names of the arguments of a forward, and whether each must be given."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(module.forward).parameters
    return {n: p.default is inspect.Parameter.empty for n, p in parameters.items() if p.kind not in kinds}


def modality_of(kwargs: Mapping[str, Any]) -> str:
    """The modality of a set of arguments, one of `model_zoo.spec.MODALITIES`."""
    text = bool({"input_ids", "inputs_embeds"} & set(kwargs))
    seen = {"pixel_values", "pixel_values_videos", "flattened_patches", "visual_embeds", "image"} & set(kwargs)
    heard = {"input_features", "input_values", "audio_values"} & set(kwargs)
    if (text and (seen or heard)) or (seen and heard) or "bbox" in kwargs:
        return "multimodal"
    if "pixel_values_videos" in seen or any(getattr(kwargs[n], "ndim", 0) == 5 for n in seen):
        return "video"
    if seen:
        return "image"
    if heard:
        return "audio"
    if {"past_values", "time_series"} & set(kwargs):
        return "time-series"
    if "decoder_input_ids" in kwargs:
        return "text-to-text"
    return "text" if text else "custom"


def _choices(facts: Facts, accepted: Mapping[str, bool]) -> list[dict[str, str]]:
    order = layouts(facts, accepted)
    choices = [
        dict(zip(order, combination, strict=True))
        for combination in itertools.islice(itertools.product(*order.values()), ATTEMPTS)
    ]
    choices.append({**choices[0], "masks": "all"})
    if order and "input_ids" in accepted and not any(accepted[n] for n in order):
        choices.append({**choices[0], "only": "text"})
    return choices


def _make(call: Call, accepted: Mapping[str, bool]) -> None:
    text_only = call.layouts.get("only") == "text"
    for name, maker in CORE.items():
        if name in accepted and not (text_only and name not in TEXT):
            value = maker(call)
            if value is not None:
                call.made[name] = value
    towers = set() if text_only else required_by_towers(call.module)
    if "spatial_shapes" in call.made:
        towers.add("pixel_attention_mask")
    if call.layouts.get("masks") == "all":
        towers |= {n for n in REQUIRED if n.endswith("_mask") or n == "encoder_hidden_states"}
    for name, needed in accepted.items():
        if (needed or name in towers) and name not in call.made:
            if name not in REQUIRED:
                raise InputsUnknown(f"no convention for the argument {name!r}")
            value = REQUIRED[name](call)
            if value is not None:
                call.made[name] = value
    if "input_ids" in call.made and set(LAYOUTS) & set(call.made):
        place(call)
        if "mm_token_type_ids" in accepted:
            call.made["mm_token_type_ids"] = token_types(call)
        if "position_ids" in accepted and (positions := rope_positions(call)) is not None:
            call.made["position_ids"] = positions
