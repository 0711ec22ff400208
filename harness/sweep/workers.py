"""The two kinds of Ray actors: reference workers and backend workers. Each runs one model at a time, for long.

Nothing that a model or a backend raises leaves a worker: it becomes an `Outcome`. What kills the process is seen by
the driver, which asks the board (`harness.sweep.cluster`) in which stage that was.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.records import Metrics, RowKey, Stage, Status
from harness.sweep.clock import StageClock
from harness.sweep.messages import Evidence, Outcome, Payload, Settings, Started, Task
from harness.sweep.process import keep_stderr, memory_limit, peak_memory, settle

if TYPE_CHECKING:
    from harness.backends.base import BackendError, Observation


REJECTIONS = (Status.RUNTIME_ERROR, Status.COMPILE_ERROR, Status.LOWERING_ERROR)
"""How a backend says that it does not take an input, where the reference does not take it either."""


class Worker:
    """What both kinds share: start-up, threads, the memory limit, the log that outlives the process."""

    def __init__(self, settings: Settings, board: Any) -> None:
        self._settings, self._board = settings, board
        # Before torch is imported: one size of thread pools, and no network from inside a model.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(settings.threads)
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._log = keep_stderr(settings.log)
        warnings.filterwarnings("ignore")
        os.environ["CALIPERS_PYTHON_PATH"] = os.pathsep.join(settings.search_path)
        sys.path[:0] = [p for p in settings.search_path if p not in sys.path]

    def _limited(self) -> contextlib.AbstractContextManager[None]:
        return memory_limit(self._settings.memory_gib)

    def _clock(self) -> StageClock:
        import ray

        return StageClock(lambda stage: ray.get(self._board.enter.remote(self._settings.worker, stage.value)))

    def _started(self) -> Started:
        import ray
        import torch

        torch.set_num_threads(self._settings.threads)
        settle()
        node = ray.get_runtime_context().get_node_id()
        return Started(os.getpid(), node, torch.backends.cpu.get_cpu_capability())


class ReferenceWorker(Worker):
    """Builds models, runs the reference and its controls, exports."""

    def start(self) -> Started:
        """Imports what building models takes, so that no model pays for it."""
        from harness.sweep.transport import register
        from model_zoo.sources import source

        register()
        for name in self._settings.sources:
            if library := source(name).library:
                importlib.import_module(library)
        _warm_up()
        return self._started()

    def prepare(self, task: Task) -> tuple[Outcome, Payload | None]:
        """Reference, fp64 control and export of one model. An outcome without status goes on to the backends."""
        import ray

        from harness.sweep.preparation import NothingToCompare, Preparation

        def known(graph: str, measured: float | None) -> float | None:
            share: float | None = ray.get(self._board.observability.remote(graph, measured))
            return share

        clock = self._clock()
        preparation = Preparation(task, clock, known)
        with peak_memory() as peak, self._limited():
            try:
                payload = preparation.run()
            except NothingToCompare as error:
                payload, outcome = None, Outcome(Status.SKIPPED, clock.current, message=str(error))
            except BaseException as error:
                payload, outcome = None, _model_failure(error, clock)
            else:
                outcome = Outcome(None, no_program=preparation.no_program)
            settle()
            return replace(
                outcome,
                facts=preparation.facts,
                findings=tuple(preparation.findings),
                stage_seconds=clock.seconds,
                peak_memory_mib=peak(),
            ), payload

    def confirm(self, payload: Payload, evidence: Evidence) -> Outcome:
        """Judges a doubted row again, beside further references."""
        from harness.sweep.preparation import build, looked_at_again

        clock = self._clock()
        with self._limited():
            try:
                with clock.stage(Stage.BUILD):
                    built = build(payload.task)
                verdict = looked_at_again(built, payload, evidence, clock)
                del built
            except BaseException as error:
                return _harness_failure(error, clock)
            finally:
                settle()
        return _judged(verdict, clock)


class BackendWorker(Worker):
    """Runs models on one backend in one mode, and judges them."""

    def start(self, backend: str, mode: str) -> Started:
        """Activates the backend; `Unavailable` passes through."""
        from harness.backends import load_backend
        from harness.sweep.transport import register

        register()
        self._backend = load_backend(backend)
        self._backend.activate(mode, self._settings.threads)
        return self._started()

    def run(self, key: RowKey, payload: Payload) -> tuple[Outcome, Evidence | None]:
        """Runs one model and judges it. What a second look needs comes back, as the second part, if there is doubt."""
        from harness.backends.base import BackendError

        clock = self._clock()
        with peak_memory() as peak, self._limited():
            try:
                outcome, evidence = self._judge(key, payload, clock)
            except BackendError as error:
                evidence, outcome = None, self._failed(error, clock)
            except BaseException as error:
                return _harness_failure(error, clock), None
            finally:
                settle()
            return replace(outcome, stage_seconds=clock.seconds, peak_memory_mib=peak()), evidence

    def _judge(self, key: RowKey, payload: Payload, clock: StageClock) -> tuple[Outcome, Evidence | None]:
        from harness.backends.base import BackendError
        from harness.numerics import Raised, References, judge
        from harness.numerics.probes import ignored_message

        references = References(payload.leaves, payload.control, aliases=payload.aliases)
        try:
            compiled = self._compiled(key, payload, clock)
            with clock.stage(Stage.RUN):
                seen = self._backend.run(compiled)
        except BackendError as error:
            if isinstance(payload.leaves, Raised) and error.status in REJECTIONS:
                return _judged(judge(Raised(error.message), references), clock), None
            raise
        with clock.stage(Stage.JUDGE):
            verdict = judge(seen.leaves, references, seen.aliases)
            if not verdict.status.is_pass and (ignored := ignored_message(key.model, seen.leaves, payload.leaves)):
                verdict = replace(verdict, message=f"{ignored}; {verdict.message}")
        outcome = replace(
            _judged(verdict, clock),
            executed=dict(seen.executed),
            fallback=seen.fallback,
            substituted=seen.substituted,
            findings=_text_findings(payload, seen),
        )
        if verdict.needs_second_look:
            return replace(outcome, doubted=True), Evidence(seen.leaves)
        if not verdict.status.is_pass:
            return outcome, None
        return self._looked_further(outcome, compiled, seen, payload, clock)

    def _looked_further(
        self, outcome: Outcome, compiled: object, seen: Observation, payload: Payload, clock: StageClock
    ) -> tuple[Outcome, Evidence | None]:
        """Of a row that passes: whether the device gives the same when run again, and other outputs for other inputs.

        A row whose outputs stay as they are is doubted; whether the model's should change, the reference says then.
        """
        from harness.backends.base import BackendError
        from harness.numerics import Raised
        from harness.numerics.determinism import first_difference
        from harness.numerics.inputs import unmoved

        if "determinism" in payload.task.checks:
            with clock.stage(Stage.RUN):
                again = self._backend.run(compiled)
            if difference := first_difference(seen.leaves, again.leaves):
                more = f"the device gives other bits when run again: {difference}"
                outcome = replace(outcome, findings=(*outcome.findings, more))
        if payload.further and (line := self._gated(outcome.metrics, compiled, payload, clock)):
            outcome = replace(outcome, findings=(*outcome.findings, line))
        if payload.second_inputs is None:
            return outcome, None
        other: Any
        with clock.stage(Stage.RUN):
            try:
                other = self._backend.run(compiled, payload.second_inputs).leaves
            except BackendError as error:
                other = Raised(error.message)
        with clock.stage(Stage.JUDGE):
            doubted = isinstance(other, Raised) or bool(unmoved(seen.leaves, other))
        evidence = Evidence(seen.leaves, payload.second_inputs, other) if doubted else None
        return replace(outcome, doubted=doubted), evidence

    def _gated(self, first: Metrics, compiled: object, payload: Payload, clock: StageClock) -> str:
        """A line if the device's errors over several inputs are not distributed as the reference's are."""
        from harness.numerics import References, judge
        from harness.numerics.gates import gate

        found = [first]
        for inputs, leaves, control in payload.further:
            with clock.stage(Stage.RUN):
                seen = self._backend.run(compiled, inputs)
            with clock.stage(Stage.JUDGE):
                found.append(judge(seen.leaves, References(leaves, control)).metrics)
        over = gate(found)
        return "" if over is None or over.passes else f"the gate over several inputs is not passed: {over}"

    def _failed(self, error: BackendError, clock: StageClock) -> Outcome:
        return Outcome(
            error.status,
            clock.current,
            error.op,
            error.message,
            error.detail,
            must_restart=self._must_restart(error.status),
        )

    def _compiled(self, key: RowKey, payload: Payload, clock: StageClock) -> object:
        """The model, lowered and compiled, ready to run."""
        from harness.backends.base import Needs, Work
        from harness.sweep.preparation import build

        backend, built = self._backend, None
        if backend.needs is Needs.MODULE:
            with clock.stage(Stage.BUILD):
                built = build(payload.task)
        work = Work(key, payload.task.seed, lambda: built or build(payload.task), payload.program)
        with clock.stage(Stage.LOWER):
            lowered = backend.lower(work)
        with clock.stage(Stage.COMPILE):
            return backend.compile(lowered)

    def _must_restart(self, status: Status) -> bool:
        harmless = (Status.UNSUPPORTED_OP, Status.SKIPPED)
        return status is Status.OUT_OF_MEMORY or (self._backend.restart_after_error and status not in harmless)


def _text_findings(payload: Payload, seen: Observation) -> tuple[str, ...]:
    """What the differences mean for the text that a model decodes."""
    from harness.numerics.decoding import agreement

    if payload.task.workload != "decoding":
        return ()
    text = agreement(seen.leaves, payload.leaves, payload.control)
    first = "" if text.first_difference is None else f", the first other token at step {text.first_difference}"
    return (f"{text.agreement:.1%} of the tokens agree, {text.near_ties} of them in near-ties{first}",)


def _judged(verdict: Any, clock: StageClock) -> Outcome:
    passed = verdict.status.is_pass
    return Outcome(
        verdict.status,
        stage=None if passed else Stage.RUN,
        op=verdict.op,
        message=verdict.message,
        numeric_class=verdict.numeric_class,
        metrics=verdict.metrics,
        stage_seconds=clock.seconds,
    )


def _model_failure(error: BaseException, clock: StageClock) -> Outcome:
    """What it means that `error` came up before a backend was asked."""
    from harness.backends.base import is_out_of_memory, one_line, traceback_tail
    from model_zoo.spec import InputsUnknown, ZooError

    stage = clock.current or Stage.BUILD
    message = one_line(error)
    if is_out_of_memory(error):
        status = Status.OUT_OF_MEMORY
        message = f"memory limit reached in stage {stage}: {message}"
    elif isinstance(error, InputsUnknown):
        status = Status.INPUT_ERROR
    elif stage is Stage.BUILD:
        status = Status.LOAD_ERROR
    else:
        status = Status.REFERENCE_ERROR
    return Outcome(
        status,
        stage,
        message=message,
        detail="" if isinstance(error, ZooError) else traceback_tail(error),
        stage_seconds=clock.seconds,
        must_restart=status is Status.OUT_OF_MEMORY or not isinstance(error, Exception),
    )


def _harness_failure(error: BaseException, clock: StageClock) -> Outcome:
    from harness.backends.base import is_out_of_memory, one_line, traceback_tail

    status = Status.OUT_OF_MEMORY if is_out_of_memory(error) else Status.ENVIRONMENT_ERROR
    return Outcome(
        status,
        clock.current,
        message=f"the harness failed: {one_line(error)}",
        detail=traceback_tail(error),
        numeric_class=None,
        stage_seconds=clock.seconds,
        must_restart=True,
    )


def _warm_up() -> None:
    """Exports a layer, so that no model pays for what export imports at its first call."""
    import torch

    from harness.backends.program import Program

    Program.capture(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), {})
