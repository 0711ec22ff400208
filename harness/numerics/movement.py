"""What rounding alone does to an output: the reference run again, with the result of each op rounded another way.

The excuse for an element is never more than the runs show: that it took the device's value, or moved nearly as far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.numerics.budget import ALLOWANCE, Rounding

GAIN = 1.8
"""A jittered run errs about so many times as far as an honest one, as each result is rounded and then rounded again:
1.75 to 1.91 measured on resnet18 in bf16."""
WILD = 18.0
"""An element that moves so many times as far as the median of the leaf is one that jumps (12 standard deviations)."""


@dataclass(frozen=True)
class Excuse:
    """What of a device's differences the movements explain, per element, flat."""

    explained: Tensor
    """Elements that differ, and that rounding takes to the device's value, or as far."""
    jumping: Tensor
    """Of those, the elements that rounding moves beyond the budget: no verdict on them is possible."""
    unexplained: int
    """Elements that differ and that nothing explains."""


def excuse(
    device: Tensor, reference: Tensor, truth: Tensor | None, runs: Sequence[Tensor], limit: Tensor | float
) -> Excuse:
    """Which differences of more than `limit`, from fp64 or from the reference, rounding alone explains.

    An element is explained if one of the runs, the reference or fp64 comes within the limit of the device's value, or
    if the device is off by at most ALLOWANCE times the element's greatest movement. What is left is still explained if
    no more elements are left than are to be expected to move in one more run for the first time (`unseen`).
    Source of the runs: stochastic arithmetic (Vignes, CESTAC; Parker, Monte Carlo arithmetic).
    """
    off = from_reference = (device - reference).abs()
    differs, nearest, movement = off > limit, off.clone(), torch.zeros_like(off)
    if truth is not None:
        from_truth = (device - truth).abs()
        differs |= from_truth > limit
        nearest, off = torch.minimum(nearest, from_truth), torch.minimum(off, from_truth)
        movement = (truth - reference).abs()
    times = torch.zeros_like(off, dtype=torch.int32)
    for run in runs:
        moved = (run - reference).abs()
        times += moved > limit
        movement = torch.maximum(movement, moved)
        nearest = torch.minimum(nearest, (device - run).abs())
    # Where the device does as the reference does, nothing is open, whatever rounding might have made of it.
    jumping = (times > 0) & differs & (from_reference > limit)
    explained = differs & ((nearest <= limit) | (off <= ALLOWANCE * movement))
    left = differs & ~explained
    within = left & (off <= ALLOWANCE * movement.max())
    if bool(left.any()) and int(left.sum()) == int(within.sum()) <= unseen(times, len(runs)):
        explained, jumping, left = explained | left, jumping | left, torch.zeros_like(left)
    return Excuse(explained, jumping & explained, int(left.sum()))


def unseen(times: Tensor, runs: int, deviations: float = 3) -> float:
    """How many elements that no run moved may move in one more: expected ones, and some standard deviations.

    Expected are as many as moved in exactly one run, over the runs: the rule of succession, in the form of Good and
    Turing (Good 1953, The population frequencies of species).
    """
    expected = int((times == 1).sum()) / runs
    return expected + deviations * math.sqrt(expected)


def jumps(reference: Tensor, runs: Sequence[Tensor], length: int, kind: Rounding) -> Tensor:
    """Elements that rounding moves far more than it moves the leaf's others."""
    movement = torch.stack([(run - reference).abs() for run in runs]).amax(0)
    table = reference.view(-1, length)
    row = torch.linalg.vector_norm(table, dim=1, keepdim=True) / math.sqrt(length)
    share = movement / (table.abs() + row + kind.smallest).view(-1)
    wild: Tensor = share > WILD * float(share.median()) + 16 * kind.u
    return wild


def spread(truth: Tensor, jittered: Sequence[Tensor]) -> Tensor:
    """Per element, the RMS of the jittered runs' errors, as large as an honest run's would be."""
    total = torch.zeros_like(truth)
    for run in jittered:
        total += (run - truth).square_()
    return total.div_(len(jittered)).sqrt_().div_(GAIN)
