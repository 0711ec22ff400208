"""The floor of the error budget: the least movement of an output that any judge of it could tell from rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics.budget import RMS_LIMIT, budget, rms, rounding


@dataclass(frozen=True)
class Movement:
    """What a fault did to the outputs, against the same device without it."""

    any: bool
    """Whether a single bit differs."""
    in_floors: float | None
    """How far, in units of the floor; None where it has no number: another structure, mask, or integer."""


def movement(
    faulty: Sequence[Leaf], honest: Sequence[Leaf], reference: Sequence[Leaf], control: Sequence[Leaf] | None
) -> Movement:
    """How far a fault moved the outputs. At 1 and below nothing can be told from rounding.

    1 is where an element moves by its budget, or the RMS of a leaf's movement reaches RMS_LIMIT times the RMS of the
    reference's own error, whichever comes first. No verdict takes part in this.
    """
    if [leaf.path for leaf in faulty] != [leaf.path for leaf in honest]:
        return Movement(True, None)
    controls = {leaf.path: leaf.value for leaf in control or ()}
    by_path = {leaf.path: leaf.value for leaf in reference}
    found, greatest = False, 0.0
    for ours, theirs in zip(faulty, honest, strict=True):
        if _same(ours.value, theirs.value):
            continue
        found = True
        leaf = _in_floors(ours.value, theirs.value, by_path[ours.path], controls.get(ours.path))
        if leaf is None:
            return Movement(True, None)
        greatest = max(greatest, leaf)
    return Movement(found, greatest)


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.dtype is b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) and _masks(a, b)
        )
    return type(a) is type(b) and a == b


def _masks(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isinf(), b.isinf())


def _in_floors(faulty: object, honest: object, reference: object, control: object) -> float | None:
    values = [
        v.flatten() for v in (faulty, honest, reference, control) if isinstance(v, Tensor) and v.is_floating_point()
    ]
    if len(values) < 4 or len({v.dtype for v in values[:3]}) > 1 or len({v.shape for v in values}) > 1:
        return None
    finite = torch.stack([v.isfinite() for v in values])
    if bool((finite.any(0) != finite.all(0)).any()):
        return None
    assert isinstance(reference, Tensor)
    ours, theirs, own, truth = (v.double().masked_fill(~finite[0], 0.0) for v in values)
    error, moved, kind = (own - truth).abs(), (ours - theirs).abs(), rounding(values[2].dtype)
    rows = reference.numel() // reference.shape[-1] if reference.dim() and reference.numel() else 1
    limit = budget(truth, error, rows, kind).limit
    level = max(rms(error), kind.u * rms(truth))
    by_element = float((moved / limit).max())
    return max(by_element, rms(moved) / (RMS_LIMIT * level) if level else 0.0)
