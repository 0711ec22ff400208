import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.records import Cause, Machine, Metrics, NumericClass, Row, RowKey, RunInfo, Stage, Status
from harness.store import (
    JOURNAL,
    RUN_JSON,
    StoreError,
    append_results,
    load,
    read_results,
    read_run,
    write_causes,
    write_info,
)
from harness.sweep.journal import PART_ROWS, Journal

MACHINE = Machine(processor="any", cores=2, memory_gib=1.0, system="Linux", python="3.11")


def info(rows: int, **changes: object) -> RunInfo:
    values = {"calipers": "0", "config": {"seed": 0}, "rows": rows, "machine": MACHINE, "started_at": datetime.now(UTC)}
    return RunInfo.model_validate(values | changes)


def key(number: int) -> RowKey:
    return RowKey(model=f"python:m:f{number}", backend="reference", mode="eager")


def row(number: int, **changes: object) -> Row:
    return Row.model_validate({**key(number).model_dump(), "status": Status.PASS, **changes})


FULL = row(
    0,
    status=Status.DIVERGENT,
    stage=Stage.RUN,
    numeric_class=NumericClass.DIVERGENT,
    op="aten::amax",
    metrics=Metrics(leaf=".a", index=(1, 2), worst_in_budgets=7.5, elements=4, elements_over=1),
    stage_seconds={Stage.BUILD: 0.5, Stage.RUN: 1.5},
    op_counts={"aten::amax": 2},
    fallback_ops=("aten::sort",),
    substituted=("scan",),
    parameters=12,
    peak_memory_mib=3.5,
)


def test_a_row_comes_back_from_parquet_as_it_was_written(tmp_path: Path) -> None:
    append_results(tmp_path, [FULL])
    append_results(tmp_path, [row(1)])
    assert read_results(tmp_path) == [
        FULL,
        row(1).model_copy(update={"closed_at": read_results(tmp_path)[1].closed_at}),
    ]


def test_the_frame_has_a_column_per_field_and_per_metric(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", info(1)) as journal:
        journal.open_rows([FULL.key])
        journal.close_row(FULL)
    frame = load(tmp_path / "run")
    assert frame.loc[0, "status"] == "divergent"
    assert frame.loc[0, "metrics.worst_in_budgets"] == 7.5


def test_results_are_written_as_the_run_goes(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "run", info(PART_ROWS + 1))
    for number in range(PART_ROWS):
        assert not read_results(tmp_path / "run")
        journal.open_rows([key(number)])
        journal.close_row(row(number))
    assert len(read_results(tmp_path / "run")) == PART_ROWS


def test_a_row_is_closed_once(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", info(1)) as journal:
        journal.open_rows([key(0)])
        journal.close_row(row(0))
        journal.close_row(row(0, status=Status.CRASH))
    assert [r.status for r in read_run(tmp_path / "run").rows] == [Status.PASS]


def test_a_row_that_was_opened_and_not_closed_is_open(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", info(2)) as journal:
        journal.open_rows([key(0), key(1)])
        journal.close_row(row(0))
    assert read_run(tmp_path / "run").open == [key(1)]


def test_a_torn_last_line_is_an_open_row_and_resume_goes_on_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Journal.create(folder, info(2)) as journal:
        journal.open_rows([key(0), key(1)])
        journal.close_row(row(0))
    with (folder / JOURNAL).open("a") as stream:
        stream.write('{"event":"closed","row":{"model":"python:m:f1"')
    assert read_run(folder).open == [key(1)]
    with Journal.resume(folder, info(2)) as journal:
        assert set(journal.closed) == {key(0)}
        journal.open_rows([key(1)])
        journal.close_row(row(1))
        journal.finish(info(2, finished_at=datetime.now(UTC)))
    run = read_run(folder)
    assert {r.key: r.attempts for r in run.rows} == {key(0): 1, key(1): 2}


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", info(1)) as journal:
        journal.open_rows([key(0)])
    lines = (tmp_path / "run" / JOURNAL).read_text()
    (tmp_path / "run" / JOURNAL).write_text("{broken}\n" + lines)
    with pytest.raises(StoreError, match=r"journal\.jsonl, line 1, is damaged"):
        read_run(tmp_path / "run")


def test_resume_writes_what_the_killed_driver_had_not_yet_put_into_parquet(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    journal = Journal.create(folder, info(1))
    journal.open_rows([key(0)])
    journal.close_row(row(0))
    journal._file.close()  # killed: no flush
    assert not read_results(folder)
    with Journal.resume(folder, info(1)):
        assert [r.key for r in read_results(folder)] == [key(0)]


def test_resume_without_the_journal_takes_the_stored_rows_as_closed(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", info(1)) as journal:
        journal.open_rows([key(0)])
        journal.close_row(row(0))
        journal.flush()
    (tmp_path / "run" / JOURNAL).unlink()
    with Journal.resume(tmp_path / "run", info(1)) as journal:
        assert set(journal.closed) == {key(0)}
    with Journal.resume(tmp_path / "run", info(1)) as journal:
        assert set(journal.closed) == {key(0)}
    assert len(read_results(tmp_path / "run")) == 1


def test_a_folder_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    Journal.create(tmp_path, info(1))._file.close()
    with pytest.raises(StoreError, match=r"holds another run.*--resume"):
        Journal.create(tmp_path, info(1))


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreError, match=r"holds no run \(found thesis.tex\)"):
        Journal.create(tmp_path, info(1))


def test_a_second_driver_on_one_run_is_refused(tmp_path: Path) -> None:
    with Journal.create(tmp_path, info(1)), pytest.raises(StoreError, match="another sweep is writing"):
        Journal.resume(tmp_path, info(1))


def test_resume_with_another_config_is_refused(tmp_path: Path) -> None:
    Journal.create(tmp_path, info(1))._file.close()
    with pytest.raises(StoreError, match=r"another config.*seed"):
        Journal.resume(tmp_path, info(1, config={"seed": 1}))


def test_a_folder_that_is_no_run_is_named_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StoreError, match=r"no run folder: no run.json in it \(found notes.txt\)"):
        read_run(tmp_path)
    with pytest.raises(StoreError, match="there is no such folder"):
        read_run(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 1}', "\x00"])
def test_a_damaged_run_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_JSON).write_text(text)
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        read_run(tmp_path)


def test_a_run_of_a_later_format_is_refused(tmp_path: Path) -> None:
    write_info(tmp_path, info(1))
    data = json.loads((tmp_path / RUN_JSON).read_text()) | {"format_version": 99}
    (tmp_path / RUN_JSON).write_text(json.dumps(data))
    with pytest.raises(StoreError, match="format 99"):
        read_run(tmp_path)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    write_info(tmp_path, info(1, finished_at=datetime.now(UTC)))
    append_results(tmp_path, [row(0)])
    part = tmp_path / "results.parquet" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"part-00000\.parquet is damaged"):
        read_run(tmp_path)


def test_causes_come_back(tmp_path: Path) -> None:
    write_info(tmp_path, info(0))
    cause = Cause(id="1", backend="b", status=Status.CRASH, message="m", models=("a", "b"))
    write_causes(tmp_path, [cause])
    assert read_run(tmp_path).causes == [cause]
