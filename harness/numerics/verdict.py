"""The verdict on an output tree: structure, then each leaf by its pair, then whether the reference is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from harness.backends.tree import Leaf
from harness.numerics.budget import POPULOUS, relative_error
from harness.numerics.floats import FloatPair, flat64
from harness.numerics.pairs import LeafVerdict, Values, pair_for
from harness.records import Metrics, NumericClass, Status

SEVERITY = (
    Status.PASS,
    Status.ILL_CONDITIONED,
    Status.REFERENCE_SUSPECT,
    Status.DIVERGENT,
    Status.NON_FINITE,
    Status.CONTRACT,
)
"""The status of a tree is the latest in this order that a leaf has: what is judged first weighs most."""

CLASSES = (
    NumericClass.IDENTICAL,
    NumericClass.MORE_PRECISE,
    NumericClass.WITHIN_BUDGET,
    NumericClass.ILL_CONDITIONED,
    NumericClass.DIVERGENT,
)
"""The numeric class of a tree is the latest in this order that a leaf has."""


@dataclass(frozen=True)
class Raised:
    """What stands for an output tree where the model raised instead."""

    message: str
    """One line: type and first line of the exception."""


@dataclass(frozen=True)
class Suspect:
    """An op of the reference that stands apart from its fp64 control on the same inputs, and from other kernels."""

    op: str
    """ATen overload, e.g. `aten::gelu`."""
    message: str
    """One line: what it gives, what fp64 gives, which other path agrees with fp64."""


@dataclass(frozen=True)
class References:
    """What the device is judged by; each an output tree as `harness.backends.tree.walk` gives it."""

    reference: Sequence[Leaf]
    """CPU, in the row's dtype."""
    control: Sequence[Leaf] | None = None
    """The same in fp64; None if it could not be had."""
    second: Sequence[Leaf] | None = None
    """The second path, in the reference's dtype; only had for a row that failed."""
    jittered: tuple[Sequence[Leaf], ...] = ()
    """The reference run again with the result of every op rounded another way; only had for a row that failed."""
    lower: Sequence[Leaf] | None = None
    """The CPU in the lower precision that the device computes in, where that is not the row's dtype."""
    suspect: Suspect | None = None
    """What an audit of the reference found; only had for a row that failed or whose reference stands apart."""


@dataclass(frozen=True)
class Verdict:
    """The judgement on an observation."""

    status: Status
    """`pass`, `contract`, `non_finite`, `divergent`, `ill_conditioned` or `reference_suspect`."""
    numeric_class: NumericClass | None
    """None where the values could not be compared."""
    metrics: Metrics
    message: str
    """One line: what differs, where, and by how much in units of the budget. Empty for a pass."""
    leaves: tuple[LeafVerdict, ...]


def judge(device: Sequence[Leaf], references: References) -> Verdict:
    """The verdict on the device's outputs. Whether the device executed anything is asked elsewhere, before this.

    Where the device fails and there is a second path, the reference is tried too: if the second path and the device
    agree with fp64 (or, without it, with each other) and the reference does not, the finding is about the reference.

    >>> import torch
    >>> right, wrong = [Leaf("", torch.ones(9))], [Leaf("", torch.ones(9) * 1.01)]
    >>> judge(right, References(right)).status, judge(wrong, References(right)).status
    (<Status.PASS: 'pass'>, <Status.DIVERGENT: 'divergent'>)
    """
    found = _judge(device, references.reference, references.control)
    if references.second is None or found.status not in (Status.DIVERGENT, Status.NON_FINITE):
        return found
    by_second = _judge(device, references.second, references.control)
    reference_by_second = _judge(references.reference, references.second, references.control)
    if by_second.status.is_pass and reference_by_second.status in (Status.DIVERGENT, Status.NON_FINITE):
        message = f"the reference stands alone, device and second path agree: {found.message}"
        return replace(found, status=Status.REFERENCE_SUSPECT, message=message)
    return found


def _judge(device: Sequence[Leaf], reference: Sequence[Leaf], control: Sequence[Leaf] | None) -> Verdict:
    broken = _structure(device, reference)
    if broken:
        return Verdict(Status.CONTRACT, None, Metrics(), broken, ())
    truth = {leaf.path: leaf.value for leaf in control or ()}
    got = {leaf.path: leaf.value for leaf in device}
    prior = _prior(reference, truth)
    leaves = tuple(
        pair_for(Values(leaf.path, got[leaf.path], leaf.value, truth.get(leaf.path), prior)).compare()
        for leaf in reference
    )
    return _combined(leaves)


def _structure(device: Sequence[Leaf], reference: Sequence[Leaf]) -> str:
    """What is missing or too much in the device's tree; empty if nothing is."""
    got, expected = [leaf.path for leaf in device], [leaf.path for leaf in reference]
    missing = [path for path in expected if path not in set(got)]
    extra = [path for path in got if path not in set(expected)]
    parts = [f"{word} {_listed(paths)}" for word, paths in (("missing", missing), ("unexpected", extra)) if paths]
    if parts:
        return f"outputs differ in structure: {'; '.join(parts)}"
    if len(got) != len(expected):
        return f"outputs differ in structure: {len(got)} leaves, expected {len(expected)}"
    return ""


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(name_of(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"


def name_of(path: str) -> str:
    """A leaf's path for a person; the output itself has an empty one."""
    return path or "the output"


def _prior(reference: Sequence[Leaf], truth: Mapping[str, object]) -> float | None:
    """Greatest relative error of the reference in its large leaves: what a small leaf is assumed to have.

    None where there is no small leaf to use it, or no large one to learn from.
    """
    floats = [leaf for leaf in reference if FloatPair.supports(leaf.value)]
    if all(leaf.value.numel() >= POPULOUS for leaf in floats):
        return None
    found = []
    for leaf in floats:
        control = truth.get(leaf.path)
        if leaf.value.numel() >= POPULOUS and isinstance(control, torch.Tensor) and control.shape == leaf.value.shape:
            values = flat64(control)
            error = relative_error(values, flat64(leaf.value).sub_(values))
            found += [error] if error < torch.inf else []
    return max(found, default=None)


def _combined(leaves: tuple[LeafVerdict, ...]) -> Verdict:
    """The verdict on the tree: that of its worst leaf, with the counts of all."""
    if not leaves:
        return Verdict(Status.PASS, NumericClass.IDENTICAL, Metrics(elements=0, elements_over=0), "", ())
    worst = max(leaves, key=lambda leaf: (SEVERITY.index(leaf.status), *_badness(leaf.metrics)))
    classes = [leaf.numeric_class for leaf in leaves if leaf.numeric_class is not None]
    cosines = [leaf.metrics.cosine for leaf in leaves if leaf.metrics.cosine is not None]
    metrics = worst.metrics.model_copy(
        update={
            "elements": sum(leaf.metrics.elements or 0 for leaf in leaves),
            "elements_over": sum(leaf.metrics.elements_over or 0 for leaf in leaves),
            "cosine": min(cosines, default=None),
        }
    )
    return Verdict(
        status=worst.status,
        numeric_class=None if worst.numeric_class is None else max(classes, key=CLASSES.index),
        metrics=metrics,
        message=f"{name_of(worst.path)}{_at(worst)} {worst.message}" if worst.message else "",
        leaves=leaves,
    )


def _badness(metrics: Metrics) -> tuple[float, float]:
    return metrics.worst_in_budgets or 0.0, metrics.rms_ratio or 0.0


def _at(leaf: LeafVerdict) -> str:
    index = leaf.metrics.index
    return f"[{', '.join(map(str, index))}]" if index else ""
