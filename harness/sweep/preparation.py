"""What a reference worker does with one model: builds it, runs the reference and its control, exports it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import model_zoo.sources
from harness.backends.base import is_out_of_memory, one_line
from harness.backends.copies import cast, with_inputs
from harness.backends.double import ControlUnavailable, run_control
from harness.backends.hidden import with_hidden_states
from harness.backends.program import Program
from harness.backends.reference import run_reference
from harness.backends.tree import Aliases
from harness.backends.workloads import WorkloadUnfit, as_workload
from harness.numerics import Raised, References, Verdict, judge
from harness.numerics.determinism import first_difference
from harness.numerics.inputs import collapse
from harness.numerics.jitter import amplification
from harness.numerics.observability import LEAST, fingerprint, measure
from harness.numerics.second_look import second_look
from harness.records import Stage
from harness.sweep.clock import StageClock
from harness.sweep.messages import Evidence, Payload, Task, facts_of
from model_zoo.inputs.profiles import Profile, ProfileUnfit
from model_zoo.inputs.second import second_inputs
from model_zoo.spec import BuiltModel

CALLS, SECONDS = 8, 1.0
"""Op calls perturbed to measure observability, and for how long at most."""

GATE_INPUTS = 10
"""Inputs over which the gate looks, the row's own among them."""

Known = Callable[[str, float | None], float | None]
"""Asks the board for a graph's observability, or tells it."""


class NothingToCompare(Exception):
    """The row cannot be measured, and nobody is to blame; the message is one line."""


class Preparation:
    """One model on its way to the backends. After `run`, or where it raised, the attributes say what is known."""

    def __init__(self, task: Task, clock: StageClock, known: Known) -> None:
        self.task, self._clock, self._known = task, clock, known
        self.facts = replace(facts_of(task), isa=torch.backends.cpu.get_cpu_capability())
        self.findings: list[str] = []
        self._aliases: Aliases | None = None
        self.no_program = ""
        """Why the model could not be exported, although it runs."""

    def run(self) -> Payload:
        """Everything that the rows of the task share. What the model raises passes through."""
        with self._clock.stage(Stage.BUILD):
            built = self._built()
        self.facts = replace(
            self.facts,
            family=built.family,
            modality=built.modality,
            reduced=built.reduced,
            parameters=built.parameters,
        )
        leaves = self._reference(built)
        control = None if isinstance(leaves, Raised) else self._control(built)
        if control is not None and "observability" in self.task.checks and self.task.workload == "forward":
            share = self._observability(built, leaves, control)
            self.facts = replace(self.facts, observability=share)
            if share < LEAST and (shown := self._with_hidden_states(built)) is not None:
                built = shown
                leaves, control = self._reference(built), self._control(built)
        if "determinism" in self.task.checks and not isinstance(leaves, Raised):
            self._run_again(built, leaves)
        program = self._export(built) if self.task.program_for else None
        second: Any = None
        further: tuple[Any, ...] = ()
        if "gate" in self.task.checks and self.task.dtype != "float32" and control is not None:
            further = tuple(self._further(built))
        if "second-input" in self.task.checks and self.task.workload == "forward" and not isinstance(leaves, Raised):
            second = second_inputs(built, self.task.seed)
        return Payload(leaves, control, program, self.task, self._aliases, further, second)

    def _built(self) -> BuiltModel:
        try:
            return build(self.task)
        except (ProfileUnfit, WorkloadUnfit) as error:
            raise NothingToCompare(str(error)) from error

    def _reference(self, built: BuiltModel) -> Any:
        with self._clock.stage(Stage.REFERENCE):
            try:
                run = run_reference(built)
            except Exception as error:
                if is_out_of_memory(error) or not Profile(self.task.profile).expects_rejection:
                    raise
                return Raised(one_line(error))
        self.facts, self._aliases = replace(self.facts, op_counts=run.op_counts), run.aliases
        if not any(isinstance(leaf.value, torch.Tensor) for leaf in run.leaves):
            raise NothingToCompare("the model returns no tensor, so there is nothing to compare")
        return run.leaves

    def _run_again(self, built: BuiltModel, leaves: Any) -> None:
        with self._clock.stage(Stage.REFERENCE):
            difference = first_difference(leaves, run_reference(built).leaves)
        if difference:
            self.findings.append(f"the reference gives other bits when run again: {difference}")

    def _control(self, built: BuiltModel) -> Any:
        with self._clock.stage(Stage.CONTROL):
            try:
                return run_control(built)
            except ControlUnavailable:
                return None

    def _observability(self, built: BuiltModel, leaves: Any, control: Any) -> float:
        with self._clock.stage(Stage.OBSERVABILITY):
            graph = f"{fingerprint(built)} {self.task.weights}"
            known = self._known(graph, None)
            if known is not None:
                return known
            share = measure(built, leaves, control, calls=CALLS, seconds=SECONDS).share
            self._known(graph, share)
            return share

    def _with_hidden_states(self, built: BuiltModel) -> BuiltModel | None:
        """The model again, returning its hidden states; None where that cannot be: it is then judged without."""
        with self._clock.stage(Stage.OBSERVABILITY):
            try:
                shown = with_hidden_states(built)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                return None
        self.task = replace(self.task, hidden_states=True)
        self.facts = replace(self.facts, hidden_states=True)
        return shown

    def _further(self, built: BuiltModel) -> Iterator[tuple[list[Any], Any, Any]]:
        """Other inputs, each with the reference's outputs and the control's; none where none can be made safely."""
        for seed in range(1, GATE_INPUTS):
            if (inputs := second_inputs(built, self.task.seed + seed)) is None:
                return
            other = with_inputs(built, inputs)
            with self._clock.stage(Stage.REFERENCE):
                leaves = run_reference(other).leaves
            yield inputs, leaves, self._control(other)

    def _export(self, built: BuiltModel) -> Any:
        with self._clock.stage(Stage.EXPORT):
            try:
                return Program.capture(built.module, built.args, built.kwargs)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.no_program = one_line(error)
                return None


def looked_at_again(built: BuiltModel, payload: Payload, evidence: Evidence, clock: StageClock) -> Verdict:
    """The verdict on a doubted row, beside further references."""
    if evidence.second_leaves is None:
        with clock.stage(Stage.CONTROL):
            verdict = second_look(built, References(payload.leaves, payload.control), evidence.leaves)
            if verdict.status.is_pass:
                return verdict
            with contextlib.suppress(Exception):  # for show
                shown = verdict.metrics.model_copy(update={"amplification": amplification(built)})
                verdict = replace(verdict, metrics=shown)
            return verdict
    second: Any
    with clock.stage(Stage.REFERENCE):
        try:
            second = run_reference(with_inputs(built, evidence.second_inputs)).leaves
        except Exception as error:
            second = Raised(one_line(error))
    with clock.stage(Stage.JUDGE):
        if isinstance(evidence.second_leaves, Raised) or isinstance(second, Raised):
            return judge(evidence.second_leaves, References(second))
        return collapse(evidence.leaves, evidence.second_leaves, payload.leaves, second)


def build(task: Task) -> BuiltModel:
    """The model of a task: its inputs, its workload, its dtype, with its hidden states where they are asked for."""
    built = model_zoo.sources.build(task.model, task.seed, profile=task.profile, weights=task.weights)
    built = as_workload(built, task.workload)
    if task.dtype != "float32":
        built = cast(built, getattr(torch, task.dtype))
    return with_hidden_states(built) if task.hidden_states else built
