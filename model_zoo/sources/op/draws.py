"""How the tensors of an op are drawn, as data: the table of ops imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """A tensor of one kind and shape.

    A held one belongs to the module, as a weight, a target or an index does: an input profile leaves it as it is.
    """

    kind: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    is_held: bool = False

    @property
    def held(self) -> Draw:
        """The same, held."""
        return replace(self, is_held=True)

    def drawn(self, generator: torch.Generator) -> torch.Tensor:
        """The tensor, from `generator` alone."""
        import torch

        if self.kind == "normal":
            return torch.randn(self.shape, generator=generator)
        if self.kind == "uniform":
            return torch.rand(self.shape, generator=generator) * (self.high - self.low) + self.low
        if self.kind == "integers":
            return torch.randint(int(self.low), int(self.high), self.shape, generator=generator)
        if self.kind == "booleans":
            return torch.rand(self.shape, generator=generator) < self.low
        if self.kind == "signs":
            return torch.randint(0, 2, self.shape, generator=generator) * 2.0 - 1.0
        if self.kind == "steps":  # evenly spaced: neighbours for a search
            return torch.linspace(self.low, self.high, self.shape[0])
        if self.kind == "halves":  # ties for what rounds, sorts and searches
            return torch.randint(-8, 9, self.shape, generator=generator) / 2
        if self.kind == "columns":  # logits that favour the last classes
            return torch.randn(self.shape, generator=generator) + torch.arange(self.shape[-1])
        if self.kind == "definite":
            root = torch.randn(self.shape, generator=generator)
            return root @ root.mT + self.shape[-1] * torch.eye(self.shape[-1])
        if self.kind == "dominant":  # by its diagonal: well-conditioned, not symmetric
            return torch.randn(self.shape, generator=generator) + self.shape[-1] * torch.eye(self.shape[-1])
        assert self.kind == "special", self.kind
        values = torch.randn(self.shape, generator=generator)
        values.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        return values


def normal(*shape: int) -> Draw:
    """From N(0, 1)."""
    return Draw("normal", shape)


def uniform(*shape: int, low: float = 0.1, high: float = 0.9) -> Draw:
    """Uniform in [low, high)."""
    return Draw("uniform", shape, low, high)


def integers(*shape: int, low: int = 0, high: int = 5) -> Draw:
    """int64, uniform in [low, high)."""
    return Draw("integers", shape, low, high)


def booleans(*shape: int, share: float = 0.5) -> Draw:
    """True with that probability."""
    return Draw("booleans", shape, share)


def steps(count: int, low: float = -2.0, high: float = 2.0) -> Draw:
    """Evenly spaced from low to high, both included."""
    return Draw("steps", (count,), low, high)


def kind(name: str, *shape: int) -> Draw:
    """`signs`, `halves`, `columns`, `definite`, `dominant` or `special` (NaN, inf, -inf among N(0, 1))."""
    return Draw(name, shape)


def tree_drawn(value: Any, generator: torch.Generator) -> Any:
    """A value with every `Draw` in it, also in lists and dicts, replaced by its tensor."""
    if isinstance(value, Draw):
        return value.drawn(generator)
    if isinstance(value, list):
        return [tree_drawn(item, generator) for item in value]
    if isinstance(value, dict):
        return {key: tree_drawn(item, generator) for key, item in value.items()}
    return value
