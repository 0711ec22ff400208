"""What a reference worker does with one model: builds it, runs the reference and its control, exports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.records import Stage
from harness.sweep.clock import StageClock
from harness.sweep.messages import Evidence, ModelFacts, Payload, Task

if TYPE_CHECKING:
    from harness.numerics import Verdict
    from model_zoo.spec import BuiltModel

BLIND = 0.8
"""Observability below which a model is judged on hidden states too."""

Known = Callable[[str, float | None], float | None]
"""Asks the board for a graph's observability, or tells it."""


class NothingToCompare(Exception):
    """The row cannot be measured, and nobody is to blame; the message is one line."""


class Preparation:
    """One model on its way to the backends. After `run`, or where it raised, the attributes say what is known."""

    def __init__(self, task: Task, clock: StageClock, known: Known) -> None:
        self.task, self._clock, self._known = task, clock, known
        self.facts = facts_of(task)
        self.findings: list[str] = []
        self.no_program = ""
        """Why the model could not be exported, although it runs."""

    def run(self) -> Payload:
        """Everything that the rows of the task share. What the model raises passes through."""
        with self._clock.stage(Stage.BUILD):
            built = build(self.task)
        self.facts = replace(
            self.facts,
            family=built.family,
            modality=built.modality,
            reduced=built.reduced,
            parameters=built.parameters,
        )
        leaves = self._reference(built)
        control = self._control(built)
        program = self._export(built) if self.task.program_for else None
        return Payload(leaves, control, program, self.task)

    def _reference(self, built: BuiltModel) -> Any:
        import torch

        from harness.backends.reference import run_reference

        with self._clock.stage(Stage.REFERENCE):
            run = run_reference(built)
        self.facts = replace(self.facts, op_counts=run.op_counts, isa=torch.backends.cpu.get_cpu_capability())
        if not any(isinstance(leaf.value, torch.Tensor) for leaf in run.leaves):
            raise NothingToCompare("the model returns no tensor, so there is nothing to compare")
        return run.leaves

    def _control(self, built: BuiltModel) -> Any:
        from harness.backends.double import ControlUnavailable, run_control

        with self._clock.stage(Stage.CONTROL):
            try:
                return run_control(built)
            except ControlUnavailable:
                return None

    def _export(self, built: BuiltModel) -> Any:
        from harness.backends.base import is_out_of_memory, one_line
        from harness.backends.program import Program

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
    from harness.backends.reference import run_second_path
    from harness.numerics import References, judge

    with clock.stage(Stage.CONTROL):
        second = run_second_path(built)
    with clock.stage(Stage.JUDGE):
        return judge(evidence.leaves, References(payload.leaves, payload.control, second))


def build(task: Task) -> BuiltModel:
    """The model of a task, in its dtype."""
    import torch

    from harness.backends.copies import cast
    from model_zoo.sources import build

    built = build(task.model, task.seed)
    return built if task.dtype == "float32" else cast(built, getattr(torch, task.dtype))


def facts_of(task: Task) -> ModelFacts:
    """What is known of a model before it is built."""
    return ModelFacts(source=task.model.partition(":")[0], family=task.family, weights=task.weights)
