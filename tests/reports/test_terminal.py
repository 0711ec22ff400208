"""The terminal: fits 80 columns, bare text on a pipe, and text of others steers nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.records import Row
from reports.terminal import print_check, print_summary
from tests.reports.sample_run import sample_causes, sample_info, sample_rows

PAGE = Path("runs/demo/site/index.html")


def row_of(family: str, backend: str) -> Row:
    return next(row for row in sample_rows() if (row.family, row.backend) == (family, backend))


def console(terminal: bool = False, width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None), out


def summary(terminal: bool = False) -> str:
    screen, out = console(terminal)
    rows = sample_rows()
    print_summary(screen, sample_info(len(rows)), rows, sample_causes(), PAGE)
    return out.getvalue()


def check(row: Row, terminal: bool = False) -> str:
    screen, out = console(terminal)
    print_check(screen, row, sample_info(62))
    return out.getvalue()


def test_a_pipe_gets_no_escape_sequence() -> None:
    assert "\x1b" not in summary()
    assert "\x1b" not in check(row_of('cus"tom<b>', "torchtpu"))


def test_a_terminal_gets_colour_and_no_line_over_80_columns() -> None:
    text = summary(terminal=True)
    assert "\x1b[" in text
    assert max(len(strip(line)) for line in text.splitlines()) <= 80


def strip(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


def test_the_summary_says_what_happened() -> None:
    text = summary()
    assert "61.2 % pass: 38 of 62 rows, 18 the backend's fault, 6 not the backend's" in text
    assert "62 planned, all closed once" in text
    assert "✓ pass " in text
    assert "≠ divergent " in text
    assert "5 models   torch_tpu: no lowering is registered for aten::hypot.out" in text
    assert "transformers:llama/LlamaForCausalLM" in text
    assert text.rstrip().endswith(f"Page: {PAGE}")


def test_the_summary_of_nothing_says_why() -> None:
    screen, out = console()
    print_summary(screen, sample_info(0), [], [], PAGE)
    assert out.getvalue() == "No rows: the configuration chose no models.\n"


def test_a_check_says_every_number_that_decided() -> None:
    text = check(row_of("gpt2", "inductor"))
    for part in ("runs, with wrong results", "divergent in judge; fault: the backend's", "38.2 x budget",
                 ".logits[0, 11, 4711]", "-1.0342577", "-1.0342601", "4 of 4,194,304 elements", "11 distinct",
                 "compile ", "Traceback", "torch 2.14.1+cpu"):  # fmt: skip
        assert part in text


def test_the_command_is_never_broken_over_lines() -> None:
    row = row_of('cus"tom<b>', "torchtpu")
    assert len(row.command) > 80
    assert "  " + row.command in [strip(line) for line in check(row, terminal=True).splitlines()]


def test_a_check_shows_substitution_and_fallback() -> None:
    assert "aten::cumsum as a reduce_window" in check(row_of("llama", "torchtpu"))
    assert "on the CPU: aten::nonzero, aten::index.Tensor" in check(row_of("t5", "torchtpu"))


@pytest.mark.parametrize(
    ("family", "backend", "verdict"),
    [("bert", "torchtpu", "runs  "), ("mamba2", "torchtpu", "does not run"), ("led", "inductor", "no verdict")],
)
def test_the_verdict_line(family: str, backend: str, verdict: str) -> None:
    assert check(row_of(family, backend)).splitlines()[1].startswith(verdict)


def test_text_of_others_is_no_markup_and_no_control() -> None:
    row = row_of("bert", "torchtpu").model_copy(update={"message": "[bold]x[/bold] \x1b]0;title\x07 \x1b[2J"})
    text = check(row, terminal=True)
    assert "[bold]x[/bold]" in text
    assert "\x1b[2J" not in text
    assert "\x07" not in text


def test_an_ascii_stream_gets_letters_for_symbols() -> None:
    raw = io.BytesIO()
    screen = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=80)
    rows = sample_rows()
    print_summary(screen, sample_info(len(rows)), rows, sample_causes(), PAGE)
    screen.file.flush()
    assert b"+ pass" in raw.getvalue()
