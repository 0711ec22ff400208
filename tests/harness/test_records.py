import pytest
from pydantic import ValidationError

from harness.records import (
    Closed,
    Fault,
    Metrics,
    Opened,
    Row,
    RowKey,
    Stage,
    Status,
    fault_of,
    journal_line,
)

KEY = RowKey(model="timm:resnet18", backend="torchtpu", mode="lowering")


def row(**changes: object) -> Row:
    values = {**KEY.model_dump(), "status": Status.PASS, **changes}
    return Row.model_validate(values)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_says_whose_fault_it_is(status: Status) -> None:
    fault = fault_of(status, Stage.RUN)
    assert (fault is Fault.BACKEND) == status.blames_backend


@pytest.mark.parametrize("status", [Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY])
def test_what_ends_before_the_backend_began_is_the_models_fault(status: Status) -> None:
    assert fault_of(status, Stage.REFERENCE) is Fault.MODEL
    assert fault_of(status, Stage.RUN) is Fault.BACKEND


def test_a_journal_line_comes_back_as_it_was_written() -> None:
    closed = Closed(row=row(metrics=Metrics(index=(0, 3), rms_ratio=1.5), stage_seconds={Stage.RUN: 0.25}))
    for line in (Opened(key=KEY), closed):
        assert journal_line.validate_json(line.model_dump_json()) == line


def test_a_field_that_no_record_has_is_refused() -> None:
    with pytest.raises(ValidationError, match="colour"):
        row(colour="red")


def test_the_command_runs_the_row_again_with_what_differs_from_the_default() -> None:
    assert row().command == "calipers check timm:resnet18 --backend torchtpu --mode lowering"
    assert row(seed=3, dtype="bfloat16").command.endswith("--dtype bfloat16 --seed 3")


def test_a_model_id_with_a_shell_character_is_quoted_in_the_command() -> None:
    assert row(model="python:a.b:$(rm)").command.startswith("calipers check 'python:a.b:$(rm)'")
