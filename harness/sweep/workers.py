"""The two kinds of Ray actors: reference workers and backend workers. Each runs one model at a time, for long.

Nothing that a model or a backend raises leaves a worker: it becomes an `Outcome`. What kills the process is seen by
the driver, which asks the board (`harness.sweep.cluster`) in which stage that was.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.records import RowKey, Stage, Status
from harness.sweep.messages import ModelFacts, Outcome, Payload, Settings, Started, Task
from harness.sweep.process import keep_stderr, memory_limit, peak_memory, settle

if TYPE_CHECKING:
    from harness.backends.base import Observation


class StageClock:
    """Measures stages in seconds and tells the board which one is running."""

    def __init__(self, tell: Callable[[Stage], None]) -> None:
        self._tell = tell
        self.current: Stage | None = None
        self.seconds: dict[Stage, float] = {}

    @contextlib.contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """The block is that stage; an exception leaves `current` at it."""
        self._tell(stage)
        self.current = stage
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


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
        import torch

        from harness.backends import reference
        from harness.backends.base import is_out_of_memory, one_line
        from harness.backends.double import ControlUnavailable, run_control
        from harness.backends.program import Program

        clock = self._clock()
        facts = facts_of(task)
        with peak_memory() as peak, self._limited():
            try:
                with clock.stage(Stage.BUILD):
                    built = _build(task)
                facts = replace(
                    facts,
                    family=built.family,
                    modality=built.modality,
                    reduced=built.reduced,
                    parameters=built.parameters,
                )
                with clock.stage(Stage.REFERENCE):
                    run = reference.run_reference(built)
                facts = replace(facts, op_counts=run.op_counts)
                if not any(isinstance(leaf.value, torch.Tensor) for leaf in run.leaves):
                    message = "the model returns no tensor, so there is nothing to compare"
                    nothing = Outcome(Status.SKIPPED, Stage.REFERENCE, message=message, stage_seconds=clock.seconds)
                    return replace(nothing, facts=facts, peak_memory_mib=peak()), None
                control = None
                with clock.stage(Stage.CONTROL), contextlib.suppress(ControlUnavailable):
                    control = run_control(built)
                program, no_program = None, ""
                if task.program_for:
                    with clock.stage(Stage.EXPORT):
                        try:
                            program = Program.capture(built.module, built.args, built.kwargs)
                        except Exception as error:
                            if is_out_of_memory(error):
                                raise
                            no_program = one_line(error)
            except BaseException as error:
                failed = _model_failure(error, clock)
                return replace(failed, facts=facts, peak_memory_mib=peak()), None
            finally:
                built = None
                settle()
        going_on = Outcome(
            None, facts=facts, stage_seconds=clock.seconds, peak_memory_mib=peak(), no_program=no_program
        )
        return going_on, Payload(run.leaves, control, program)

    def confirm(self, task: Task, payload: Payload, device_leaves: Any) -> Outcome:
        """Judges a failing row again, beside the reference's second path."""
        from harness.backends import reference
        from harness.numerics import References, judge

        clock = self._clock()
        with self._limited():
            try:
                with clock.stage(Stage.BUILD):
                    built = _build(task)
                with clock.stage(Stage.CONTROL):
                    second = reference.run_second_path(built)
                with clock.stage(Stage.JUDGE):
                    verdict = judge(device_leaves, References(payload.leaves, payload.control, second))
            except BaseException as error:
                return _harness_failure(error, clock)
            finally:
                built = None
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

    def run(self, key: RowKey, seed: int, payload: Payload) -> tuple[Outcome, Any]:
        """Runs one model and judges it. Device outputs come back, as the second part, only if the verdict fails."""
        from harness.backends.base import BackendError
        from harness.numerics import References, judge

        clock = self._clock()
        with peak_memory() as peak, self._limited():
            try:
                seen = self._observe(key, seed, payload, clock)
                with clock.stage(Stage.JUDGE):
                    verdict = judge(seen.leaves, References(payload.leaves, payload.control))
            except BackendError as error:
                failed = Outcome(
                    error.status,
                    clock.current,
                    error.op,
                    error.message,
                    error.detail,
                    stage_seconds=clock.seconds,
                    peak_memory_mib=peak(),
                    must_restart=self._must_restart(error.status),
                )
                return failed, None
            except BaseException as error:
                return _harness_failure(error, clock), None
            finally:
                settle()
        outcome = replace(
            _judged(verdict, clock),
            executed=dict(seen.executed),
            fallback=seen.fallback,
            substituted=seen.substituted,
            peak_memory_mib=peak(),
        )
        if outcome.status is Status.PASS and seen.fallback:
            outcome = replace(outcome, status=Status.PASS_WITH_FALLBACK)
        return outcome, None if verdict.status.is_pass else seen.leaves

    def _observe(self, key: RowKey, seed: int, payload: Payload, clock: StageClock) -> Observation:
        """What the backend gives; the model and what became of it are freed on return."""
        from harness.backends.base import Needs, Work

        task = Task(key.model, key.dtype, key.profile, seed, (key,))
        backend, built = self._backend, None
        if backend.needs is Needs.MODULE:
            with clock.stage(Stage.BUILD):
                built = _build(task)
        work = Work(key, seed, lambda: built or _build(task), payload.program)
        with clock.stage(Stage.LOWER):
            lowered = backend.lower(work)
        with clock.stage(Stage.COMPILE):
            compiled = backend.compile(lowered)
        with clock.stage(Stage.RUN):
            return backend.run(compiled)

    def _must_restart(self, status: Status) -> bool:
        harmless = (Status.UNSUPPORTED_OP, Status.SKIPPED)
        return status is Status.OUT_OF_MEMORY or (self._backend.restart_after_error and status not in harmless)


def facts_of(task: Task) -> ModelFacts:
    """What is known of a model before it is built."""
    return ModelFacts(source=task.model.partition(":")[0], family=task.family)


def _build(task: Task) -> Any:
    import torch

    from harness.backends.copies import cast
    from model_zoo.sources import build

    built = build(task.model, task.seed)
    return built if task.dtype == "float32" else cast(built, getattr(torch, task.dtype))


def _judged(verdict: Any, clock: StageClock) -> Outcome:
    passed = verdict.status.is_pass
    return Outcome(
        verdict.status,
        stage=None if passed else Stage.RUN,
        message=verdict.message,
        numeric_class=verdict.numeric_class,
        metrics=verdict.metrics,
        stage_seconds=clock.seconds,
    )


def _model_failure(error: BaseException, clock: StageClock) -> Outcome:
    """What it means that `error` came up before a backend was asked."""
    from harness.backends.base import is_out_of_memory, one_line, traceback_tail
    from model_zoo.spec import InputsUnknown

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
        detail=traceback_tail(error),
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
