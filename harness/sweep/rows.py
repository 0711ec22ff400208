"""From what the workers say of a row to the row."""

from __future__ import annotations

from harness.records import Row, RowKey, Stage, Status, fault_of
from harness.sweep.messages import ModelFacts, Outcome


def not_started(kind: str, why: str) -> Outcome:
    """No worker of that kind can be had: nothing was measured."""
    return Outcome(Status.ENVIRONMENT_ERROR, message=f"no worker for {kind} could be started: {why}")


def not_exported(why: str) -> Outcome:
    """The model runs, but there is no graph of it for a backend that needs one."""
    return Outcome(Status.SKIPPED, Stage.EXPORT, message=f"limit of the route: torch.export refuses this model: {why}")


def as_row(key: RowKey, seed: int, outcome: Outcome, seconds: float) -> Row:
    """The row that says what became of `key`; `seconds` is its wall time in its workers."""
    facts = outcome.facts or ModelFacts()
    status = outcome.status or Status.ENVIRONMENT_ERROR
    return Row(
        **key.model_dump(),
        status=status,
        stage=outcome.stage,
        at_fault=fault_of(status, outcome.stage),
        numeric_class=outcome.numeric_class,
        op=outcome.op,
        message=outcome.message,
        detail=outcome.detail,
        family=facts.family,
        source=facts.source,
        modality=facts.modality,
        reduced=facts.reduced,
        parameters=facts.parameters,
        route=outcome.route,
        op_counts=dict(outcome.executed or facts.op_counts),
        fallback_ops=outcome.fallback,
        substituted=outcome.substituted,
        metrics=outcome.metrics,
        stage_seconds=dict(outcome.stage_seconds),
        seconds=round(seconds, 3),
        peak_memory_mib=outcome.peak_memory_mib,
        weights=facts.weights,
        observability=facts.observability,
        hidden_states=facts.hidden_states,
        isa=facts.isa,
        findings=outcome.findings,
        seed=seed,
    )
