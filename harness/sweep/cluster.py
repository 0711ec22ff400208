"""Ray, as far as the sweep needs it: connecting, starting and killing workers, and the board.

Private to Ray 2.60 and touched in this file only: the function that prints raylet's messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray

from harness.records import Stage
from harness.sweep.messages import Settings, Started
from harness.sweep.workers import BackendWorker, ReferenceWorker

START_SECONDS = 180.0
"""How long a worker may take to start (imports, device set-up) before it counts as failed."""


class ClusterError(Exception):
    """Ray cannot be used; one line: what was tried, what was found, what to do."""


class Board:
    """An actor that outlives the workers: in which stage each one is, so that a death can be placed; what all know."""

    def __init__(self) -> None:
        self._stage: dict[str, str | None] = {}
        self._known: dict[str, float] = {}

    def enter(self, worker: str, stage: str | None) -> None:
        """`worker` begins `stage`; None: it begins another model."""
        self._stage[worker] = stage

    def stage(self, worker: str) -> str | None:
        """The stage that `worker` began last."""
        return self._stage.get(worker)

    def observability(self, graph: str, measured: float | None = None) -> float | None:
        """What is known of a graph, by its fingerprint; `measured` is kept for the next who asks."""
        if measured is not None:
            self._known[graph] = measured
        return self._known.get(graph)


@dataclass
class Handle:
    """A worker as the driver sees it."""

    name: str
    kind: str
    """`reference`, or `backend/mode`."""
    actor: Any
    log: Path
    started: Started | None = None


class Cluster:
    """A connection to Ray with its board; starts and kills workers. Use as a context manager.

    Without an address a Ray of our own runs on this machine and ends with us, however we end.
    """

    def __init__(
        self, address: str | None = None, search_path: Sequence[str] = (), sources: Sequence[str] = ()
    ) -> None:
        self._address, self._search_path, self._sources = address, tuple(search_path), tuple(sources)
        self._scratch = Path(tempfile.mkdtemp(prefix="calipers-"))
        self._count = 0
        self._ours = not ray.is_initialized()

    def __enter__(self) -> Cluster:
        if self._ours:
            _connect(self._address)
        _silence()
        from harness.sweep.transport import register

        register()
        self._board = ray.remote(num_cpus=0)(Board).remote()
        self._raylet = next((p for p in psutil.Process().children() if p.name() == "raylet"), None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            ray.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def cpus(self) -> int:
        """CPUs of the whole cluster."""
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, kind: str, threads: int, memory_gib: float) -> tuple[Handle, Any]:
        """Starts a worker; gives it and a reference to its `Started`, which raises if it cannot be started."""
        self._count += 1
        name = f"{kind.replace('/', '-')}-{self._count}"
        log = self._scratch / f"{name}.log"
        settings = Settings(name, str(log), threads, memory_gib, self._search_path, self._sources)
        cls = ReferenceWorker if kind == "reference" else BackendWorker
        remote = ray.remote(num_cpus=0, max_restarts=0)(cls)
        actor = remote.remote(settings, self._board)
        started = actor.start.remote() if kind == "reference" else actor.start.remote(*kind.split("/"))
        return Handle(name, kind, actor, log), started

    def stop(self, worker: Handle) -> None:
        """Kills a worker and what it still runs."""
        with contextlib.suppress(Exception):
            ray.kill(worker.actor, no_restart=True)
        if worker.started and worker.started.node == ray.get_runtime_context().get_node_id():
            _make_sure(worker.started.pid)

    def begin(self, worker: Handle) -> None:
        """Says that the worker begins another model, so that its last stage is not taken for this one's."""
        self._board.enter.remote(worker.name, None)

    def check_alive(self) -> None:
        """`ClusterError` if the Ray that we started on this machine has died under us."""
        if self._raylet is not None and (not self._raylet.is_running() or self._raylet.status() == "zombie"):
            raise ClusterError("Ray on this machine died (its raylet is gone); go on with the run by --resume")

    def last_stage(self, worker: Handle) -> Stage | None:
        """The stage that a worker began last; None if it began none, or the board is gone."""
        try:
            stage = ray.get(self._board.stage.remote(worker.name), timeout=10)
        except ray.exceptions.RayError:
            return None
        return Stage(stage) if stage else None

    def last_words(self, worker: Handle, limit: int = 3000) -> str:
        """The end of a dead worker's stderr; empty if it ran on another machine."""
        with contextlib.suppress(OSError):
            return worker.log.read_text("utf-8", errors="replace")[-limit:].strip()
        return ""


def check_reachable(address: str | None, seconds: float = 5.0) -> None:
    """`ClusterError` if nothing listens at a Ray address; Ray itself would try for minutes."""
    if address is None or address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"{address!r} is no Ray address; write host:port, ray://host:port or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cannot reach Ray at {address}: {error}; start one with `ray start --head`") from error


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"at {address}" if address else "on this machine"
        raise ClusterError(f"cannot reach Ray {where}: {first}; start one with `ray start --head`") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # in place of Ray's handler, which prints a stack of C++ frames


def _silence() -> None:
    """Keeps raylet's remarks about dead workers out of the terminal: each death is a row."""
    from ray._private import worker

    def print_nothing(data: object, ignore_prefix: bool) -> None:
        """In place of the function that prints such remarks to stdout, where `--json` must be alone."""

    assert worker.print_to_stdstream
    worker.print_to_stdstream = print_nothing
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what workers raise is a row, or a line of ours


def _make_sure(pid: int, seconds: float = 3.0) -> None:
    """Waits for a killed process to go, and sends SIGKILL if it does not."""
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)
