"""What the templates draw, as plain data: the matrix, the groups of failures, the payload of the table."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.records import Cause, Fault, Row, RowKey, Status
from reports.wording import FAULTS, MARKS, RANK, clean, meanings, tone_of

_MODALITIES = ("image", "text", "text-to-text", "audio", "video", "multimodal", "time-series")


@dataclass(frozen=True)
class Column:
    """A column of the matrix: one backend in one mode, dtype, profile and workload."""

    backend: str
    mode: str
    dtype: str
    profile: str
    workload: str = "forward"

    @classmethod
    def of(cls, row: Row | RowKey) -> Column:
        """The column that a row stands in."""
        return cls(row.backend, row.mode, row.dtype, row.profile, row.workload)


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix: the rows of one family in one column."""

    status: Status
    """The worst of its rows."""
    tone: str
    rows: int
    passes: int


@dataclass(frozen=True)
class Line:
    """A line of the matrix: a family and its cells, None where it was not planned."""

    family: str
    modality: str
    cells: tuple[Cell | None, ...]

    @property
    def passes(self) -> bool:
        """Whether every row of the family passed in every column."""
        return all(cell is None or cell.rows == cell.passes for cell in self.cells)


@dataclass(frozen=True)
class Matrix:
    """Families by columns, worst families first."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    @property
    def modalities(self) -> dict[str, list[Line]]:
        """The lines by modality: the usual ones first, always in the same order."""
        groups: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            groups[line.modality or "other"].append(line)
        usual = {name: place for place, name in enumerate(_MODALITIES)}
        return dict(sorted(groups.items(), key=lambda group: (usual.get(group[0], len(usual)), group[0])))

    def labels(self, column: Column) -> tuple[str, ...]:
        """What distinguishes a column from the others: backend and mode always, the rest where it varies."""
        rest = ("dtype", "profile", "workload")
        varying = [name for name in rest if len({getattr(other, name) for other in self.columns}) > 1]
        return (column.backend, column.mode, *(getattr(column, name) for name in varying))


def matrix_of(rows: Sequence[Row]) -> Matrix:
    """Arrange `rows` as families by columns."""
    columns = tuple(dict.fromkeys(Column.of(row) for row in rows))
    families: dict[str, dict[Column, list[Row]]] = defaultdict(lambda: defaultdict(list))
    modality: dict[str, str] = {}
    for row in rows:
        families[row.family][Column.of(row)].append(row)
        modality.setdefault(row.family, row.modality)
    lines = [
        Line(family, modality[family], tuple(_cell(cells[column]) if column in cells else None for column in columns))
        for family, cells in families.items()
    ]
    return Matrix(columns, tuple(sorted(lines, key=_badness)))


def _cell(rows: Sequence[Row]) -> Cell:
    worst = min(rows, key=lambda row: RANK[row.status])
    return Cell(worst.status, tone_of(worst), len(rows), sum(row.status.is_pass for row in rows))


def _badness(line: Line) -> tuple[int, int, str]:
    ranks = [RANK[cell.status] for cell in line.cells if cell]
    return (
        min(ranks),
        -sum(cell.rows - cell.passes for cell in line.cells if cell),
        line.family,
    )


@dataclass(frozen=True)
class Group:
    """Failing rows with one cause, or with the same words where no cause was found yet."""

    anchor: str
    backend: str
    status: Status
    op: str | None
    message: str
    rows: tuple[Row, ...]

    @property
    def tone(self) -> str:
        """The colour group of its first row."""
        return tone_of(self.rows[0])


@dataclass(frozen=True)
class Chapter:
    """The groups of one kind of fault."""

    anchor: str
    title: str
    lead: str
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        """How many rows its groups hold."""
        return sum(len(group.rows) for group in self.groups)


def chapters_of(rows: Sequence[Row], causes: Sequence[Cause]) -> tuple[Chapter, ...]:
    """Group the rows that did not pass: the backend's first, the groups with most rows first."""
    known = {cause.id: cause for cause in causes}
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if not row.status.is_pass:
            kind = _chapter_of(row)
            same = (row.cause,) if row.cause in known else (row.backend, row.status, row.op or "", row.message)
            grouped[kind, *same].append(row)
    groups: dict[str, list[Group]] = defaultdict(list)
    for (kind, *_), members in grouped.items():
        first = members[0]
        cause = known.get(first.cause or "")
        groups[kind].append(
            Group(
                anchor="cause-" + _digest(cause.id if cause else str(first.key)),
                backend=first.backend,
                status=cause.status if cause else first.status,
                op=cause.op if cause else first.op,
                message=cause.message if cause else first.message,
                rows=tuple(members),
            )
        )
    return tuple(
        Chapter(kind, title, lead, tuple(sorted(groups[kind], key=lambda g: (-len(g.rows), RANK[g.status]))))
        for kind, (title, lead) in _CHAPTERS.items()
        if kind in groups
    )


_CHAPTERS = {
    "backend": ("The backend's fault", "The backend under test is at fault: these are the findings."),
    "elsewhere": (
        "Not the backend's fault",
        "Something failed before the backend was reached, or the reference cannot be trusted.",
    ),
    "unmeasured": ("No verdict", "Not measured, or rounding alone moves the outputs too far to tell."),
}


def _chapter_of(row: Row) -> str:
    if row.at_fault is Fault.BACKEND:
        return "backend"
    return "unmeasured" if row.at_fault is Fault.NONE else "elsewhere"


def anchor_of(row: Row) -> str:
    """The place of a row in the page; the same in every run, so that a link keeps."""
    return "row-" + _digest(str(row.key))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]


def payload_of(rows: Sequence[Row]) -> Markup:
    """The rows as JSON that can stand inside a script element, whatever text they hold."""
    data = {
        "rows": [_finite(row.model_dump(mode="json")) for row in rows],
        "extras": [{"anchor": anchor_of(row), "tone": tone_of(row), "command": row.command} for row in rows],
        "statuses": {
            status.value: {
                "symbol": mark.symbol,
                "label": mark.label,
                "tone": mark.tone,
                "rank": RANK[status],
                "meaning": meanings().get(status, ""),
            }
            for status, mark in MARKS.items()
        },
        "faults": {fault.value: text for fault, text in FAULTS.items()},
    }
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    """JSON has no NaN: non-finite numbers become the strings that pydantic reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def run_facts(config: dict[str, Any]) -> str:
    """The config as it was used, as text."""
    return clean(json.dumps(config, indent=2, ensure_ascii=False, default=str))
