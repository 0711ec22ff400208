"""Waveforms and spectrograms."""

from __future__ import annotations

import torch

from model_zoo.inputs.call import Call
from model_zoo.inputs.draw import BATCH

_MEL = (
    "feature_projection_input_dim",
    "input_dim",
    "num_mel_bins",
    "feature_size",
    "input_feat_per_channel",
    "input_size",
    "n_mel_bins",
    "input_feat_size",
)
"""Names of the number of mel bins."""


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
    mel = facts.number(*_MEL, default=128) * facts.number("num_stacked_frames", default=1)
    layout = call.layouts.get("input_features", "mel-time")
    if layout == "channel-time-mel":
        return call.draw.normal(BATCH, 1, 64, mel)
    if layout == "time-mel":
        return call.draw.normal(BATCH, 64, mel)
    positions = facts.number("max_source_positions", default=32)
    return call.draw.normal(BATCH, mel, 2 * positions)


def heard_mask(call: Call) -> torch.Tensor | None:
    """Ones over the time axis of what is heard."""
    if "input_features" in call.made:
        features = call.made["input_features"]
        time = features.shape[1] if call.layouts.get("input_features") == "time-mel" else features.shape[-1]
        return torch.ones(BATCH, time, dtype=torch.long)
    if "input_values" in call.made:
        return torch.ones(BATCH, call.made["input_values"].shape[-1], dtype=torch.long)
    return None
