"""What a sweep looks at besides the outputs of one run: other inputs, a second run, inputs that must be refused."""

from __future__ import annotations

import pytest

from harness.records import Row, Stage, Status
from harness.sweep.config import SweepConfig
from harness.sweep.driver import Tally
from harness.sweep.run import sweep

MODELS = "python:tests.faulty_models"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Tally]:
    """One sweep over honest and faulty backends."""
    values = {
        "models": {"include": [f"{MODELS}:{name}" for name in ("good_linear", "good_embedding")]},
        "backends": [
            {"name": "reference", "mode": "eager"},
            *({"name": "faulty", "mode": mode} for mode in ("none", "stale-output:run", "non-determinism:addmm")),
            {"name": "torchtpu", "mode": "lowering"},
        ],
        "profiles": ["gaussian", "integer-edges"],
        "checks": ["observability", "second-input", "determinism"],
        "limits": {"seconds": 60, "memory_gib": 4},
        "workers": 2,
    }
    run, tally = sweep(SweepConfig.model_validate(values), tmp_path_factory.mktemp("further") / "run")
    return run.rows, tally


@pytest.fixture(scope="module")
def rows(swept: tuple[list[Row], Tally]) -> dict[tuple[str, str, str], Row]:
    """Rows by function, mode and profile."""
    return {(row.model.rpartition(":")[2], row.mode, row.profile): row for row in swept[0]}


def test_an_output_that_no_longer_depends_on_the_input_is_found(rows: dict[tuple[str, str, str], Row]) -> None:
    assert rows["good_linear", "none", "gaussian"].status is Status.PASS
    stale = rows["good_linear", "stale-output:run", "gaussian"]
    assert stale.status is Status.DIVERGENT
    assert "input" in stale.message


def test_a_device_that_is_not_the_same_twice_is_a_finding(rows: dict[tuple[str, str, str], Row]) -> None:
    found = rows["good_linear", "non-determinism:addmm", "gaussian"]
    assert found.status is not Status.PASS or any("run again" in line for line in found.findings)
    assert rows["good_linear", "none", "gaussian"].findings == ()


def test_both_sides_must_refuse_an_index_out_of_range(rows: dict[tuple[str, str, str], Row]) -> None:
    refused, taken = (rows["good_embedding", mode, "integer-edges"] for mode in ("eager", "lowering"))
    assert (refused.status, taken.status) == (Status.PASS, Status.CONTRACT)
    assert "both reject" in refused.message
    assert "accepts what the reference rejects" in taken.message


def test_a_profile_that_changes_nothing_is_skipped_and_says_why(rows: dict[tuple[str, str, str], Row]) -> None:
    row = rows["good_linear", "eager", "integer-edges"]
    assert (row.status, row.stage) == (Status.SKIPPED, Stage.BUILD)
    assert "changes nothing" in row.message


def test_a_row_says_what_could_be_seen_and_on_which_kernels(rows: dict[tuple[str, str, str], Row]) -> None:
    row = rows["good_linear", "eager", "gaussian"]
    assert row.observability == 1.0
    assert row.isa


def test_a_passing_row_pays_for_no_further_reference(swept: tuple[list[Row], Tally]) -> None:
    rows, tally = swept
    numeric = (Status.DIVERGENT, Status.NON_FINITE, Status.ILL_CONDITIONED, Status.REFERENCE_SUSPECT)
    assert tally.second_looks == sum(row.status in numeric for row in rows) > 0
