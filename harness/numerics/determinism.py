"""Whether a run gives the same bits twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics.pairs import unravel

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def deterministic(run: Callable[[], Sequence[Leaf]], times: int = 2) -> str:
    """Where `run` first gives other bits than at its first call, as one line; empty if it never does.

    >>> deterministic(lambda: [Leaf("", torch.rand(3))]).split(" ")[:2]
    ['the', 'output[0]']
    """
    first = run()
    for _ in range(times - 1):
        difference = first_difference(first, run())
        if difference:
            return difference
    return ""


def first_difference(one: Sequence[Leaf], other: Sequence[Leaf]) -> str:
    """The first leaf in which two runs differ in a bit, as one line; NaN is equal to NaN, 0 is not equal to -0."""
    for a, b in zip_longest(one, other):
        if a is None or b is None or a.path != b.path:
            return f"one run gave {_path(a)}, the next {_path(b)}"
        difference = _difference(a.value, b.value)
        if difference:
            return f"{_path(a)}{difference}"
    return ""


def _path(leaf: Leaf | None) -> str:
    return "nothing" if leaf is None else leaf.path or "the output"


def _difference(one: Any, other: Any) -> str:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        same = type(one) is type(other) and (one == other or (one != one and other != other))
        return "" if same else f" is {one} in one run and {other} in the next"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return (
            f" is {one.dtype} of shape {tuple(one.shape)} in one run, "
            f"{other.dtype} of shape {tuple(other.shape)} in the next"
        )
    differs = _bits(one) != _bits(other)
    if one.is_floating_point():
        differs &= ~(one.isnan() & other.isnan())
    elif one.is_complex():
        real, imaginary = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        differs = (differs & ~(real.isnan() & imaginary.isnan())).any(-1)
    count = int(differs.sum())
    if not count:
        return ""
    index = unravel(int(differs.reshape(-1).int().argmax()), one.shape)
    place = f"[{', '.join(map(str, index))}]" if index else ""
    values = f"is {one[index].item()} in one run and {other[index].item()} in the next"
    return f"{place} {values}; {count} of {one.numel()} elements differ"


def _bits(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    x = x.detach().resolve_neg().contiguous()
    return x if x.dtype is torch.bool else x.view(_BITS[x.element_size()])
