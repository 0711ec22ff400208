"""The run folder: reading and writing `run.json`, `journal.jsonl`, `results.parquet` and `causes.json`.

pandas is the analyst's door:

    from harness.store import load
    frame = load("runs/demo")
    frame[frame.status != "pass"][["model", "status", "message"]]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from harness.records import FORMAT_VERSION, Cause, Closed, Opened, Record, Row, RowKey, RunInfo, Stage, journal_line

if TYPE_CHECKING:
    import pandas
    import pyarrow

RUN_JSON, JOURNAL, RESULTS, CAUSES, SITE = "run.json", "journal.jsonl", "results.parquet", "causes.json", "site"

_causes: TypeAdapter[list[Cause]] = TypeAdapter(list[Cause])


class StoreError(Exception):
    """A run folder that cannot be used; the message is one line: what is wrong, what was found, what to do."""


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    path: Path
    info: RunInfo
    rows: list[Row]
    """The closed rows, in the order in which they closed."""
    open: list[RowKey]
    """Rows that were opened and not closed: in flight, or lost with a driver that was killed."""
    causes: list[Cause]


def read_run(path: str | Path) -> Run:
    """Reads a run folder, finished or not; `StoreError` if it is none or is damaged."""
    folder = Path(path)
    info = read_info(folder)
    if info.finished_at is None:
        rows, open_keys = read_journal(folder)
    else:
        rows, open_keys = read_results(folder), []
    causes_file = folder / CAUSES
    try:
        causes = _causes.validate_json(causes_file.read_bytes()) if causes_file.exists() else []
    except (ValidationError, OSError) as error:
        raise StoreError(
            f"{causes_file} is damaged: {_first(error)}; delete it, `calipers report` writes it anew"
        ) from error
    return Run(folder, info, rows, open_keys, causes)


def load(path: str | Path) -> pandas.DataFrame:
    """The rows of a run as a DataFrame, one column per field of `Row`; metrics as `metrics.worst_in_budgets` etc."""
    import pandas

    frame = pandas.DataFrame(
        [row.model_dump(mode="json") for row in read_run(path).rows], columns=list(Row.model_fields)
    )
    flat = pandas.json_normalize(frame.pop("metrics").tolist()).add_prefix("metrics.")
    return frame.join(flat)


def read_info(folder: Path) -> RunInfo:
    """Reads run.json; `StoreError` if the folder is no run, or one of a later format."""
    file = folder / RUN_JSON
    if not folder.is_dir():
        raise StoreError(f"no run folder at {folder}: there is no such folder; name one that `calipers sweep` wrote")
    try:
        data = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "nothing"
        raise StoreError(f"{folder} is no run folder: no {RUN_JSON} in it (found {found})") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} is damaged: {_first(error)}; restore it, or start the sweep anew") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise StoreError(f"{file} has format {version}, this calipers reads up to {FORMAT_VERSION}; update calipers")
    try:
        return RunInfo.model_validate(data)
    except ValidationError as error:
        raise StoreError(f"{file} is damaged: {_first(error)}; restore it, or start the sweep anew") from error


def write_info(folder: Path, info: RunInfo) -> None:
    """Writes run.json, at once or not at all."""
    _replace(folder / RUN_JSON, info.model_dump_json(indent=1).encode())


def write_causes(folder: Path, causes: Sequence[Cause]) -> None:
    """Writes causes.json, at once or not at all."""
    _replace(folder / CAUSES, _causes.dump_json(list(causes), indent=1))


def journal_lines(file: Path) -> Iterator[Opened | Closed]:
    """The journal's lines in order. A torn last line (the driver was killed while writing) ends it silently;
    a broken line anywhere else is a `StoreError` with its number."""
    if not file.exists():
        return
    torn: str | None = None
    with file.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):
            if torn is not None:
                raise StoreError(torn)
            try:
                yield journal_line.validate_json(line)
            except ValidationError as error:
                torn = f"{file}, line {number}, is damaged: {_first(error)}; remove that line to go on without it"


def read_journal(folder: Path) -> tuple[list[Row], list[RowKey]]:
    """Closed rows, and the keys of rows that were opened and not closed. The first close of a key counts."""
    rows: dict[RowKey, Row] = {}
    opened: dict[RowKey, None] = {}
    for line in journal_lines(folder / JOURNAL):
        if isinstance(line, Closed):
            rows.setdefault(line.row.key, line.row)
        else:
            opened[line.key] = None
    return list(rows.values()), [key for key in opened if key not in rows]


def read_results(folder: Path) -> list[Row]:
    """The rows of results.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[Row] = []
    for part in result_parts(folder):
        try:
            rows += [_row(values) for values in pq.read_table(part).to_pylist()]
        except (pa.ArrowException, OSError, ValidationError) as error:
            raise StoreError(
                f"{part} is damaged: {_first(error)}; delete it and run the sweep again with --resume, "
                "which writes it anew from the journal"
            ) from error
    return rows


def result_parts(folder: Path) -> list[Path]:
    """The files of results.parquet, in the order in which they were written."""
    return sorted((folder / RESULTS).glob("part-*.parquet"))


def append_results(folder: Path, rows: Sequence[Row]) -> None:
    """Writes rows as a new part of results.parquet, at once or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not rows:
        return
    target = folder / RESULTS
    target.mkdir(exist_ok=True)
    number = max((int(p.stem.removeprefix("part-")) for p in result_parts(folder)), default=-1) + 1
    table = pa.Table.from_pylist([_plain(row) for row in rows], schema=schema())
    hidden = target / f".part-{number:05d}.{os.getpid()}"
    pq.write_table(table, hidden, compression="zstd")
    hidden.replace(target / f"part-{number:05d}.parquet")


def schema() -> pyarrow.Schema:
    """Schema of results.parquet: the fields of `Row` in order, each in the type that its annotation says."""
    import pyarrow as pa

    special = {
        "op_counts": pa.map_(pa.string(), pa.int64()),
        "stage_seconds": pa.struct([(stage.value, pa.float64()) for stage in Stage]),
    }
    return pa.schema(
        [(n, special[n] if n in special else _arrow_type(f.annotation)) for n, f in Row.model_fields.items()]
    )


def _arrow_type(annotation: Any) -> pyarrow.DataType:
    """The Arrow type of a field's annotation: optional ones as what they hold, enums as text."""
    import pyarrow as pa

    origin, inner = get_origin(annotation), [a for a in get_args(annotation) if a not in (type(None), Ellipsis)]
    if origin is UnionType:
        return _arrow_type(inner[0])
    if origin is tuple:
        return pa.list_(_arrow_type(inner[0]))
    if issubclass(annotation, Record):
        return pa.struct([(name, _arrow_type(f.annotation)) for name, f in annotation.model_fields.items()])
    known = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), datetime: pa.timestamp("us", tz="UTC")}
    return known.get(annotation, pa.string())


def _plain(row: Row) -> dict[str, Any]:
    values = row.model_dump(mode="python")
    for name in ("status", "stage", "at_fault", "numeric_class"):
        values[name] = None if values[name] is None else str(values[name])
    values["stage_seconds"] = {str(stage): seconds for stage, seconds in row.stage_seconds.items()}
    values["op_counts"] = list(row.op_counts.items())
    return values


def _row(values: dict[str, Any]) -> Row:
    values["op_counts"] = dict(values["op_counts"])
    values["stage_seconds"] = {k: v for k, v in values["stage_seconds"].items() if v is not None}
    return Row.model_validate(values)


def _replace(file: Path, data: bytes) -> None:
    hidden = file.with_name(f".{file.name}.{os.getpid()}")
    hidden.write_bytes(data)
    hidden.replace(file)


def _first(error: BaseException) -> str:
    """One line of an error; of a ValidationError, where and what."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return str(error).splitlines()[0] if str(error) else type(error).__name__
