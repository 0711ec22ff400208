"""What travels between the driver and its workers, besides tensors. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.records import Metrics, NumericClass, RowKey, Stage, Status


@dataclass(frozen=True)
class Settings:
    """What a worker is started with."""

    worker: str
    """Its name on the board."""
    log: str
    """File that takes its stderr and, when it dies, its last frames."""
    threads: int
    memory_gib: float
    """How much one model may allocate beyond what the worker holds."""
    search_path: tuple[str, ...] = ()
    """Folders from which `python:` models are imported."""
    sources: tuple[str, ...] = ()
    """Sources of the models to come."""


@dataclass(frozen=True)
class Started:
    """What a worker says when it is ready."""

    pid: int
    node: str
    cpu_capability: str


@dataclass(frozen=True)
class Task:
    """One reference run and the rows that need it: same model, dtype, profile, workload and seed."""

    model: str
    dtype: str
    profile: str
    seed: int
    keys: tuple[RowKey, ...]
    program_for: tuple[str, ...] = ()
    """Those of the rows' backends that need the exported program."""
    workload: str = "forward"
    weights: str = "observable"
    checks: tuple[str, ...] = ()
    """What is looked at besides the outputs; see `SweepConfig.checks`."""
    hidden_states: bool = False
    """Whether the model returns its hidden states too."""

    @property
    def family(self) -> str:
        """What the id says of the family, for a row whose model could not be built."""
        return re.split(r"[:/]", self.model.partition(":")[2])[0 if self.model.startswith("transformers:") else -1]


@dataclass(frozen=True)
class ModelFacts:
    """What the reference worker learned about the model."""

    family: str = ""
    source: str = ""
    modality: str = ""
    reduced: bool = False
    parameters: int | None = None
    op_counts: Mapping[str, int] = field(default_factory=dict)
    weights: str = "observable"
    observability: float | None = None
    hidden_states: bool = False
    isa: str = ""


def facts_of(task: Task) -> ModelFacts:
    """What is known of a model before it is built."""
    return ModelFacts(source=task.model.partition(":")[0], family=task.family, weights=task.weights)


@dataclass(frozen=True)
class Outcome:
    """What a worker made of its part of a row. `status` is None while nothing is decided yet."""

    status: Status | None
    stage: Stage | None = None
    op: str | None = None
    message: str = ""
    detail: str = ""
    numeric_class: NumericClass | None = None
    metrics: Metrics = field(default_factory=Metrics)
    executed: Mapping[str, int] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    substituted: tuple[str, ...] = ()
    stage_seconds: Mapping[Stage, float] = field(default_factory=dict)
    peak_memory_mib: float | None = None
    facts: ModelFacts | None = None
    route: str = ""
    no_program: str = ""
    """Why the model could not be exported, although it runs."""
    must_restart: bool = False
    """Whether the worker should not run another model."""
    findings: tuple[str, ...] = ()
    """What else was seen, a line each."""
    doubted: bool = False
    """Whether the reference worker must look again before this counts."""

    def and_then(self, later: Outcome) -> Outcome:
        """Both parts as one: the later one decides, the stages add up."""
        seconds = dict(self.stage_seconds)
        for stage, more in later.stage_seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + more
        peaks = [p for p in (self.peak_memory_mib, later.peak_memory_mib) if p is not None]
        return replace(
            later,
            stage_seconds=seconds,
            facts=later.facts or self.facts,
            route=later.route or self.route,
            executed=later.executed or self.executed,
            fallback=later.fallback or self.fallback,
            substituted=later.substituted or self.substituted,
            peak_memory_mib=max(peaks) if peaks else None,
            numeric_class=later.numeric_class or self.numeric_class,
            metrics=self.metrics if later.metrics == Metrics() else later.metrics,
            findings=tuple(dict.fromkeys((*self.findings, *later.findings))),
        )


@dataclass(frozen=True)
class Payload:
    """What the reference worker hands to the backend workers. Holds tensors; stays in Ray's object store."""

    leaves: Any
    """`tuple[Leaf, ...]` of the reference, or `Raised` where it rejects the inputs."""
    control: Any
    """The same of the fp64 control, or None."""
    program: Any
    """`Program`, or None if no backend needs it."""
    task: Task
    """The task as it was run: hidden states are decided on the way."""
    aliases: Any = None
    """Which of the reference's outputs share memory with an input."""
    further: Any = ()
    """For the gate over several inputs: of each its flat leaves, the reference's outputs and the control's."""
    second_inputs: Any = None
    """Flat inputs, other than the model's own, on which its outputs should be others; None where there are none."""


@dataclass(frozen=True)
class Evidence:
    """What a backend worker hands to the reference worker that looks again. Holds tensors."""

    leaves: Any
    """The device's `tuple[Leaf, ...]`."""
    second_inputs: Any = None
    """Flat inputs on which the device was run too, if it is their outputs that are doubted."""
    second_leaves: Any = None
