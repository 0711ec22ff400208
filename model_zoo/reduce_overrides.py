"""What the names of a config's fields do not tell: reduced values per model type, each with its reason."""

from __future__ import annotations

from typing import Any

_SERIES: dict[str, Any] = {"prediction_length": 8, "context_length": 16}  # None by default: the user's to choose

_GROUPS: dict[str, Any] = {"base_channels": 32}  # its GroupNorm has 32 groups

_FILTERS: dict[str, Any] = {"num_filters": 8}  # doubled by each of six stages

OVERRIDES: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "informer": {**_SERIES, "attention_type": "full"},  # the stock's draws its keys at random in every pass
    "time_series_transformer": _SERIES,
    "blip-2": {"image_token_index": 500},  # None by default
    "align": {"projection_dim": 80},  # the width of the last stage, 320, times width_coefficient
    "align_vision_model": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 640, "image_size": 64},
    "bros": {"hidden_size": 128},  # a quarter of it, in eight coordinates, must be even
    "deepseek_v2": {"num_experts_per_tok": 2},  # None by default
    "apertus1p5_vision_tokenizer": _GROUPS,
    "chameleon_vqgan": _GROUPS,
    "emu3_vqgan": _GROUPS,
    "janus_vqgan": _GROUPS,
    "cvt": {"depth": [1, 2, 3]},  # a stage's depth must exceed its index
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},  # None by default
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},  # None by default
    "helium": {"head_dim": 40},  # its output projection takes the hidden width
    "dots1": {  # None by default
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
    },
    "gemma3n_text": {"intermediate_size": 256, "num_kv_shared_layers": 0},  # the stock's is a list over its layers
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "image_size": 64},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},  # None by default
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "instructblip": {"image_token_index": 500},  # None by default
    "instructblipvideo": {"video_token_index": 500},  # None by default
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},  # None by default
    "llama4_vision_model": {"hidden_size": 48, "intermediate_size": 192, "num_attention_heads": 4},  # four to one
    "step3p5": {"sliding_window": 8},  # None by default
    "vibevoice_acoustic_tokenizer": _FILTERS,
    "vibevoice_acoustic_tokenizer_decoder": _FILTERS,
    "vibevoice_acoustic_tokenizer_encoder": _FILTERS,
    "xmod": {"default_language": "en_XX"},  # None by default
    "timm_backbone": {"backbone": "test_resnet"},  # timm's smallest with the five levels of a ResNet
}
"""Model type -> fields and their reduced values; applied to every config of that type in a tree."""

STOCK: dict[str, tuple[str, ...]] = {
    "align_vision_model": ("in_channels", "out_channels"),  # width_coefficient scales them
    "d_fine": ("encoder_in_channels",),  # of the backbone
    "deimv2": ("encoder_in_channels",),
    "efficientnet": ("in_channels", "out_channels"),
    "hgnet_v2": ("stem_channels", "stage_in_channels", "stage_mid_channels", "stage_out_channels", "hidden_sizes"),
    "hiera": ("image_size",),  # its units and strides divide this one
    "pp_doclayout_v3": ("encoder_in_channels",),
}
"""Model type -> fields that keep their stock value."""

LINKS: dict[str, dict[str, str]] = {
    "granite_speech": {"projector_config.encoder_hidden_size": "encoder_config.hidden_dim"},
    "granite_speech_plus": {"projector_config.encoder_hidden_size": "encoder_config.hidden_dim"},
    "llama4": {"vision_config.vision_output_dim": "vision_config.projector_output_dim"},
    "ovis2": {"hidden_size": "text_config.hidden_size"},
    "qwen2_vl": {"vision_config.hidden_size": "text_config.hidden_size"},
}
"""Model type -> field -> the field it must equal where the defaults of the release do not agree."""

_GLM = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
SECTIONS: dict[str, dict[str, Any]] = {
    "ernie4_5_vl_moe_text": {"mrope_section": [22, 22, 20]},
    "glm4v_moe_text": _GLM,
    "glm4v_text": _GLM,
    "glm_image_text": _GLM,
    "glm_ocr_text": _GLM,
    "hunyuan_vl_text": {"mrope_section": [16, 16, 16, 16]},
    "qwen2_5_vl_text": {"mrope_section": [16, 24, 24]},
    "qwen2_vl_text": {"mrope_section": [16, 24, 24]},
}
"""Model type -> the rotary sections that its code falls back to, to be made smaller with the head."""
