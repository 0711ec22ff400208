"""Random tensors of the profile `gaussian`: continuous values from N(0, 1), token ids uniform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

BATCH = 2
LENGTH = 16


def image_batch(
    size: int | Sequence[int], generator: torch.Generator, *, batch: int = BATCH, channels: int = 3
) -> torch.Tensor:
    """Images (batch, channels, height, width) from N(0, 1); `size` is a side or (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(batch, channels, height, width, generator=generator)


def token_batch(
    vocabulary: int,
    generator: torch.Generator,
    *,
    batch: int = BATCH,
    length: int = LENGTH,
    avoid: Iterable[int] = (),
) -> torch.Tensor:
    """Token ids (batch, length), uniform over the vocabulary without the ids in `avoid`."""
    special = set(avoid)
    allowed = torch.tensor([i for i in range(vocabulary) if i not in special] or [0])
    return allowed[torch.randint(len(allowed), (batch, length), generator=generator)]


@dataclass(frozen=True)
class Draw:
    """Draws from one generator; the order of the calls decides what each gets."""

    generator: torch.Generator

    @classmethod
    def seeded(cls, seed: int) -> Draw:
        """A source of draws that gives the same in every process."""
        return cls(torch.Generator().manual_seed(seed))

    def normal(self, *shape: int) -> torch.Tensor:
        """Values from N(0, 1)."""
        return torch.randn(*shape, generator=self.generator)

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """Integers in [0, below), int64."""
        return torch.randint(max(below, 1), shape, generator=self.generator)
