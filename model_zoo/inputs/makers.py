"""One maker per name of a forward argument: the conventions of transformers, argument by argument."""

from __future__ import annotations

from typing import Any

import torch

from model_zoo.inputs.call import Call, Maker
from model_zoo.inputs.draw import BATCH, LENGTH, image_batch
from model_zoo.inputs.images import boxes, grid_positions, grid_thw, hidden_states, pixel_values
from model_zoo.inputs.series import future_values, past_values
from model_zoo.inputs.sounds import heard_mask, input_features, input_values
from model_zoo.inputs.texts import codes, decoder_codes


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
    "image_embeds_position_mask": lambda call: (
        (torch.arange(call.length) < call.facts.number("latent_query_num", default=1)).long().repeat(BATCH, 1)
    ),
    "cross_attention_mask": lambda call: torch.ones(
        BATCH, call.length, 1, call.facts.vision.number("max_num_tiles", default=1), dtype=torch.long
    ),
    "input_values": lambda call: None if call.facts.config.model_type == "csm" else input_values(call),
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
    ),
    "inputs_embeds": _features("hidden_size", "d_model"),
    "hidden_states": hidden_states,
    "input_features_mask": heard_mask,
    "padding_mask": heard_mask,
    "feature_attention_mask": heard_mask,
    "pixel_attention_mask": lambda call: torch.ones(
        call.made["pixel_values"].shape[:2], dtype=torch.bool if call.layouts["pixel_values"] == "tiles" else torch.long
    ),
    "image_sizes": lambda call: torch.tensor([list(call.facts.vision.image)] * BATCH),
    "target_sizes": lambda call: torch.tensor([[4, 4]] * BATCH),
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
    "latents": lambda call: call.draw.normal(BATCH, call.facts.number("hidden_size", default=64), 8),
}
"""Arguments that are given only where a forward insists on them."""
