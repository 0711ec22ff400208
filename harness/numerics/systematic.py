"""Errors that all elements share: each row's RMS, and how far the errors follow a pattern, scale or offset.

A factor of 1.01 in bf16 moves no element beyond its budget, as the rounding of one element is as large; but rounding
has no common sign, so that over n elements it averages out as 1/sqrt(n), and what is common stands out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.numerics.budget import Rounding

LENGTH = 32
"""Elements that a row has at least: dims are merged from the last until it has (a row of an image becomes a plane)."""
ROW_RMS = 4.0
"""Greatest RMS of a row's errors, in those of the reference's worst row."""
WORST_ROW = 3.0
"""The reference's worst row counts for at most so many standard deviations: one lost row is no excuse for others."""
Z_ROW, Z_LEAF, Z_LEAF_SINGLE = 4.5, 3.0, 6.0
"""Standard deviations of the projection that pass, of one row among many and of the leaf; of the latter more in single
precision, where an exp that is one ulp off adds up over layers: efficientnet_b0 on XLA:CPU was off by a common 34u."""
TAIL_ROW = (1.5, 2.5)
"""So many times the worst row's projection that a run shows passes, where that is more; it counts for at most so many
times Z_ROW standard deviations. In a gradient a filter shares what happened to its channel: tails are heavy."""
SHARED = 0.05
"""Share of the errors' RMS that follows a pattern by chance at least: roundings upstream are shared by elements."""


@dataclass(frozen=True)
class Projections:
    """Errors of one run, in standard deviations: per row their RMS, and what of it follows a pattern of RMS 1."""

    rms: Tensor
    scale: Tensor
    """Along the fp64 values: what a common factor gives."""
    offset: Tensor
    """Along ones: what a common summand gives."""
    leaf_scale: float
    leaf_offset: float


class Rows:
    """The rows of a leaf, and the projections of errors onto them."""

    def __init__(self, truth: Tensor, sigma: Tensor, length: int) -> None:
        self.length = length
        """Elements in a row."""
        self._truth = (truth / sigma).view(-1, length)
        norms = torch.linalg.vector_norm(self._truth, dim=1)
        self._norm = norms.clamp(min=1e-300)
        self.signal = norms / math.sqrt(length)
        """RMS of a row's values, in standard deviations of the error."""
        self.leaf_signal = float(torch.linalg.vector_norm(norms)) / math.sqrt(truth.numel())

    def project(self, error: Tensor) -> Projections:
        """The projections of signed errors, in standard deviations."""
        table = error.view(-1, self.length)
        along = torch.linalg.vecdot(table, self._truth)
        offset = table.mean(1)
        root = math.sqrt(self.length)
        scale = along / self._norm / root
        whole = self.leaf_signal * table.numel()
        return Projections(
            rms=torch.linalg.vector_norm(table, dim=1) / root,
            scale=scale,
            offset=offset,
            leaf_scale=float(along.sum()) / whole if whole else 0.0,
            leaf_offset=float(offset.mean()),
        )


@dataclass(frozen=True)
class Systematic:
    """The device's shared errors, each in units of what passes: above 1 is out of budget."""

    row: int
    """Number of the row that is worst."""
    row_rms: float
    row_scale: float
    row_offset: float
    leaf_scale: float
    leaf_offset: float


def systematic(rows: Rows, device: Projections, runs: Sequence[Projections], kind: Rounding) -> Systematic:
    """How far the device's errors are shared, beyond what the reference's (`runs[0]`) and other runs' are.

    A least-squares slope of the errors on the values (scale) and their mean (offset), each weighted by the budget's
    standard deviation sigma. In those units white errors give 1/sqrt(n), errors that elements share more. What passes
    is the root of the sum of squares of a rounded factor, `Rounding.common` units roundoff, of what the reference
    itself shows, and of Z times the RMS that all runs show over their rows. The device may take either side for the
    truth, fp64 or the reference.
    Source: regression of measured on true values, as in the calibration of instruments (ISO 11095); that rounding
    errors behave as independent ones of mean zero is Higham, Accuracy and Stability, 2.8.
    """
    length, count = rows.length, len(device.rms)
    reference = runs[0]
    tail = min(max(float(reference.rms.max()), 1.0), WORST_ROW)
    row_rms = device.rms / (ROW_RMS * reference.rms.clamp(min=tail))
    common = kind.common * kind.u
    row, leaf = {}, {}
    for name in ("scale", "offset"):
        ours, theirs = getattr(device, name), getattr(reference, name)
        shown = max(math.sqrt(float(getattr(run, name).square().mean())) for run in runs)
        noise = Z_ROW * max(1 / math.sqrt(length), shown)
        worst = max(float(getattr(run, name).abs().max()) for run in runs)
        noise = max(noise, min(TAIL_ROW[0] * worst, TAIL_ROW[1] * noise))
        limits = torch.sqrt((common * rows.signal).square() + theirs.square() + noise**2)
        row[name] = torch.minimum(ours.abs(), (ours - theirs).abs()) / limits
        mine, other = getattr(device, f"leaf_{name}"), getattr(reference, f"leaf_{name}")
        whole = math.sqrt(sum(getattr(run, f"leaf_{name}") ** 2 for run in runs) / len(runs))
        noise = (Z_LEAF_SINGLE if kind.u < 1e-6 else Z_LEAF) * max(
            1 / math.sqrt(length * count), shown / math.sqrt(count), whole, SHARED
        )
        leaf[name] = min(abs(mine), abs(mine - other)) / math.hypot(common * rows.leaf_signal, noise)
    return Systematic(
        row=int(torch.stack([row_rms, *row.values()]).amax(0).argmax()),
        row_rms=float(row_rms.max()),
        row_scale=float(row["scale"].max()),
        row_offset=float(row["offset"].max()),
        leaf_scale=leaf["scale"],
        leaf_offset=leaf["offset"],
    )


def row_length(shape: Sequence[int], parts: int = 1) -> int:
    """Elements in a row of a tensor of that shape, each of so many parts.

    >>> row_length((8, 1000)), row_length((2, 64, 7, 7))
    (1000, 49)
    """
    length = parts
    for size in reversed(shape):
        length *= size
        if length >= LENGTH:
            break
    return length
