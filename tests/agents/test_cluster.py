from agents.cluster import causes_of
from agents.fingerprint import fingerprint, normalised
from harness.records import Row, Stage, Status


def row(model: str, message: str, status: Status = Status.LOWERING_ERROR, op: str | None = "aten::relu") -> Row:
    return Row(
        model=model, backend="torchtpu", mode="lowering", dtype="float32", profile="gaussian",
        status=status, stage=Stage.LOWER, op=op, message=message,
    )  # fmt: skip


def test_shapes_numbers_addresses_and_paths_do_not_make_another_cause() -> None:
    first = row("a", "view(): cannot create a view of shape [1, 64] at 0x7f00 in /usr/lib/a.py:31")
    second = row("b", "view(): cannot create a view of shape [2, 1, 4096] at 0x7fab in /home/me/a.py:7")
    assert fingerprint(first) == fingerprint(second)


def test_another_op_or_status_or_message_is_another_cause() -> None:
    plain = row("a", "no kernel")
    others = [row("a", "no memory"), row("a", "no kernel", op="aten::gelu"), row("a", "no kernel", Status.CRASH)]
    assert len({fingerprint(r) for r in [plain, *others]}) == 4


def test_a_name_with_a_digit_is_not_a_number() -> None:
    assert normalised("conv2d has no lowering for float32") == "conv2d has no lowering for float32"


def test_one_cause_lists_every_model_it_hits_and_the_widest_comes_first() -> None:
    rows = [row("a", "x is 1"), row("b", "y"), row("c", "x is 2"), row("d", "fine", Status.PASS, None)]
    causes = causes_of(rows)
    assert [cause.models for cause in causes] == [("a", "c"), ("b",)]
    assert causes[0].message == "x is #"
    assert causes[1].message == "y"
