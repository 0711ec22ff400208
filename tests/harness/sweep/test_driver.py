"""The sweep on real workers: what goes wrong in a model ends in a row, and the sweep ends by itself."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from harness.records import Fault, Row, Stage, Status
from harness.store import read_journal, read_results
from harness.sweep.cluster import ClusterError
from harness.sweep.config import SweepConfig
from harness.sweep.run import Listener, sweep

FAULTS = {
    "segfaults": (Status.CRASH, Stage.REFERENCE, Fault.MODEL),
    "sleeps": (Status.TIMEOUT, Stage.REFERENCE, Fault.MODEL),
    "allocates": (Status.OUT_OF_MEMORY, Stage.REFERENCE, Fault.MODEL),
    "exits": (Status.CRASH, Stage.REFERENCE, Fault.MODEL),
    "raises": (Status.REFERENCE_ERROR, Stage.REFERENCE, Fault.MODEL),
    "nan_on_device": (Status.NON_FINITE, Stage.RUN, Fault.BACKEND),
    "good_linear": (Status.PASS, None, Fault.NONE),
    "good_norm": (Status.PASS, None, Fault.NONE),
    "good_conv": (Status.PASS, None, Fault.NONE),
    # Beyond the nine of the issue:
    "cannot_be_exported": (Status.SKIPPED, Stage.EXPORT, Fault.NONE),
    "allocates_bit_by_bit": (Status.OUT_OF_MEMORY, Stage.REFERENCE, Fault.MODEL),
    "raises_half_a_character": (Status.REFERENCE_ERROR, Stage.REFERENCE, Fault.MODEL),
    "raises_mute": (Status.REFERENCE_ERROR, Stage.REFERENCE, Fault.MODEL),
    "good_boxed": (Status.PASS, None, Fault.NONE),
    "twice_in_a_box_on_device": (Status.DIVERGENT, Stage.RUN, Fault.BACKEND),
    "good_sparse": (Status.PASS, None, Fault.NONE),
    "returns_no_tensor": (Status.SKIPPED, Stage.REFERENCE, Fault.NONE),
    "raises_when_built": (Status.LOAD_ERROR, Stage.BUILD, Fault.MODEL),
    "off_by_one_percent_on_device": (Status.DIVERGENT, Stage.RUN, Fault.BACKEND),
}


def config(names: list[str], **changes: object) -> SweepConfig:
    values = {
        "models": {"include": [f"python:tests.faulty_models:{name}" for name in names]},
        "backends": ["torchtpu"],
        "limits": {"seconds": 40, "memory_gib": 4},
        "workers": 2,
    }
    return SweepConfig.model_validate(values | changes)


@pytest.fixture(scope="module")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder = tmp_path_factory.mktemp("faulty") / "run"
    run, _ = sweep(config(list(FAULTS)), folder)
    assert len(read_results(folder)) == run.info.rows == len(FAULTS)
    assert read_journal(folder)[1] == []
    return {row.model.rpartition(":")[2]: row for row in run.rows}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_status_stage_and_culprit(faulty_run: dict[str, Row], name: str) -> None:
    row = faulty_run[name]
    assert (row.status, row.stage, row.at_fault) == FAULTS[name], row.message


def test_the_message_says_what_happened(faulty_run: dict[str, Row]) -> None:
    assert "SIGSEGV" in faulty_run["segfaults"].message
    assert "within 40 s" in faulty_run["sleeps"].message
    assert "ValueError: this model never works" in faulty_run["raises"].message
    assert "in stage reference" in faulty_run["exits"].message


def test_a_crash_shows_where_in_the_model_it_was(faulty_run: dict[str, Row]) -> None:
    assert "faulty_models.py" in faulty_run["segfaults"].detail


def test_a_row_holds_what_was_measured(faulty_run: dict[str, Row]) -> None:
    row = faulty_run["good_norm"]
    assert {Stage.BUILD, Stage.REFERENCE, Stage.CONTROL, Stage.EXPORT, Stage.LOWER, Stage.COMPILE, Stage.RUN} <= set(
        row.stage_seconds
    )
    assert row.metrics.worst_in_budgets is not None
    assert row.metrics.worst_in_budgets < 1
    assert row.op_counts
    assert "XLA:CPU" in row.route
    assert row.parameters == 4 * 8 + 8 + 8 + 8


def test_two_backends_share_one_reference(tmp_path: Path) -> None:
    run, tally = sweep(config(["good_linear", "good_conv"], backends=["torchtpu", "reference"]), tmp_path / "run")
    assert {(row.backend, row.status) for row in run.rows} == {("torchtpu", "pass"), ("reference", "pass")}
    assert len(run.rows) == 4
    builds = [row.stage_seconds[Stage.EXPORT] for row in run.rows if row.backend == "torchtpu"]
    assert tally.work_seconds[Stage.EXPORT] == pytest.approx(sum(builds))


def test_a_model_that_cannot_be_exported_still_runs_where_no_program_is_needed(tmp_path: Path) -> None:
    run, _ = sweep(config(["cannot_be_exported"], backends=["torchtpu", "reference"]), tmp_path / "run")
    assert {row.backend: row.status for row in run.rows} == {"torchtpu": Status.SKIPPED, "reference": Status.PASS}


def test_a_sweep_whose_ray_dies_ends_and_says_how_to_go_on(tmp_path: Path) -> None:
    def kill_raylet(row: Row) -> None:
        for child in psutil.Process().children():
            if child.name() == "raylet":
                child.kill()

    with pytest.raises(ClusterError, match="--resume"):
        sweep(
            config(["good_linear", "sleeps"], backends=["reference"]),
            tmp_path / "run",
            listener=Listener(row=kill_raylet),
        )
    assert len(read_journal(tmp_path / "run")[0]) == 1
