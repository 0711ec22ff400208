"""What outputs owe to the inputs: a device's output that no longer depends on them, or that is one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics.budget import rms
from harness.numerics.floats import FloatPair, flat64
from harness.numerics.verdict import Verdict, name_of
from harness.records import Metrics, NumericClass, Status

STUCK = 1e-3
"""Relative movement of an output, from one input to another, below which the reference is asked about its own."""
COLLAPSED = 0.01
"""Share of the reference's movement that an output must move by at least."""
MOVES = 1e-4
"""Relative movement of the reference that is one, and not rounding."""


def unmoved(first: Sequence[Leaf], second: Sequence[Leaf]) -> tuple[str, ...]:
    """Paths of the device's outputs that are nearly the same on two inputs: empty if the device needs no second look.

    >>> x = torch.arange(1.0, 9)
    >>> unmoved([Leaf(".a", x), Leaf(".b", x)], [Leaf(".a", x), Leaf(".b", -x)])
    ('.a',)
    """
    other = {leaf.path: leaf.value for leaf in second}
    return tuple(
        leaf.path
        for leaf in first
        if _comparable(leaf.value, other.get(leaf.path)) and _movement(leaf.value, other[leaf.path]) < STUCK
    )


def collapse(
    device_first: Sequence[Leaf],
    device_second: Sequence[Leaf],
    reference_first: Sequence[Leaf],
    reference_second: Sequence[Leaf],
) -> Verdict:
    """Divergent if an output of the device stands still on two inputs where the reference's moves; else a pass.

    An output may stand still while it is right on one input, if it was folded into a constant or is a stale buffer.
    Both pairs are the outputs on the same two inputs. Integers are left out: indices may stay where all else moves.
    After AWS Neuron's cross-prompt check, which wants the outputs of different prompts to differ, as those of a
    collapsed model agree with the reference in direction.
    """
    device, first, second = (
        {x.path: x.value for x in tree} for tree in (device_second, reference_first, reference_second)
    )
    for leaf in device_first:
        path = leaf.path
        if not (_comparable(leaf.value, device.get(path)) and _comparable(first.get(path), second.get(path))):
            continue
        ours, theirs = _movement(leaf.value, device[path]), _movement(first[path], second[path])
        if theirs > MOVES and ours < COLLAPSED * theirs:
            message = (
                f"{name_of(path)} does not depend on the input: it moves by {ours:.3g} of its RMS from one input to "
            )
            message += f"another, the reference's by {theirs:.3g}"
            metrics = Metrics(leaf=path, rule="collapse")
            return Verdict(Status.DIVERGENT, NumericClass.DIVERGENT, metrics, message, ())
    return Verdict(Status.PASS, None, Metrics(), "", ())


def _comparable(a: Any, b: Any) -> bool:
    """Whether both are tensors of one shape, with numbers that could have moved."""
    return FloatPair.supports(a) and FloatPair.supports(b) and a.shape == b.shape and a.numel() > 0


def _movement(a: Tensor, b: Tensor) -> float:
    """RMS of the difference over RMS of the values; zero where nothing is finite."""
    left, right = flat64(a), flat64(b)
    finite = left.isfinite() & right.isfinite()
    left, right = left[finite], right[finite]
    scale = max(rms(left), rms(right))
    return rms(right - left) / scale if scale else 0.0
