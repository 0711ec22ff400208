"""A driver that is killed: nothing is lost but the rows in flight, and --resume runs exactly those."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from harness.records import Closed, Opened
from harness.store import JOURNAL, journal_lines, read_results, read_run

ROWS = 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working folder of a user's own, with twelve small models."""
    (tmp_path / "mine.py").write_text(
        "import time, torch\n"
        "def make(width):\n"
        "    def build():\n"
        "        time.sleep(0.3)\n"
        "        return torch.nn.Linear(4, width), (torch.randn(2, 4),)\n"
        "    return build\n" + "".join(f"def m{n}():\n    return make({n + 1})()\n" for n in range(ROWS))
    )
    models = {"include": [f"python:mine:m{n}" for n in range(ROWS)]}
    (tmp_path / "sweep.yaml").write_text(json.dumps({"models": models, "backends": ["reference"], "workers": 2}))
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", "sweep", "sweep.yaml", "--out", "run", *arguments]


def lines(folder: Path) -> list[Opened | Closed]:
    return list(journal_lines(folder / JOURNAL))


def test_kill_9_in_the_middle_then_resume_closes_every_row_once(project: Path) -> None:
    run = project / "run"
    driver = subprocess.Popen(command(), cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while sum(isinstance(line, Closed) for line in lines(run)) < 4:
        assert driver.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline, "no row closed"
        time.sleep(0.05)
    # Ray's two agents look for their raylet once in a while only, and go a minute later.
    descendants = [p for p in psutil.Process(driver.pid).children(recursive=True) if "agent" not in p.name().lower()]
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()

    before = lines(run)
    closed_before = {line.row.key for line in before if isinstance(line, Closed)}
    assert 4 <= len(closed_before) < ROWS
    again = subprocess.run(command("--resume"), cwd=project, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr

    opened_after = {line.key for line in lines(run)[len(before) :] if isinstance(line, Opened)}
    assert not opened_after & closed_before
    closes = Counter(line.row.key for line in lines(run) if isinstance(line, Closed))
    assert len(closes) == ROWS
    assert set(closes.values()) == {1}
    assert Counter(row.key for row in read_results(run)) == closes
    assert len(read_run(run).rows) == ROWS
    _, alive = psutil.wait_procs(descendants, timeout=30)
    assert not alive, "workers outlived their killed driver"


def test_resume_of_a_finished_run_runs_nothing(project: Path) -> None:
    first = subprocess.run(command(), cwd=project, capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stderr
    before = (project / "run" / JOURNAL).read_bytes()
    again = subprocess.run(command("--resume"), cwd=project, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0, again.stderr
    assert (project / "run" / JOURNAL).read_bytes() == before


def test_an_interrupt_lets_rows_in_flight_finish_and_says_how_to_go_on(project: Path) -> None:
    run = project / "run"
    driver = subprocess.Popen(command(), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(isinstance(line, Closed) for line in lines(run)):
        assert driver.poll() is None
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 1
    assert "--resume" in errors.splitlines()[-1]
    assert read_run(run).open == []
    assert len(read_run(run).rows) < ROWS
