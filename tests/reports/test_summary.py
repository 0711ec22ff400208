"""The numbers of a run: counted from rows, never from guesses."""

from __future__ import annotations

import doctest

import pytest

from harness.records import Fault, Row, Stage, Status
from reports import summary, wording
from reports.summary import summarise
from reports.wording import MARKS, meanings, tone_of


def row(model: str, status: Status = Status.PASS, **changes: object) -> Row:
    given = {"backend": "b", "mode": "eager", "dtype": "float32", "profile": "gaussian", "family": model} | changes
    return Row(model=model, status=status, **given)  # type: ignore[arg-type]


def test_counts_by_status_family_and_backend() -> None:
    found = summarise(
        [
            row("a"),
            row("a2", Status.DIVERGENT, family="a", at_fault=Fault.BACKEND),
            row("c", Status.LOAD_ERROR, at_fault=Fault.MODEL, backend="other"),
        ]
    )
    assert found.by_status == {Status.DIVERGENT: 1, Status.LOAD_ERROR: 1, Status.PASS: 1}
    assert [(t.name, t.rows, t.passes, t.failures, t.others) for t in found.families] == [
        ("a", 2, 1, 1, 0),
        ("c", 1, 0, 0, 1),
    ]
    assert [(t.name, t.pass_rate) for t in found.backends] == [("b/eager", 0.5), ("other/eager", 0.0)]


def test_a_crash_before_the_backend_is_not_counted_as_its_failure() -> None:
    crashed = row("a", Status.CRASH, stage=Stage.REFERENCE, at_fault=Fault.MODEL)
    assert summarise([crashed]).total.failures == 0
    assert tone_of(crashed) == "other"
    assert tone_of(row("a", Status.CRASH, stage=Stage.RUN, at_fault=Fault.BACKEND)) == "broken"


def test_stage_times_are_summed_and_name_the_slowest_row() -> None:
    fast = row("fast", stage_seconds={Stage.RUN: 1.0, Stage.BUILD: 1.0})
    slow = row("slow", stage_seconds={Stage.RUN: 2.0})
    build, run = summarise([fast, slow]).stages
    assert (build.stage, build.seconds, build.share) == (Stage.BUILD, 1.0, 0.25)
    assert (run.stage, run.seconds, run.share, run.slowest[0].model) == (Stage.RUN, 3.0, 0.75, "slow")


def test_routes_and_substitutions_are_shown() -> None:
    rows = [row("a", route="device"), row("b", route="lowering", substituted=("cumsum",)), row("c", route="device")]
    found = summarise(rows)
    assert [(share.route, share.rows) for share in found.routes] == [("device", 2), ("lowering", 1)]
    assert found.substituted == ("b",)


def test_no_rows_have_no_pass_rate() -> None:
    assert summarise([]).pass_rate is None


def test_every_status_has_a_mark_of_its_own_and_a_meaning() -> None:
    assert set(MARKS) == set(Status) == set(meanings())
    assert len({mark.symbol for mark in MARKS.values()}) == len(Status)
    assert len({mark.ascii for mark in MARKS.values()}) == len(Status)


@pytest.mark.parametrize("module", [wording, summary])
def test_the_examples_in_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
