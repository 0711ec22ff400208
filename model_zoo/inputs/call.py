"""A call in the making."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from model_zoo.inputs.draw import LENGTH, Draw, token_batch
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
"""Makes one argument of a call, or None where the model has no use for it."""
