"""What the names of a config's fields do not tell: reduced values per model type, each with its reason."""

from __future__ import annotations

from typing import Any

_SERIES: dict[str, Any] = {"prediction_length": 8, "context_length": 16}  # None by default: the user's to choose

OVERRIDES: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "blip-2": {"image_token_index": 500},  # None by default
    "bros": {"hidden_size": 128},  # a quarter of it, in eight coordinates, must be even
    "deepseek_v2": {"num_experts_per_tok": 2},  # None by default
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2},  # None by default
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},  # None by default
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "instructblip": {"image_token_index": 500},  # None by default
    "instructblipvideo": {"video_token_index": 500},  # None by default
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},  # None by default
    "timm_backbone": {"backbone": "test_resnet"},  # timm's smallest with the five levels of a ResNet
}
"""Model type -> fields and their reduced values; applied to every config of that type in a tree."""

STOCK: dict[str, tuple[str, ...]] = {}
"""Model type -> fields that keep their stock value."""

LINKS: dict[str, dict[str, str]] = {
    "qwen2_vl": {"vision_config.hidden_size": "text_config.hidden_size"},
}
"""Model type -> field -> the field it must equal where the defaults of the release do not agree."""

SECTIONS: dict[str, list[int]] = {
    "glm4v_moe_text": [8, 12, 12],
    "glm4v_text": [8, 12, 12],
    "glm_image_text": [8, 12, 12],
    "glm_ocr_text": [8, 12, 12],
    "qwen2_5_vl_text": [16, 24, 24],
    "qwen2_vl_text": [16, 24, 24],
}
"""Model type -> the rotary sections that its code falls back to, to be made smaller with the head."""
