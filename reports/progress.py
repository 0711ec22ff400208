"""A sweep in progress, for a person: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.records import Row

if TYPE_CHECKING:
    from rich.console import Console


class SweepProgress:
    """Shows done, failing, models per hour and time left. The first interrupt lets rows in flight finish.

    Use as a context manager; its public methods are what a sweep's `Listener` calls.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._planned = self._done = self._before = self._failing = 0
        self._start = time.monotonic()
        self._interrupted = False
        self._bar: Progress | None = None
        self._task: Any = None

    def planned(self, rows: int, closed: list[Row]) -> None:
        """The sweep has `rows` rows, of which an earlier session closed some."""
        self._planned, self._before = rows, len(closed)
        self._failing = sum(not row.status.is_pass for row in closed)
        self._start = time.monotonic()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("starting workers", total=rows, completed=self._before, facts="")
            self._bar.start()
        else:
            again = f", {self._before} of them closed before" if self._before else ""
            self._say(f"{rows} rows{again}; starting workers")

    def row(self, row: Row) -> None:
        """A row closed."""
        self._done += 1
        self._failing += not row.status.is_pass
        line = f"{row.model}  {row.backend}/{row.mode}  {row.status}  {row.seconds:.1f} s"
        if not row.status.is_pass:
            line += f"  {row.op or ''} {row.message}".rstrip()
        if self._bar is None:
            self._say(f"{self._before + self._done}/{self._planned}  {line}  ({self._facts()})")
            return
        if not row.status.is_pass:
            self._bar.console.print(line, style="yellow", markup=False, soft_wrap=True)
        self._bar.update(self._task, advance=1, description=row.model[:40], facts=self._facts())

    def stopping(self) -> bool:
        """Whether the user asked to stop."""
        return self._interrupted

    def _facts(self) -> str:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        left = self._planned - self._before - self._done
        seconds = elapsed / self._done * left if self._done else 0.0
        return f"{self._failing} failing, {self._done / elapsed * 3600:.0f} rows/h, {_span(seconds)} left"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        self._say("stopping after the rows in flight; interrupt again to stop at once")

    def __enter__(self) -> SweepProgress:
        self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._handler)
        if self._bar is not None:
            self._bar.stop()


def _span(seconds: float) -> str:
    """A span of time as a person says it."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 5400 else f"{whole / 3600:.1f} h"
