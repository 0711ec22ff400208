"""A sweep from config to run folder: plan, journal, driver, run.json. What the command line and the tests call."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import environment
from harness.records import Row, RunInfo
from harness.store import Run, read_run
from harness.sweep.cluster import Cluster, check_reachable
from harness.sweep.config import SweepConfig
from harness.sweep.driver import Driver, Tally
from harness.sweep.journal import Journal
from harness.sweep.messages import Task
from harness.sweep.plan import Plan, make_plan

THREADS = 1
"""CPU threads per worker: reduced models gain nothing from more, and one per core keeps every core busy."""


@dataclass(frozen=True)
class Listener:
    """What a caller may hear of a sweep while it goes on."""

    planned: Callable[[int, list[Row]], None] = lambda rows, closed: None
    """Number of rows, and those that an earlier session closed."""
    row: Callable[[Row], None] = lambda row: None
    """A row closed."""
    stopping: Callable[[], bool] = lambda: False
    """Whether to open no further row."""


def sweep(
    config: SweepConfig,
    folder: Path,
    *,
    resume: bool = False,
    ray_address: str | None = None,
    command: str = "",
    listener: Listener | None = None,
) -> tuple[Run, Tally]:
    """Runs a sweep into `folder` and gives the run as read back from there.

    Raises `ConfigError`, `ZooError`, `UnknownBackend`, `Unavailable`, `StoreError`, `ClusterError`, one line each.
    """
    listener = listener or Listener()
    check_reachable(ray_address)
    plan = make_plan(config)
    info = run_info(config, plan, command)
    with (Journal.resume if resume else Journal.create)(folder, info) as journal:
        listener.planned(len(plan.keys), list(journal.closed.values()))
        tasks = [task for t in plan.tasks if (task := _unfinished(t, journal))]
        tally, capability = Tally(), ""
        if tasks:
            sources = dict.fromkeys(task.model.partition(":")[0] for task in tasks)
            with Cluster(ray_address, search_path=[str(Path.cwd())], sources=list(sources)) as cluster:
                driver = make_driver(cluster, config, plan)
                try:
                    tally = driver.run(tasks, journal, listener.row, listener.stopping)
                    capability = driver.cpu_capability
                finally:
                    driver.stop()
        done = len(journal.closed) == len(plan.keys)
        before = journal.info
        machine = environment.machine(capability) if capability else before.machine
        journal.finish(
            before.model_copy(
                update={
                    "finished_at": datetime.now(UTC) if done else None,
                    "wall_seconds": round(before.wall_seconds + tally.wall_seconds, 3),
                    "machine": machine,
                    "workers": tally.slots,
                }
            )
        )
    return read_run(folder), tally


def make_driver(cluster: Cluster, config: SweepConfig, plan: Plan) -> Driver:
    """A driver with the config's limits and as many slots as the config or the cluster has."""
    slots = cluster.cpus // THREADS if config.workers == "auto" else config.workers
    return Driver(
        cluster,
        seconds=config.limits.seconds,
        memory_gib=config.limits.memory_gib,
        slots=max(1, slots),
        threads=THREADS,
        routes=plan.routes,
    )


def check(config: SweepConfig) -> Run:
    """Runs a config in a folder of its own that is gone afterwards: what `calipers check` does."""
    scratch = Path(tempfile.mkdtemp(prefix="calipers-check-"))
    try:
        run, _ = sweep(config, scratch / "run")
        return run
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_info(config: SweepConfig, plan: Plan, command: str) -> RunInfo:
    """What is written to run.json before the first row opens."""
    return RunInfo(
        calipers=environment.calipers_version(),
        config=config.model_dump(mode="json"),
        command=command,
        seed=config.seed,
        rows=len(plan.keys),
        versions=environment.versions() | plan.versions,
        machine=environment.machine(),
        threads=THREADS,
        environment=environment.environment(),
        routes=plan.routes,
        started_at=datetime.now(UTC),
    )


def _unfinished(task: Task, journal: Journal) -> Task | None:
    keys = tuple(key for key in task.keys if key not in journal.closed)
    return replace(task, keys=keys) if keys else None
