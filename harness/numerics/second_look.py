"""The second look: what a row that fails, or whose reference stands apart from fp64, is judged by once more.

Gathered here, in the reference's process, and paid for by such rows only: the second path, the audit of the
reference's ops, and runs with every op rounded another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from harness.backends.base import is_out_of_memory
from harness.backends.double import forward
from harness.backends.reference import isolated, run_second_path
from harness.backends.tree import Leaf, walk
from harness.numerics.audit import Repair, audit
from harness.numerics.floats import LOWER_RMS_LIMIT
from harness.numerics.jitter import MOST_RUNS, RUNS, record, run_jittered
from harness.numerics.verdict import Raised, References, Suspect, Verdict, judge
from harness.records import NumericClass, Status
from model_zoo.spec import BuiltModel

T = TypeVar("T")

HONEST = 1.5
"""An honest run excuses what is at most so many times as far off as itself."""

_LIMITS = {"worst_in_budgets": 1.0, "row_in_limits": 1.0, "systematic_in_limits": 1.0, "rms_ratio": LOWER_RMS_LIMIT}
"""The measures of a leaf that have a limit, and the limit."""


def second_look(built: BuiltModel, references: References, device: Sequence[Leaf] | Raised) -> Verdict:
    """The final verdict on the device's outputs.

    `references` holds what the first look had. A suspect op of the reference excuses a device that agrees with the
    reference once the op is repaired, or that shares the op's error. Where the repair changes no output the op is none
    of the row's matter, and a device that fails beside the repaired reference too is at fault itself.
    """
    references = replace(references, looked=True)
    if isinstance(device, Raised):
        return judge(device, references)
    suspect = audit(built)
    repaired = None if suspect is None else _attempt(lambda: walk(forward(isolated(built), Repair(suspect.op))))
    reference = references.reference
    if isinstance(reference, Raised):
        return _rejected(references, device, suspect, repaired)
    references = replace(references, second=_attempt(lambda: run_second_path(built)))
    if suspect is None:
        return _among_jittered(built, references, device)
    if repaired is None:  # with the op set right the model raises: what the outputs would be is not known
        return judge(device, replace(references, suspect=suspect))
    if _passes(reference, references, repaired):
        return _among_jittered(built, references, device)
    if _passes(device, references, repaired) or _passes(device, replace(references, control=None)):
        return judge(device, replace(references, suspect=suspect))
    beside = _among_jittered(built, replace(references, reference=repaired, second=None), device)
    return replace(beside, message=f"{beside.message}; beside a repaired reference: {suspect.message}")


def _passes(device: Sequence[Leaf], references: References, reference: Sequence[Leaf] | None = None) -> bool:
    """Whether a first look passes the device, by `reference` or by the one of `references`."""
    first = References(references.reference if reference is None else reference, references.control)
    return judge(device, first).status.is_pass


def _rejected(
    references: References, device: Sequence[Leaf], suspect: Suspect | None, repaired: Sequence[Leaf] | None
) -> Verdict:
    """The verdict where the reference raised and the device did not: by the op that made it raise, if one did."""
    found = judge(device, references)
    if suspect is None or repaired is None or not _passes(device, references, repaired):
        return found
    message = f"{found.message}; {suspect.message}"
    return replace(found, status=Status.REFERENCE_SUSPECT, message=message, op=suspect.op)


def _among_jittered(built: BuiltModel, references: References, device: Sequence[Leaf]) -> Verdict:
    """Judged among runs that round otherwise; more of them while they explain more, but not all."""
    found = judge(device, references)
    recording = _attempt(lambda: record(built))
    if recording is None:
        return found
    over = found.metrics.elements_over or 0
    runs: tuple[tuple[Leaf, ...], ...] = ()
    done, count = 0, RUNS
    while True:
        for seed in range(done, count):
            run = _attempt(partial(run_jittered, built, seed, recording))
            runs += () if run is None else (run,)
        found = judge(device, replace(references, jittered=runs))
        left = found.metrics.elements_over or 0
        if found.status is not Status.DIVERGENT or not 0 < left < over or count >= MOST_RUNS:
            return _beside_honest(found, device, references, runs)
        over, done, count = left, count, 2 * count


def _beside_honest(
    found: Verdict, device: Sequence[Leaf], references: References, runs: Sequence[Sequence[Leaf]]
) -> Verdict:
    """The verdict, withdrawn where a run of the reference itself, rounded otherwise, would fail a first look as well.

    Some models jump: a gradient has another value on the other side of a ReLU's zero, and each run steps over others.
    Such a jump moves whole rows, which no other run need show. So every limit that the device exceeds at first look
    must be exceeded by one and the same honest run too, and nearly as far, or the verdict stands.
    """
    if found.status is Status.REFERENCE_SUSPECT:
        wanted: dict[str, float] = {}
    elif found.status is Status.DIVERGENT:
        wanted = _exceeded(judge(device, References(references.reference, references.control)))
        if not wanted:
            return found
    else:
        return found
    for run in runs:
        honest = judge(run, References(references.reference, references.control))
        if honest.status not in (Status.DIVERGENT, Status.REFERENCE_SUSPECT):
            continue
        reached = _exceeded(honest)
        if any(value > HONEST * reached.get(measure, 0.0) for measure, value in wanted.items()):
            continue
        message = f"{found.message}; the reference, rounded otherwise, fails as well: no verdict is possible"
        ill, kind = Status.ILL_CONDITIONED, NumericClass.ILL_CONDITIONED
        return replace(found, status=ill, numeric_class=kind, message=message)
    return found


def _exceeded(verdict: Verdict) -> dict[str, float]:
    """By how much the leaves that are divergent exceed each limit at worst; none where what failed has no measure."""
    worst: dict[str, float] = {}
    for leaf in verdict.leaves:
        if leaf.status is not Status.DIVERGENT:
            continue
        for measure, limit in _LIMITS.items():
            value = getattr(leaf.metrics, measure) or 0.0
            if value > limit:
                worst[measure] = max(worst.get(measure, 0.0), value)
    return worst


def _attempt(run: Callable[[], T]) -> T | None:
    """What it gives; None if the model raises there, except for want of memory."""
    try:
        return run()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
