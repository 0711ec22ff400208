"""What the terminal shows after a sweep and after a check: plain text on a pipe, and 80 columns are enough."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.records import Cause, Fault, Metrics, Row, RunInfo, Stage, Status
from reports import wording
from reports.summary import BLIND, Summary, Tally, summarise
from reports.view import chapters_of

_STYLES = {
    "pass": "green",
    "fallback": "cyan",
    "wrong": "magenta",
    "broken": "red",
    "other": "yellow",
    "skipped": "bright_black",
}
_MOST = 12
"""Families and causes shown; the rest is a line."""


def print_summary(
    console: Console, info: RunInfo, rows: Sequence[Row], causes: Sequence[Cause], page: Path | None = None
) -> None:
    """Print a run: statuses, families, slowest stages, causes, and where the page is.

    >>> # print_summary(Console(), run.info, run.rows, run.causes, page=run.path / "site" / "index.html")
    """
    _forgive(console)
    if not rows:
        console.print(_text("No rows: the configuration chose no models."))
        return
    summary = summarise(rows)
    _headline(console, info, summary)
    _statuses(console, summary)
    _families(console, summary)
    _stages(console, summary)
    _causes(console, rows, causes)
    if summary.substituted:
        _heading(console, f"Substituted in {wording.plural(len(summary.substituted), 'model')}")
        _listed(console, ", ".join(summary.substituted))
    if page is not None:
        console.print()
        # A path is for copying: never wrapped, never cut.
        console.print(_text(f"Page: {page}"), soft_wrap=True)


def print_check(console: Console, row: Row, info: RunInfo | None = None) -> None:
    """Print one row as a page: does it run, how far from the truth, which ops, where the time went.

    >>> # print_check(Console(), row)
    """
    _forgive(console)
    _verdict(console, row)
    _distance(console, row.metrics)
    _ops(console, row)
    _times(console, row)
    _heading(console, "Again")
    console.print(_text("  " + row.command), soft_wrap=True)  # for copying: never wrapped, never cut
    if info is not None:
        versions = "  ".join(f"{name} {version}" for name, version in info.versions.items())
        _heading(console, "Made with")
        _listed(console, versions)
        _listed(console, f"{info.machine.processor}, {info.machine.cpu_capability or 'plain'} kernels, seed {row.seed}")
    if row.detail and not row.status.is_pass:
        _heading(console, "Detail")
        for line in wording.clean(row.detail).rstrip().splitlines():
            _listed(console, line)


def _headline(console: Console, info: RunInfo, summary: Summary) -> None:
    total = summary.total
    line = Text.assemble(
        (wording.percent(total.passes, total.rows), "bold"),
        f" pass: {total.passes} of {wording.plural(total.rows, 'row')}, ",
        (f"{total.failures} the backend's fault", "red" if total.failures else ""),
        f", {total.others} not the backend's",
    )
    console.print(line)
    check = "all closed once" if total.rows == info.rows else f"{total.rows} closed, the rest is missing"
    console.print(_text(f"{info.rows} planned, {check}; {wording.seconds(info.wall_seconds)}, seed {info.seed}"))
    for route in summary.routes:
        console.print(_text(f"{route.backend}: {route.route} ({wording.plural(route.rows, 'row')})"))
    if summary.observability is not None:
        blind = f", {wording.plural(len(summary.blind), 'model')} below {BLIND}" if summary.blind else ""
        console.print(_text(f"Observability: median {summary.observability:.2f}{blind}"))


def _statuses(console: Console, summary: Summary) -> None:
    table = _table("status", "rows", "share")
    for status, n in reversed(summary.by_status.items()):
        table.add_row(_mark(console, status), str(n), wording.percent(n, summary.total.rows))
    _heading(console, "By status")
    _shown(console, table)


def _families(console: Console, summary: Summary) -> None:
    table = _table("family", "rows", "pass", "backend's fault", "other")
    shown = summary.families[:_MOST]
    for tally in shown:
        figures = (tally.rows, tally.passes, tally.failures, tally.others)
        table.add_row(_text(tally.name), *map(str, figures))
    _heading(console, "By family")
    _shown(console, table)
    if rest := summary.families[_MOST:]:
        whole = Tally("rest", *(sum(getattr(tally, name) for tally in rest) for name in ("rows", "passes", "failures")))
        many = wording.plural(len(rest), "more family", "more families")
        _listed(console, f"{many}: {whole.passes} of {wording.plural(whole.rows, 'row')} pass")


def _stages(console: Console, summary: Summary) -> None:
    if not summary.stages:
        return
    table = _table("stage", "total", "share", "slowest", "row", numbers=(1, 2, 3))
    for stage in summary.stages:
        row = stage.slowest[0]
        longest = wording.seconds(row.stage_seconds[stage.stage])
        share = f"{100 * stage.share:.0f} %"
        table.add_row(stage.stage.value, wording.seconds(stage.seconds), share, longest, _text(row.model))
    _heading(console, "Time by stage")
    _shown(console, table)
    table = _table("time", "longest stage", "backend", "slowest row", numbers=(0,))
    for row in summary.slowest:
        most = max(row.stage_seconds, key=row.stage_seconds.__getitem__, default=None)
        longest = f"{most.value} {wording.seconds(row.stage_seconds[most])}" if most else "-"
        table.add_row(wording.seconds(row.seconds), longest, _text(row.backend), _text(row.model))
    console.print()
    _shown(console, table)


def _causes(console: Console, rows: Sequence[Row], causes: Sequence[Cause]) -> None:
    """One line per cause; rows that no cause was found for yet are grouped by what they say, as on the page."""
    for chapter in chapters_of(rows, causes):
        _heading(console, f"{chapter.title}: {wording.plural(chapter.rows, 'row')}")
        width = 2 + max(len(wording.MARKS[group.status].label) for group in chapter.groups[:_MOST])
        for group in chapter.groups[:_MOST]:
            models = wording.plural(len({row.model for row in group.rows}), "model")
            mark = _mark(console, group.status, group.rows[0])
            mark.pad_right(width - len(mark.plain))
            line = Text.assemble("  ", mark, f"  {models:<9}  ")
            op = group.op if group.op and group.op not in group.message else ""
            line.append_text(_text(" ".join(filter(None, (op, *group.message.split())))))
            if console.is_terminal:  # on a pipe the whole message, for grep
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
        if (rest := len(chapter.groups) - _MOST) > 0:
            _listed(console, f"and {wording.plural(rest, 'more cause')}, on the page")


def _verdict(console: Console, row: Row) -> None:
    runs = "runs" if row.status.is_pass else "does not run" if _never_ran(row) else "runs, with wrong results"
    if row.at_fault is not Fault.BACKEND and not row.status.is_pass:
        runs = "no verdict"
    line = Text.assemble((runs, "bold"), "  ", _mark(console, row.status, row))
    if not row.status.is_pass:
        where = f" in {row.stage.value}" if row.stage else ""
        line.append(f"{where}; fault: {wording.FAULTS[row.at_fault]}")
    console.print(_text(str(row.key)), style="bold")
    console.print(line)
    if row.message:
        console.print(_text(row.message))
    reduced = ", reduced" if row.reduced else ""
    pairs = [
        ("op", row.op or ""),
        ("route", row.route),
        ("model", f"{wording.count(row.parameters)} parameters{reduced}" if row.parameters is not None else ""),
        ("took", wording.seconds(row.seconds)),
        ("peak memory", f"{row.peak_memory_mib:.0f} MiB" if row.peak_memory_mib is not None else ""),
        ("substituted", ", ".join(row.substituted)),
        ("observability", _observability(row)),
        ("also found", "; ".join(row.findings)),
    ]
    _pairs(console, pairs)


def _observability(row: Row) -> str:
    if row.observability is None:
        return ""
    states = ", hidden states judged too" if row.hidden_states else ""
    return f"{row.observability:.2f} of the op calls would show a fault of 1 %{states}"


def _never_ran(row: Row) -> bool:
    return wording.MARKS[row.status].tone == "broken" or row.status is Status.NOT_EXECUTED


def _distance(console: Console, metrics: Metrics) -> None:
    _heading(console, "How far from the truth")
    if metrics == Metrics():
        _listed(console, "The outputs were not compared.")
        return
    index = f"[{', '.join(map(str, metrics.index))}]" if metrics.index is not None else ""
    over = metrics.elements_over
    m = wording.number
    pairs = [
        ("worst element", f"{m(metrics.worst_in_budgets)} x budget" if metrics.worst_in_budgets is not None else ""),
        ("at", f"{metrics.leaf or ''}{index}"),
        ("device", m(metrics.device_value, 9) if metrics.device_value is not None else ""),
        ("reference", m(metrics.reference_value, 9) if metrics.reference_value is not None else ""),
        ("fp64", m(metrics.control_value, 9) if metrics.control_value is not None else ""),
        ("out of budget", f"{over or 0:,} of {metrics.elements:,} elements" if metrics.elements is not None else ""),
        ("RMS ratio", f"{m(metrics.rms_ratio)}  (device over reference)" if metrics.rms_ratio is not None else ""),
        (
            "amplification",
            f"{m(metrics.amplification)} epsilons per epsilon of the inputs" if metrics.amplification else "",
        ),
        ("max abs", f"{m(metrics.max_abs)}  (for show)" if metrics.max_abs is not None else ""),
        ("cosine", f"{wording.cosine(metrics.cosine)}  (for show)" if metrics.cosine is not None else ""),
    ]
    _pairs(console, pairs)


def _ops(console: Console, row: Row, top: int = 8) -> None:
    calls = sum(row.op_counts.values())
    _heading(console, f"Ops: {len(row.op_counts)} distinct, {wording.plural(calls, 'call')}" if calls else "Ops")
    if not calls:
        _listed(console, "No op was recorded.")
    table = _table()
    for op, n in sorted(row.op_counts.items(), key=lambda pair: (-pair[1], pair[0]))[:top]:
        table.add_row(_text(op), str(n))
    if calls:
        _shown(console, table)
    if (rest := len(row.op_counts) - top) > 0:
        _listed(console, f"and {rest} more")
    if row.fallback_ops:
        _listed(console, "on the CPU: " + ", ".join(row.fallback_ops))


def _times(console: Console, row: Row) -> None:
    if not row.stage_seconds:
        return
    _heading(console, "Time by stage")
    longest = max(row.stage_seconds.values())
    block = "#" if _plain(console) else "━"
    table = _table("stage", "time", "", numbers=(1,), header=False)
    for stage, spent in sorted(row.stage_seconds.items(), key=lambda pair: list(Stage).index(pair[0])):
        bar = Text(block * round(30 * spent / longest) if longest else "", style="blue")
        table.add_row(stage.value, wording.seconds(spent), bar)
    _shown(console, table)


def _plain(console: Console) -> bool:
    """Whether the stream takes ASCII only: a C locale, an old Windows console."""
    return not console.encoding.lower().startswith("utf")


def _forgive(console: Console) -> None:
    """Let a stream that takes ASCII only replace what it cannot show, instead of raising half-way."""
    if _plain(console) and isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")


def _mark(console: Console, status: Status, row: Row | None = None) -> Text:
    mark = wording.MARKS[status]
    tone = wording.tone_of(row) if row else mark.tone
    return Text(f"{mark.ascii if _plain(console) else mark.symbol} {mark.label}", style=_STYLES[tone])


def _table(*columns: str, numbers: tuple[int, ...] | None = None, header: bool = True) -> Table:
    """A table without lines; the first column is text, the others numbers unless told."""
    table = Table(box=None, show_header=bool(columns) and header, pad_edge=False, padding=(0, 2), header_style="dim")
    for place, name in enumerate(columns or ("", "")):
        number = place in numbers if numbers is not None else place > 0
        # A name is folded, not cut: what was cut cannot be searched for.
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def _pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    table = _table("", "", numbers=(), header=False)
    for name, value in pairs:
        if value:
            table.add_row(Text(name, style="dim"), _text(value))
    _shown(console, table)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _listed(console: Console, text: str) -> None:
    console.print(Padding(_text(text), (0, 0, 0, 2), expand=False))


def _shown(console: Console, table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _text(text: str) -> Text:
    """Text of others: no markup, no escape sequences, and breakable anywhere."""
    return Text(wording.clean(text), overflow="fold")
