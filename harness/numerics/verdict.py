"""The verdict on an output tree: structure, then each leaf by its pair, then whether the reference is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.backends.tree import Aliases, Leaf
from harness.numerics.budget import POPULOUS, relative_error, rms
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

    reference: Sequence[Leaf] | Raised
    """CPU, in the row's dtype."""
    control: Sequence[Leaf] | None = None
    """The same in fp64; None if it could not be had."""
    second: Sequence[Leaf] | None = None
    """The second path, in the reference's dtype; only had for a row that needs a second look."""
    jittered: tuple[Sequence[Leaf], ...] = ()
    """The reference run again with the result of every op rounded another way; only had for such a row. A run of other
    structure than the reference's, or that raised, is left out by whoever gathers them."""
    lower: Sequence[Leaf] | None = None
    """The CPU in the lower precision that the device computes in, where that is not the row's dtype."""
    suspect: Suspect | None = None
    """What an audit of the reference found; only had for such a row."""
    looked: bool = False
    """Whether the second look was taken: whoever gathers the three above sets it, also if the audit found nothing.
    The verdict is then the last word, and what only a second look can tell is no longer in doubt."""
    aliases: Aliases | None = None
    """Which of the reference's outputs share memory with an input (`harness.backends.tree.aliases`), if known."""


@dataclass(frozen=True)
class Verdict:
    """The judgement on an observation."""

    status: Status
    """`pass`, `contract`, `runtime_error`, `non_finite`, `divergent`, `ill_conditioned` or `reference_suspect`."""
    numeric_class: NumericClass | None
    """None where the values could not be compared."""
    metrics: Metrics
    message: str
    """One line: what differs, where, and by how much in units of the budget. Empty for a pass, but where both sides
    reject."""
    leaves: tuple[LeafVerdict, ...]
    op: str | None = None
    """The reference's op at fault, of `reference_suspect`."""

    @property
    def apart(self) -> bool:
        """Whether the reference stands apart from its fp64 control by more than its dtype explains."""
        return any(leaf.apart for leaf in self.leaves)

    @property
    def needs_second_look(self) -> bool:
        """Whether more of the reference must be known before this is said: of failing values, and of a pass by a
        reference that stands apart. Of a verdict that is itself the second look, ask no more."""
        return self.apart or self.status in _DOUBTFUL


_DOUBTFUL = (Status.DIVERGENT, Status.NON_FINITE, Status.REFERENCE_SUSPECT, Status.ILL_CONDITIONED)
_FAILING = (Status.DIVERGENT, Status.NON_FINITE)


def judge(device: Sequence[Leaf] | Raised, references: References, aliases: Aliases | None = None) -> Verdict:
    """The verdict on the device's outputs. Whether the device executed anything is asked elsewhere, before this.

    The first look takes the reference and its control. If it says so (`Verdict.needs_second_look`) the row is judged
    again beside the second path, jittered runs and an audit of the reference: if the references disagree the finding is
    about the reference, what rounding alone moves as far is no fault, and the rest is the device's.

    Args:
        device: its outputs, or what it raised.
        references: what it is judged by.
        aliases: which of its outputs share memory with an input, if known; must then be as on the reference.

    >>> import torch
    >>> right, wrong = [Leaf("", torch.ones(9))], [Leaf("", torch.ones(9) * 1.01)]
    >>> judge(right, References(right)).status, judge(wrong, References(right)).status
    (<Status.PASS: 'pass'>, <Status.DIVERGENT: 'divergent'>)
    """
    if isinstance(device, Raised) or isinstance(references.reference, Raised):
        return _rejection(device, references)
    first = _judge(device, references.reference, references.control, references)
    expected = references.aliases
    if aliases is not None and expected is not None and aliases != expected and first.status is not Status.CONTRACT:
        return _alone(Status.CONTRACT, _other_aliases(aliases, expected))
    if not (references.looked or references.second or references.jittered or references.suspect):
        return first
    return _second_look(device, references, first)


def _second_look(device: Sequence[Leaf], references: References, first: Verdict) -> Verdict:
    """The last word, from all that is known of the reference."""
    assert not isinstance(references.reference, Raised)
    found = _judge(device, references.reference, references.control, references, looked=True)
    if references.suspect is not None:
        found = _blamed(found, references.suspect, first)
    if found.status is Status.REFERENCE_SUSPECT or references.second is None:
        return found
    if not first.needs_second_look or first.status is Status.ILL_CONDITIONED:
        return found
    shifted = tuple(_shifted(run, references.reference, references.second) for run in references.jittered)
    by_second = replace(references, jittered=shifted, second=None)
    reference = _judge(references.reference, references.second, references.control, by_second, looked=True)
    if reference.status not in _FAILING:
        return found
    if _judge(device, references.second, references.control, by_second, looked=True).status.is_pass:
        message = f"the reference stands alone, device and second path agree: {first.message or reference.message}"
    elif first.status not in _FAILING:
        message = f"the references disagree, and the device is with the first: {first.message or reference.message}"
    else:
        return found
    return replace(found, status=Status.REFERENCE_SUSPECT, message=message)


def _blamed(found: Verdict, suspect: Suspect, first: Verdict) -> Verdict:
    """The verdict with every leaf put down to the suspect that fails, or on which the reference stands apart."""
    doubtful = {leaf.path for leaf in first.leaves if leaf.apart or leaf.status in _DOUBTFUL}
    leaves = tuple(
        replace(leaf, status=Status.REFERENCE_SUSPECT, message=f"{leaf.message or _values(leaf)}; {suspect.message}")
        if leaf.path in doubtful and leaf.status is not Status.CONTRACT
        else leaf
        for leaf in found.leaves
    )
    if not doubtful:
        return found
    blamed = _combined(leaves)
    return replace(blamed, op=suspect.op) if blamed.status is Status.REFERENCE_SUSPECT else blamed


def _values(leaf: LeafVerdict) -> str:
    metrics = leaf.metrics
    return f"is {metrics.device_value}, reference {metrics.reference_value}, fp64 {metrics.control_value}"


def _shifted(run: Sequence[Leaf], reference: Sequence[Leaf], second: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """The second path moved as the run moves from the reference."""
    moved, base = ({leaf.path: leaf.value for leaf in leaves} for leaves in (run, reference))
    return tuple(Leaf(leaf.path, _moved(leaf.value, moved.get(leaf.path), base.get(leaf.path))) for leaf in second)


def _moved(value: Any, run: Any, reference: Any) -> Any:
    tensors = [v for v in (value, run, reference) if isinstance(v, torch.Tensor)]
    if len(tensors) < 3 or len({t.shape for t in tensors}) > 1 or not value.is_floating_point():
        return run
    difference = run.double() - reference.double()
    return (value.double() + torch.where(difference.isfinite(), difference, 0.0)).to(value.dtype)


def _rejection(device: Sequence[Leaf] | Raised, references: References) -> Verdict:
    """The verdict where a side raises: both must."""
    reference = references.reference
    if isinstance(device, Raised) and isinstance(reference, Raised):
        return _alone(Status.PASS, f"both reject: {device.message}; reference: {reference.message}")
    if isinstance(device, Raised):
        return _alone(Status.RUNTIME_ERROR, f"rejects what the reference accepts: {device.message}")
    assert isinstance(reference, Raised)
    if references.control is not None:
        return _alone(Status.REFERENCE_SUSPECT, f"the reference alone rejects, fp64 does not: {reference.message}")
    return _alone(Status.CONTRACT, f"accepts what the reference rejects: {reference.message}")


def _alone(status: Status, message: str) -> Verdict:
    return Verdict(status, None, Metrics(), message, ())


def _other_aliases(device: Aliases, reference: Aliases) -> str:
    """What differs between two sets of outputs that share memory with inputs."""
    sides = (("shares no memory with", reference - device), ("shares memory with", device - reference))
    parts = [f"{name_of(path)} {verb} input {i}" for verb, pairs in sides for path, i in sorted(pairs)[:3]]
    return f"outputs alias other inputs than the reference's: {'; '.join(parts)}"


def _judge(
    device: Sequence[Leaf],
    reference: Sequence[Leaf],
    control: Sequence[Leaf] | None,
    references: References,
    looked: bool = False,
) -> Verdict:
    broken = _structure(device, reference)
    if broken:
        return _alone(Status.CONTRACT, broken)

    def by_path(leaves: Sequence[Leaf] | None) -> dict[str, Any]:
        return {leaf.path: leaf.value for leaf in leaves or ()}

    got, truth, lower = by_path(device), by_path(control), by_path(references.lower)
    second = by_path(references.second if looked else None)
    jittered = [by_path(run) for run in references.jittered] if looked else []
    prior, scale = _prior(reference, truth), _scale(truth)
    leaves = tuple(
        pair_for(
            Values(
                path=leaf.path,
                device=got[leaf.path],
                reference=leaf.value,
                control=truth.get(leaf.path),
                prior=prior,
                tree_scale=scale,
                second=second.get(leaf.path),
                jittered=tuple(run[leaf.path] for run in jittered if leaf.path in run),
                lower=lower.get(leaf.path),
                looked=looked,
                suspect=references.suspect is not None,
            )
        ).compare()
        for leaf in reference
    )
    return _combined(leaves)


def _scale(truth: Mapping[str, Any]) -> float | None:
    """Greatest RMS of a leaf, where there are several; what is far below it may be a sum that cancels."""
    if len(truth) < 2:
        return None
    floats = [flat64(value) for value in truth.values() if FloatPair.supports(value)]
    scales = [scale for scale in map(rms, floats) if scale < torch.inf]
    return max(scales, default=None) if len(scales) > 1 else None


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
    explained = [n for leaf in leaves if (n := leaf.metrics.elements_explained) is not None]
    metrics = worst.metrics.model_copy(
        update={
            "elements": sum(leaf.metrics.elements or 0 for leaf in leaves),
            "elements_over": sum(leaf.metrics.elements_over or 0 for leaf in leaves),
            "elements_explained": sum(explained) if explained else None,
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
    shared = max(metrics.row_in_limits or 0.0, metrics.systematic_in_limits or 0.0)
    return max(metrics.worst_in_budgets or 0.0, shared), metrics.rms_ratio or 0.0


def _at(leaf: LeafVerdict) -> str:
    index = leaf.metrics.index
    return f"[{', '.join(map(str, index))}]" if index else ""
