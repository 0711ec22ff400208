"""Faults planted on purpose, and whether the verdict sees them: what `calipers selftest` does.

Each fault is a recipe of the backend `faulty` in one model, judged as a row of a sweep is. A fault that changes no bit
of the outputs was not planted. One that moves them by less than the budget's own floor cannot be seen by any judge of
these outputs, and is counted apart; all others must be caught, and under a status that names what is wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.backends.base import BackendError, Observation, Work, one_line
from harness.backends.copies import cast
from harness.backends.double import ControlUnavailable
from harness.backends.reference import run_control, run_reference
from harness.backends.tree import Leaf
from harness.faulty.backend import NONE, Faulty
from harness.faulty.floor import Movement, movement
from harness.faulty.recipe import Kind, Recipe
from harness.faulty.recipes import RECIPES
from harness.faulty.score import Planted, Score
from harness.faulty.subjects import IN_BF16, MODELS, ONLY, single_ops
from harness.numerics import References, judge
from harness.numerics.inputs import unmoved
from harness.records import RowKey, Status
from harness.sweep.clock import StageClock
from harness.sweep.messages import Evidence, Payload, Task
from harness.sweep.preparation import looked_at_again
from model_zoo.inputs.second import second_inputs
from model_zoo.sources import build
from model_zoo.spec import BuiltModel

PER_MODEL = 5
"""Faults planted in each real model."""
SEED = 0
HONEST = (NONE, Kind.HARMLESS)
"""Kinds of runs that must pass."""
_WITHOUT_A_TRACE = frozenset(
    r.name for r in RECIPES.values() if r.kind in (Kind.HIDDEN_FALLBACK, Kind.NOT_EXECUTED) or r.what == "run"
)
"""Recipes that leave the outputs for the first inputs as they should be."""


def selftest(quick: bool = False, listener: Callable[[str, int, int], None] = lambda model, done, total: None) -> Score:
    """Plants the faults and judges them, one model per core at a time; `listener` hears of each model that is done.

    `quick` is a sample: every ninth real model and every fourth single op, in this process, and no deaths.
    """
    chosen = [*MODELS[::9], *single_ops()[::4]] if quick else [*MODELS, *single_ops()]
    runs = [(model, "float32") for model in chosen] + [(model, "bfloat16") for model in IN_BF16 if not quick]
    found: list[Planted] = []
    for done, (model, planted) in enumerate(_examined(runs, parallel=not quick), start=1):
        found += planted
        listener(model, done, len(runs))
    if not quick:
        found += deaths()
    return Score(
        planted=tuple(p for p in found if p.kind not in HONEST),
        honest=tuple(p for p in found if p.kind in HONEST),
        quick=quick,
    )


def examine(model: str, wanted: int | None = None, dtype: str = "float32") -> list[Planted]:
    """Runs one model as it should be, in several ways, and then with up to `wanted` faults, by default all that apply.

    Reference and control are had once; a fault without an effect is replaced by the next.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    subject = _Subject.of(model, dtype)
    faults, harmless = _recipes_for(subject, random.Random(f"{model} {dtype}"))
    honest = [found for recipe in (None, *harmless) if (found := subject.judged(recipe))]
    planted: list[Planted] = []
    for recipe in faults:
        if wanted is not None and len(planted) == wanted:
            break
        if found := subject.judged(recipe):
            planted.append(found)
    return [*honest, *planted]


def deaths(
    model: str = "python:harness.faulty.subjects:linear", seconds: float = 30, memory_gib: float = 4
) -> list[Planted]:
    """The faults that a process does not survive, and two that the driver must see, through a real sweep."""
    from harness.sweep.config import BackendChoice, Limits, Models, SweepConfig
    from harness.sweep.run import sweep

    recipes = [r for r in RECIPES.values() if not r.in_process or r.kind is Kind.NOT_EXECUTED or r.what == "all"]
    config = SweepConfig(
        models=Models(include=[model]),
        backends=[BackendChoice(name=Faulty.name, mode=mode) for mode in (NONE, *(r.name for r in recipes))],
        limits=Limits(seconds=seconds, memory_gib=memory_gib),
    )
    scratch = Path(tempfile.mkdtemp(prefix="calipers-selftest-"))
    try:
        run, _ = sweep(config, scratch / "run")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found = []
    for row in run.rows:
        recipe = RECIPES.get(row.mode)
        right = row.status in recipe.right if recipe else row.status.is_pass
        kind = recipe.kind.value if recipe else NONE
        found.append(
            Planted(row.mode, kind, row.model, row.dtype, row.family, (), row.status, right, None, row.message)
        )
    return found


def _examined(runs: Sequence[tuple[str, str]], parallel: bool) -> Iterator[tuple[str, list[Planted]]]:
    if not parallel:
        for model, dtype in runs:
            yield model, examine(model, _wanted(model), dtype)
        return
    import ray

    from harness.sweep.cluster import Cluster

    with Cluster():
        remote = ray.remote(num_cpus=1, max_retries=0)(examine)
        running = {remote.remote(model, _wanted(model), dtype): model for model, dtype in runs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(done), ray.get(done)


def _wanted(model: str) -> int | None:
    return None if model.startswith("python:") else PER_MODEL


def _recipes_for(subject: _Subject, chance: random.Random) -> tuple[list[Recipe], list[Recipe]]:
    """The faults of ops that the model makes, the kinds in turn and in another order for each model; the harmless."""
    ops = {op.removeprefix("aten::") for op in subject.op_counts}
    single = subject.built.spec.source == "python"
    only = next((kind for end, kind in ONLY.items() if single and subject.built.spec.name.endswith(end)), None)
    fit = [r for r in RECIPES.values() if r.in_process and (ops.intersection(r.ops) or (not single and not r.ops))]
    harmless = [r for r in fit if r.kind is Kind.HARMLESS]
    faults = [r for r in fit if r.kind is not Kind.HARMLESS and only in (None, r.kind)]
    chance.shuffle(faults)
    turns: Counter[Kind] = Counter()
    ranked = []
    for recipe in faults:
        ranked.append((turns[recipe.kind], recipe))
        turns[recipe.kind] += 1
    return [recipe for _, recipe in sorted(ranked, key=lambda pair: pair[0])], harmless


@dataclass
class _Subject:
    """A model with its references and what the device without a fault gives."""

    built: BuiltModel
    dtype: str
    reference: Sequence[Leaf]
    control: Sequence[Leaf] | None
    op_counts: dict[str, int]
    honest: Sequence[Leaf] = ()

    @classmethod
    def of(cls, model: str, dtype: str) -> _Subject:
        torch.set_num_threads(1)
        built = build(model, SEED)
        built = built if dtype == "float32" else cast(built, getattr(torch, dtype))
        run = run_reference(built)
        try:
            control = run_control(built)
        except ControlUnavailable:
            control = None
        return cls(built, dtype, run.leaves, control, run.op_counts)

    def judged(self, recipe: Recipe | None) -> Planted | None:
        """The verdict on the device with this fault; None if the fault has no effect here."""
        backend = Faulty()
        backend.activate(recipe.name if recipe else NONE, threads=1)
        key = RowKey(model=str(self.built.spec), backend=backend.name, mode=backend.mode, dtype=self.dtype)
        moved: Movement | None = None
        try:
            compiled = backend.compile(backend.lower(Work(key, SEED, lambda: self.built)))
            seen = backend.run(compiled)
            if recipe is None:
                self.honest = seen.leaves
            moved = movement(seen.leaves, self.honest, self.reference, self.control)
            if recipe and not moved.any and recipe.name not in _WITHOUT_A_TRACE:
                return None
            hit = tuple(backend.hit)
            status, message = self._verdict(seen, lambda inputs: backend.run(compiled, inputs))
        except BackendError as error:
            hit, status, message = tuple(backend.hit), error.status, error.message
        except Exception as error:  # of the judge: a row of a sweep would say the same
            hit, status, message = tuple(backend.hit), Status.ENVIRONMENT_ERROR, one_line(error)
        return Planted(
            recipe=recipe.name if recipe else NONE,
            kind=recipe.kind.value if recipe else NONE,
            model=str(self.built.spec),
            dtype=self.dtype,
            family=self.built.family,
            ops=hit if recipe and recipe.ops else (),
            status=status,
            right=status in recipe.right if recipe else status.is_pass,
            movement=moved.in_floors if moved and recipe else None,
            message=message,
        )

    def _verdict(self, seen: Observation, run: Callable[[Sequence[Any]], Observation]) -> tuple[Status, str]:
        """What a sweep would say: the judge; a second look if in doubt; other inputs; whether ops fell back."""
        verdict = judge(seen.leaves, References(self.reference, self.control))
        evidence = Evidence(seen.leaves) if verdict.needs_second_look else None
        if verdict.status.is_pass and evidence is None and (inputs := second_inputs(self.built, SEED)) is not None:
            other = run(inputs).leaves
            evidence = Evidence(seen.leaves, inputs, other) if unmoved(seen.leaves, other) else None
        if evidence is not None:
            task = Task(str(self.built.spec), self.dtype, "gaussian", SEED, ())
            payload = Payload(self.reference, self.control, None, task)
            verdict = looked_at_again(self.built, payload, evidence, StageClock(lambda stage: None))
        if verdict.status is Status.PASS and seen.fallback:
            return Status.PASS_WITH_FALLBACK, ", ".join(seen.fallback)
        return verdict.status, verdict.message
