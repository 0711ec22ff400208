"""The journal of a run, written: a line when a row opens, a line when it closes, each on disk before we go on.

The journal is the truth of a run; results.parquet is written from it as the run goes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from harness.records import Closed, Opened, Row, RowKey, RunInfo
from harness.store import (
    JOURNAL,
    RUN_JSON,
    StoreError,
    append_results,
    journal_lines,
    read_info,
    read_results,
    write_info,
)

PART_ROWS = 20
"""Rows per part of results.parquet."""


class Journal:
    """The run folder of a sweep in progress. One driver at a time; use as a context manager.

    After `Journal.resume`, `closed` holds what needs no second run and `attempts` how often each row was opened.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.folder, self.info = folder, info
        self.closed: dict[RowKey, Row] = {}
        self.attempts: dict[RowKey, int] = {}
        self._pending: list[Row] = []
        self._file = (folder / JOURNAL).open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise StoreError(f"another sweep is writing to {folder}; wait for it, or name another folder") from error

    @classmethod
    def create(cls, folder: Path, info: RunInfo) -> Journal:
        """A new run; `StoreError` if the folder holds anything."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = sorted(p.name for p in folder.iterdir())
            if RUN_JSON in found:
                raise StoreError(f"{folder} holds another run; go on with it by --resume, or name another --out")
            if found:
                raise StoreError(f"{folder} is not empty and holds no run (found {found[0]}); name another --out")
            write_info(folder, info)
            return cls(folder, info)
        except OSError as error:
            raise StoreError(f"cannot write a run folder at {folder}: {error.strerror}") from error

    @classmethod
    def resume(cls, folder: Path, info: RunInfo) -> Journal:
        """The run in `folder`, to go on with; `StoreError` if it was made from another config."""
        before = read_info(folder)
        differing = [k for k in info.config if before.config.get(k) != info.config[k]]
        if differing:
            raise StoreError(
                f"{folder} was made from another config (differs in {', '.join(differing)}); "
                "resume it with its own, or name another --out"
            )
        if before.rows != info.rows:
            raise StoreError(
                f"{folder} planned {before.rows} rows, this installation plans {info.rows}; name another --out"
            )
        journal = cls(folder, before.model_copy(update={"finished_at": None}))
        _drop_torn_line(folder / JOURNAL)
        for line in journal_lines(folder / JOURNAL):
            if isinstance(line, Closed):
                journal.closed.setdefault(line.row.key, line.row)
            else:
                journal.attempts[line.key] = line.attempt
        stored = {row.key: row for row in read_results(folder)}
        append_results(folder, [row for key, row in journal.closed.items() if key not in stored])
        lost = [row for key, row in stored.items() if key not in journal.closed]  # somebody deleted the journal
        journal._write([Closed(row=row) for row in lost])
        journal.closed |= {row.key: row for row in lost}
        write_info(folder, journal.info)
        return journal

    def open_rows(self, keys: Sequence[RowKey]) -> None:
        """Says that rows start now."""
        for key in keys:
            self.attempts[key] = self.attempts.get(key, 0) + 1
        self._write([Opened(key=key, attempt=self.attempts[key]) for key in keys])

    def close_row(self, row: Row) -> Row:
        """Says what became of a row; a second close of a key changes nothing. Gives the row as it stands."""
        if row.key in self.closed:
            return self.closed[row.key]
        row = row.model_copy(update={"attempts": self.attempts.get(row.key, 1)})
        self._write([Closed(row=row)])
        self.closed[row.key] = row
        self._pending.append(row)
        if len(self._pending) >= PART_ROWS:
            self.flush()
        return row

    def flush(self) -> None:
        """Writes closed rows that are not yet in results.parquet."""
        append_results(self.folder, self._pending)
        self._pending.clear()

    def finish(self, info: RunInfo) -> None:
        """Writes the rest, and the final run.json."""
        self.flush()
        self.info = info
        write_info(self.folder, info)

    def _write(self, lines: Sequence[Opened | Closed]) -> None:
        self._file.write("".join(line.model_dump_json() + "\n" for line in lines).encode())
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.flush()
        self._file.close()


def _drop_torn_line(file: Path) -> None:
    """Cuts off what a killed driver left of its last line, so that the next line does not grow onto it."""
    data = file.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)
