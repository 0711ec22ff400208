"""The driver: hands rows to workers, keeps the deadlines, and closes every row that it opened.

Cores are shared out by slots. A slot stands for `threads` CPUs; at most as many calls run at once as there are slots,
whichever kind of worker they run on, so that nothing oversubscribes and neither side waits for the other. Rows that
are ready for their backend go first, so the work in flight stays bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError

from harness.records import Row, RowKey, Stage, Status
from harness.sweep.cluster import START_SECONDS, Cluster, Handle
from harness.sweep.deaths import cause_of_death
from harness.sweep.journal import Journal
from harness.sweep.messages import Outcome, Task, facts_of
from harness.sweep.rows import as_row, not_exported, not_started

START_TRIES = 3
"""Workers of a kind that may fail to start, one after another, before its rows are closed as not measurable."""


@dataclass
class Call:
    """Something that runs on a worker."""

    what: str
    """`start`, `prepare`, `run` or `confirm`."""
    worker: Handle
    refs: tuple[Any, ...]
    deadline: float
    since: float
    task: Task | None = None
    row: Waiting | None = None


@dataclass
class Waiting:
    """A row whose reference has run: it waits for its backend, or for the second reference."""

    key: RowKey
    task: Task
    payload: Any
    """Reference to the `Payload` in the object store."""
    so_far: Outcome
    seconds: float
    evidence: Any = None
    """Reference to the `Evidence` in the object store, for a row that is looked at again."""


@dataclass
class Tally:
    """What a sweep cost."""

    wall_seconds: float = 0.0
    """Wall time of the sweep, start of the first worker to the end of the last row."""
    work_seconds: dict[Stage, float] = field(default_factory=dict)
    """Seconds per stage; a reference shared by several rows counts once."""
    slots: int = 1
    second_looks: int = 0
    """Rows that were judged again beside further references."""
    starting_seconds: float = 0.0
    """Seconds of slots spent on starting workers."""
    call_seconds: float = 0.0
    """Seconds of slots spent on calls that ran models: the stages, and what moving tensors about costs."""


class Driver:
    """Runs tasks to the end. Keeps its workers between calls of `run`, so that a second sweep finds them warm."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        seconds: float,
        memory_gib: float,
        slots: int,
        threads: int,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster, self._seconds, self._memory_gib = cluster, seconds, memory_gib
        self._slots, self._threads, self._routes = slots, threads, routes or {}
        self._idle: dict[str, list[Handle]] = {}
        self._failed_starts: dict[str, int] = {}
        self._why: dict[str, str] = {}
        self.cpu_capability = ""

    def run(
        self,
        tasks: list[Task],
        journal: Journal,
        on_row: Callable[[Row], None] = lambda row: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Tally:
        """Closes every row of `tasks` in the journal. After `stopping()` no new row is opened."""
        self._journal, self._on_row = journal, on_row
        self._pending, self._ready, self._doubted = deque(tasks), deque[Waiting](), deque[Waiting]()
        self._calls: dict[Any, Call] = {}
        self._tally = Tally(slots=self._slots)
        begin = time.perf_counter()
        self._prewarm()
        while True:
            if stopping():
                self._pending.clear()
            self._dispatch()
            if not self._calls:
                break
            self._cluster.check_alive()
            wait = max(0.0, min(call.deadline for call in self._calls.values()) - time.monotonic())
            done, _ = ray.wait([c.refs[0] for c in self._calls.values()], timeout=min(wait, 0.5), fetch_local=False)
            for ref in done:
                self._finish(self._calls.pop(ref))
            for call in [c for c in self._calls.values() if time.monotonic() > c.deadline]:
                del self._calls[call.refs[0]]
                self._overdue(call)
        self._tally.wall_seconds = time.perf_counter() - begin
        return self._tally

    # Handing out.

    def _prewarm(self) -> None:
        """Starts the first worker of each side at once: each takes seconds to import what it needs."""
        first = next((key for task in self._pending for key in task.keys), None)
        if first is not None and self._slots > 1:
            for kind in ("reference", f"{first.backend}/{first.mode}"):
                if not self._idle.get(kind):
                    self._start(kind)

    def _dispatch(self) -> None:
        while len(self._calls) < self._slots:
            if not any(step() for step in (self._dispatch_confirm, self._dispatch_backend, self._dispatch_reference)):
                return

    def _dispatch_confirm(self) -> bool:
        if not self._doubted:
            return False
        if self._failed_starts.get("reference", 0) >= START_TRIES:
            self._unconfirmed(self._doubted.popleft(), self._why["reference"], 0.0)
            return True
        if (worker := self._worker("reference", len(self._doubted))) is None:
            return False
        row = self._doubted.popleft()
        ref = worker.actor.confirm.remote(row.payload, row.evidence)
        self._call("confirm", worker, (ref,), task=row.task, row=row)
        return True

    def _dispatch_backend(self) -> bool:
        for row in list(self._ready):
            kind = f"{row.key.backend}/{row.key.mode}"
            if self._failed_starts.get(kind, 0) >= START_TRIES:
                self._ready.remove(row)
                self._close(row, not_started(kind, self._why[kind]), 0.0)
                return True
            wanted = sum(f"{r.key.backend}/{r.key.mode}" == kind for r in self._ready)
            if (worker := self._worker(kind, wanted)) is not None:
                self._ready.remove(row)
                method = worker.actor.run.options(num_returns=2)
                refs = tuple(method.remote(row.key, row.payload))
                self._call("run", worker, refs, task=row.task, row=row)
                return True
        return False

    def _dispatch_reference(self) -> bool:
        # Payloads hold weights: no more of them wait than there are slots.
        if not self._pending or len(self._ready) + len(self._doubted) > self._slots:
            return False
        if self._failed_starts.get("reference", 0) >= START_TRIES:
            task = self._pending.popleft()
            self._journal.open_rows(task.keys)
            self._close_all(task, not_started("reference", self._why["reference"]), 0.0)
            return True
        if (worker := self._worker("reference", len(self._pending))) is None:
            return False
        task = self._pending.popleft()
        self._journal.open_rows(task.keys)
        refs = tuple(worker.actor.prepare.options(num_returns=2).remote(task))
        self._call("prepare", worker, refs, task=task)
        return True

    def _worker(self, kind: str, wanted: int) -> Handle | None:
        """An idle worker of that kind; where there is none, one is started, if work for it waits, and None given."""
        if idle := self._idle.get(kind):
            worker = idle.pop()
            self._cluster.begin(worker)
            return worker
        starting = sum(c.worker.kind == kind and c.what == "start" for c in self._calls.values())
        if starting < wanted and len(self._calls) < self._slots:
            self._start(kind)
        return None

    def _start(self, kind: str) -> None:
        worker, ref = self._cluster.start(kind, self._threads, self._memory_gib)
        self._call("start", worker, (ref,), seconds=START_SECONDS)

    def _call(
        self,
        what: str,
        worker: Handle,
        refs: tuple[Any, ...],
        *,
        task: Task | None = None,
        row: Waiting | None = None,
        seconds: float | None = None,
    ) -> None:
        now = time.monotonic()
        self._calls[refs[0]] = Call(what, worker, refs, now + (seconds or self._seconds), now, task, row)

    # Taking back.

    def _finish(self, call: Call) -> None:
        took = time.monotonic() - call.since
        if call.what == "start":
            self._tally.starting_seconds += took
        else:
            self._tally.call_seconds += took
        try:
            result = ray.get(call.refs[0])
        except RayError as error:
            self._lost(call, error, took)
            return
        if call.what == "start":
            call.worker.started = result
            self.cpu_capability = self.cpu_capability or result.cpu_capability
            self._failed_starts[call.worker.kind] = 0
            self._idle.setdefault(call.worker.kind, []).append(call.worker)
            return
        self._add_work(result)
        if result.must_restart:
            self._cluster.stop(call.worker)
        else:
            self._idle.setdefault(call.worker.kind, []).append(call.worker)
        self._went_on(call, result, took)

    def _went_on(self, call: Call, outcome: Outcome, took: float) -> None:
        """Takes a row, or the rows of a task, to its next step."""
        if call.what == "prepare":
            assert call.task is not None
            if outcome.status is not None:
                self._close_all(call.task, outcome, took)
                return
            share = took / len(call.task.keys)
            for key in call.task.keys:
                waiting = Waiting(key, call.task, call.refs[1], outcome, share)
                if outcome.no_program and key.backend in call.task.program_for:
                    self._close(waiting, not_exported(outcome.no_program), 0.0)
                else:
                    self._ready.append(waiting)
            return
        row = call.row
        assert row is not None
        if call.what == "run" and outcome.doubted:
            row.so_far, row.seconds = row.so_far.and_then(outcome), row.seconds + took
            row.evidence = call.refs[1]
            self._doubted.append(row)
            self._tally.second_looks += 1
            return
        if call.what == "confirm" and outcome.status in (Status.ENVIRONMENT_ERROR, Status.OUT_OF_MEMORY):
            self._unconfirmed(row, outcome.message, took)
            return
        self._close(row, outcome, took)

    def _unconfirmed(self, row: Waiting, why: str, took: float) -> None:
        """The second reference could not be had: the first verdict stands, and says so."""
        first = row.so_far
        note = f"{first.message} (not confirmed by a second reference: {why})".strip()
        self._close(row, replace(first, message=note, stage_seconds={}), took)

    def _overdue(self, call: Call) -> None:
        stage = self._cluster.last_stage(call.worker) if call.what != "start" else None
        self._cluster.stop(call.worker)
        took = time.monotonic() - call.since
        if call.what == "start":
            self._start_failed(call, f"not ready after {START_SECONDS:.0f} s")
            return
        message = f"no answer within {self._seconds:g} s, stopped in stage {stage}"
        self._ended(call, Outcome(Status.TIMEOUT, stage, message=message), took)

    def _lost(self, call: Call, error: Exception, took: float) -> None:
        """A call raised: the worker died, or the harness is at fault."""
        words = self._cluster.last_words(call.worker)
        if call.what == "start":
            self._cluster.stop(call.worker)
            cause = getattr(error, "cause", None) or error
            self._start_failed(call, str(cause).splitlines()[0] if str(cause) else type(cause).__name__)
            return
        stage = self._cluster.last_stage(call.worker)
        self._cluster.stop(call.worker)
        status, message = cause_of_death(error, words, stage)
        self._ended(call, Outcome(status, stage, message=message, detail=words), took)

    def _ended(self, call: Call, outcome: Outcome, took: float) -> None:
        """A call came to an end with its worker."""
        if call.what == "prepare":
            assert call.task is not None
            self._close_all(call.task, replace(outcome, facts=facts_of(call.task)), took)
        elif call.what == "confirm":
            lost = Outcome(Status.ENVIRONMENT_ERROR, message=outcome.message)
            self._went_on(call, lost, took)
        else:
            assert call.row is not None
            self._close(call.row, outcome, took)

    def _start_failed(self, call: Call, why: str) -> None:
        kind = call.worker.kind
        self._failed_starts[kind] = self._failed_starts.get(kind, 0) + 1
        self._why[kind] = why

    # Closing.

    def _close_all(self, task: Task, outcome: Outcome, took: float) -> None:
        for key in task.keys:
            self._close(Waiting(key, task, None, Outcome(None), 0.0), outcome, took / len(task.keys))

    def _close(self, row: Waiting, outcome: Outcome, took: float) -> None:
        whole = row.so_far.and_then(outcome)
        if whole.status is Status.PASS and whole.fallback:
            whole = replace(whole, status=Status.PASS_WITH_FALLBACK)
        whole = replace(whole, route=self._routes.get(f"{row.key.backend}/{row.key.mode}", ""))
        self._on_row(self._journal.close_row(as_row(row.key, row.task.seed, whole, row.seconds + took)))

    def _add_work(self, outcome: Outcome) -> None:
        for stage, seconds in outcome.stage_seconds.items():
            self._tally.work_seconds[stage] = self._tally.work_seconds.get(stage, 0.0) + seconds

    def stop(self) -> None:
        """Ends all workers."""
        for idle in self._idle.values():
            for worker in idle:
                self._cluster.stop(worker)
        self._idle.clear()
