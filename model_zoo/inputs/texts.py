"""Token ids, also of several codebooks."""

from __future__ import annotations

import torch

from model_zoo.inputs.call import Call


def codes(call: Call) -> torch.Tensor:
    """Token ids (batch, length), or with an axis of codebooks where the family has one."""
    kind, codebooks = call.facts.text.model_type, call.facts.number("num_codebooks", default=0)
    if kind.startswith("musicgen") and codebooks:
        return call.tokens().repeat(codebooks, 1)
    if kind.startswith(("kyutai", "csm")):
        return torch.stack([call.tokens() for _ in range(codebooks + 1)], dim=-1)
    return call.tokens()


def decoder_codes(call: Call) -> torch.Tensor:
    """Ids for the decoder (batch, length), or (batch, length, channels) where it speaks in several codebooks."""
    channels = call.facts.number("num_channels", default=1) if call.facts.config.model_type == "dia" else 1
    ids = call.tokens(12)
    return ids if channels == 1 else torch.stack([call.tokens(12) for _ in range(channels)], dim=-1)
