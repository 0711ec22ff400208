"""Prints what the harness costs beside the work that it has to do, and writes benchmarks/sweep.json.

    python -m tests.bench

A sweep is run twice over the same workers: a few models to warm them, then the measured ones.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import environment
from harness.records import Stage
from harness.sweep.cluster import Cluster
from harness.sweep.config import Models, SweepConfig, read_config
from harness.sweep.driver import Driver, Tally
from harness.sweep.journal import Journal
from harness.sweep.plan import make_plan
from harness.sweep.run import make_driver, run_info

WORK = tuple(stage for stage in Stage if stage is not Stage.JUDGE)
"""Stages of real work: the control is a run of the reference in fp64; observability is runs with one op perturbed."""

CONFIG = Path("configs/bench.yaml")
WARM_UP = ["timm:resnet18", "timm:convnext_atto", "transformers:bert", "transformers:t5"]


def main() -> None:
    """Runs the benchmark and prints its table."""
    config = read_config(CONFIG)
    warm_up = config.model_copy(update={"models": Models(include=WARM_UP)})
    with Cluster(sources=["timm", "transformers"]) as cluster, tempfile.TemporaryDirectory() as scratch:
        driver = make_driver(cluster, config, make_plan(config))
        _run(driver, warm_up, Path(scratch) / "warm")
        tally, statuses = _run(driver, config, Path(scratch) / "measured")
        driver.stop()
    _report(tally, statuses, _help_cpu_seconds())


def _run(driver: Driver, config: SweepConfig, folder: Path) -> tuple[Tally, dict[str, int]]:
    plan = make_plan(config)
    with Journal.create(folder, run_info(config, plan, "bench")) as journal:
        tally = driver.run(list(plan.tasks), journal)
        statuses: dict[str, int] = {}
        for row in journal.closed.values():
            statuses[row.status] = statuses.get(row.status, 0) + 1
    return tally, statuses


def _help_cpu_seconds() -> float:
    """CPU time of `calipers --help`, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "harness", "--help"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _report(tally: Tally, statuses: dict[str, int], help_seconds: float) -> None:
    rows = sum(statuses.values())
    capacity = tally.wall_seconds * tally.slots
    work = sum(tally.work_seconds.get(stage, 0.0) for stage in WORK)
    machine = environment.machine()
    figures: dict[str, Any] = {
        "machine": machine.model_dump(mode="json"),
        "versions": environment.versions(),
        "models": rows,
        "statuses": statuses,
        "wall_seconds": round(tally.wall_seconds, 1),
        "slots": tally.slots,
        "models_per_hour": round(rows / tally.wall_seconds * 3600),
        "models_per_hour_per_core": round(rows / capacity * 3600),
        "stage_seconds": {stage: round(seconds, 1) for stage, seconds in tally.work_seconds.items()},
        "share_of_work": round(work / capacity, 3),
        "share_of_judging": round(tally.work_seconds.get(Stage.JUDGE, 0.0) / capacity, 3),
        "help_cpu_seconds": round(help_seconds, 2),
    }
    console = Console(highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions().items())
    console.print(f"{machine.processor}, {machine.cores} cores; {versions}")
    table = Table("warm sweep", "figure", box=None)
    table.add_row("models", f"{rows} ({', '.join(f'{n} {s}' for s, n in statuses.items())})")
    table.add_row("wall time", f"{tally.wall_seconds:.1f} s on {tally.slots} cores")
    table.add_row("models per hour per core", f"{figures['models_per_hour_per_core']}")
    for stage, seconds in tally.work_seconds.items():
        table.add_row(f"  {stage}", f"{seconds:.1f} s  {seconds / capacity:.1%}")
    for name, seconds in (
        ("  starting workers", tally.starting_seconds),
        ("  calls beside their stages", tally.call_seconds - sum(tally.work_seconds.values())),
        ("  idle", capacity - tally.starting_seconds - tally.call_seconds),
    ):
        table.add_row(name, f"{seconds:.1f} s  {seconds / capacity:.1%}")
    table.add_row("share of wall time in real work (control counted in)", f"{work / capacity:.3f}")
    table.add_row("rows looked at again", f"{tally.second_looks}")
    table.add_row("share of wall time in judging", f"{figures['share_of_judging']:.3f}")
    table.add_row("calipers --help", f"{help_seconds:.2f} s of CPU time")
    console.print(table)
    out = Path("benchmarks")
    out.mkdir(exist_ok=True)
    (out / "sweep.json").write_text(json.dumps(figures, indent=1) + "\n")


main()
