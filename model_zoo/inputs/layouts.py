"""Which of the shapes in use an argument has: what the config speaks for first, then the others."""

from __future__ import annotations

from collections.abc import Mapping

from model_zoo.inputs.facts import Facts

LAYOUTS: dict[str, tuple[str, ...]] = {
    "pixel_values": ("image", "frames", "grid", "patches", "tiles", "patch-images", "media", "pair"),
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
