"""Time series."""

from __future__ import annotations

import torch

from model_zoo.inputs.call import Call
from model_zoo.inputs.draw import BATCH


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


def future_values(call: Call) -> torch.Tensor:
    """What follows the past."""
    length = call.facts.number("prediction_length", default=8)
    return call.draw.normal(BATCH, length, *call.made["past_values"].shape[2:])
