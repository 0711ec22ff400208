"""Greedy decoding judged as text: whether the device would have chosen the tokens of the reference.

The logits themselves are judged as any output is; this says what their difference means to a reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics.budget import budget, rounding
from harness.numerics.floats import flat64


@dataclass(frozen=True)
class Decoding:
    """How far the device's greedy tokens agree with the reference's."""

    first_difference: int | None
    """The first step at which a token differs by more than a near-tie; 0 is the one after the prompt."""
    agreement: float
    """Share of the tokens that agree, a near-tie counted as agreeing."""
    near_ties: int
    """Tokens that differ where the reference's own error could have swapped them."""


def agreement(device: Sequence[Leaf], reference: Sequence[Leaf], control: Sequence[Leaf] | None = None) -> Decoding:
    """Compares the greedy tokens of the workload `decoding`, whose leaves are `['step'][i]`, `(batch, vocabulary)`.

    A near-tie is a pair of tokens whose logits lie nearer to each other in fp64 (without a control: on the reference)
    than the sum of their error budgets.

    >>> import torch
    >>> leaves = [Leaf("['step'][0]", torch.tensor([[0.0, 1.0, 2.0]]))]
    >>> agreement(leaves, leaves)
    Decoding(first_difference=None, agreement=1.0, near_ties=0)
    """
    got = {leaf.path: leaf.value for leaf in device}
    truth = {leaf.path: leaf.value for leaf in control or ()}
    first: int | None = None
    total = differing = near = 0
    for step, leaf in enumerate(reference):
        ours, theirs = leaf.value, got.get(leaf.path)
        rows = ours.shape[0]
        total += rows
        if not isinstance(theirs, Tensor) or theirs.shape != ours.shape:
            differs, tied = rows, 0
        else:
            differs, tied = _differences(theirs, ours, truth.get(leaf.path))
        near += tied
        differing += differs
        first = step if differs and first is None else first
    return Decoding(first, 1 - differing / total if total else 1.0, near)


def _differences(device: Tensor, reference: Tensor, control: Tensor | None) -> tuple[int, int]:
    """How many rows choose another token, and how many more do so in a near-tie."""
    rows = reference.shape[0]
    kind = rounding(reference.dtype)
    device, reference = flat64(device).view(rows, -1), flat64(reference).view(rows, -1)
    truth = reference if control is None else flat64(control).view(rows, -1)
    chosen, expected = device.argmax(-1, keepdim=True), reference.argmax(-1, keepdim=True)
    other = (chosen != expected).flatten()
    if not bool(other.any()):
        return 0, 0
    finite = truth.isfinite() & reference.isfinite()
    filled = truth.where(finite, 0.0)
    error = None if control is None else (reference.where(finite, 0.0) - filled).abs().flatten()
    limit = budget(filled.flatten(), error, rows, kind).limit.view(rows, -1)
    limit = limit.where(finite, 0.0)  # what is masked is no near-tie of anything
    margin = (truth.gather(1, expected) - truth.gather(1, chosen)).abs()
    tied = other & (margin <= limit.gather(1, expected) + limit.gather(1, chosen)).flatten()
    tied &= device.gather(1, chosen).isfinite().flatten()
    return int((other & ~tied).sum()), int(tied.sum())
