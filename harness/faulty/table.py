"""A selftest on the terminal: progress while it runs, then the confusion table."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from harness.faulty.recipe import Kind
from harness.faulty.score import Planted, Score

if TYPE_CHECKING:
    from rich.console import Console

_MOST = 20
"""Faults of one sort that are named; the rest is a number."""


class SelftestProgress:
    """A bar on a terminal; elsewhere a plain line after every tenth model. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("planting faults", total=None)

    def model(self, name: str, done: int, total: int) -> None:
        """A model is done."""
        self._bar.update(self._task, total=total, completed=done, description=name.rpartition(":")[2][:30])
        if not self._console.is_terminal and (done % 10 == 0 or done == total):
            self._console.print(f"{done}/{total} models and ops, last {name}", markup=False, soft_wrap=True)

    def __enter__(self) -> SelftestProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def print_score(console: Console, score: Score) -> None:
    """Prints the confusion table, the totals, and every fault that was missed or misnamed."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("kind of fault")
    for title in ("planted", "caught", "missed", "under floor", "right status", "other"):
        table.add_column(title, justify="right")
    for kind in Kind:
        if kind is Kind.HARMLESS:
            continue
        table.add_row(kind.value, *_counts([p for p in score.planted if p.kind == kind]))
    table.add_section()
    table.add_row("all", *_counts(score.planted), style="bold")
    console.print(table)
    console.print(
        f"\nvisible faults {len(score.visible)}, in {len(score.ops)} ops, {len(score.architectures)} architectures\n"
        f"caught {score.caught_share:.1%}, right status {score.right_share:.1%}\n"
        f"false alarms {len(score.false_alarms)} of {len(score.honest)} runs that must pass\n"
        f"floor: no element moves by its budget, nor the RMS by its limit; {len(score.under_floor)} faults under it"
        + (f", the least caught at {score.least_caught:.2g} of it" if score.least_caught is not None else ""),
        markup=False,
        soft_wrap=True,
    )
    _named(console, "Survived", score.survivors)
    _named(console, "Caught under a status that does not name them", score.misnamed)
    _named(console, "False alarms", score.false_alarms)
    console.print("\nok" if score.ok else "\nnot ok", style="bold green" if score.ok else "bold red")


def _counts(faults: Sequence[Planted]) -> list[str]:
    visible = [p for p in faults if not p.is_under_floor]
    caught = [p for p in visible if p.is_caught]
    right = [p for p in caught if p.right]
    numbers = (len(faults), len(caught), len(visible) - len(caught), len(faults) - len(visible), len(right))
    return [str(n) if n else "" for n in (*numbers, len(caught) - len(right))]


def _named(console: Console, title: str, faults: Sequence[Planted]) -> None:
    if not faults:
        return
    console.print(f"\n{title}", style="bold")
    for p in faults[:_MOST]:
        moved = "" if p.movement is None else f", moved {p.movement:.3g} floors"
        dtype = "" if p.dtype == "float32" else f" {p.dtype}"
        line = f"  {p.recipe} in {p.model}{dtype}: {p.status}{moved}  {p.message}"
        console.print(line, markup=False, soft_wrap=True)
    if len(faults) > _MOST:
        console.print(f"  and {len(faults) - _MOST} more")
