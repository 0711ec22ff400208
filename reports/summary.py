"""A run in numbers: what page and terminal both say about it.

>>> summarise([]).pass_rate is None
True
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.records import Fault, Row, Stage, Status
from reports.wording import RANK

BLIND = 0.8
"""Observability below which a model is marked."""


@dataclass(frozen=True)
class Tally:
    """Rows under one name (a family, a backend and mode), split by what became of them."""

    name: str
    rows: int
    passes: int
    failures: int
    """Rows that did not pass, and the backend is at fault."""

    @property
    def others(self) -> int:
        """Rows that did not pass, and the backend is not at fault."""
        return self.rows - self.passes - self.failures

    @property
    def pass_rate(self) -> float | None:
        """Passes over all rows, 0 to 1; None without rows."""
        return self.passes / self.rows if self.rows else None


@dataclass(frozen=True)
class RouteShare:
    """How many rows of a backend were reached over one route."""

    backend: str
    route: str
    rows: int
    share: float
    """Of the backend's rows, 0 to 1."""


@dataclass(frozen=True)
class StageTime:
    """Time spent in a stage over all rows, in seconds of worker wall time."""

    stage: Stage
    seconds: float
    share: float
    """Of the time of all stages, 0 to 1."""
    slowest: tuple[Row, ...]
    """The rows that spent most in this stage, slowest first."""


@dataclass(frozen=True)
class Summary:
    """What `summarise` found; every tuple is sorted, the most important first."""

    total: Tally
    models: int
    by_status: dict[Status, int]
    """Counts of the statuses that occur, worst first."""
    families: tuple[Tally, ...]
    """By architecture family: most backend failures first, then by name."""
    backends: tuple[Tally, ...]
    """By `backend/mode`, in order of first appearance."""
    routes: tuple[RouteShare, ...]
    stages: tuple[StageTime, ...]
    """In the order in which stages happen."""
    slowest: tuple[Row, ...]
    """The slowest rows."""
    substituted: tuple[str, ...]
    """Models that ran with something replaced by an equal form."""
    observability: float | None = None
    """Median over the models that it was measured of."""
    blind: tuple[str, ...] = ()
    """Models whose observability is below `BLIND`: their passes mean little."""

    @property
    def pass_rate(self) -> float | None:
        """Passes over all rows, 0 to 1; None without rows."""
        return self.total.pass_rate


def summarise(rows: Sequence[Row], top: int = 5) -> Summary:
    """Count `rows`; `top` says how many slowest rows are kept."""
    statuses = Counter(row.status for row in rows)
    seen = {row.model: row.observability for row in rows if row.observability is not None}
    families = _tallies(rows, lambda row: row.family or "(none)")
    return Summary(
        total=_tally("all", rows),
        models=len({row.model for row in rows}),
        by_status={status: statuses[status] for status in sorted(statuses, key=RANK.__getitem__)},
        families=tuple(sorted(families, key=lambda tally: (-tally.failures, -tally.others, tally.name))),
        backends=_tallies(rows, lambda row: f"{row.backend}/{row.mode}"),
        routes=_routes(rows),
        stages=_stages(rows, top),
        slowest=tuple(sorted(rows, key=lambda row: -row.seconds)[:top]),
        substituted=tuple(sorted({row.model for row in rows if row.substituted})),
        observability=statistics.median(seen.values()) if seen else None,
        blind=tuple(sorted(model for model, share in seen.items() if share < BLIND)),
    )


def _tally(name: str, rows: Iterable[Row]) -> Tally:
    rows = list(rows)
    passes = sum(row.status.is_pass for row in rows)
    failures = sum(not row.status.is_pass and row.at_fault is Fault.BACKEND for row in rows)
    return Tally(name, len(rows), passes, failures)


def _tallies(rows: Sequence[Row], name_of: Callable[[Row], str]) -> tuple[Tally, ...]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[name_of(row)].append(row)
    return tuple(_tally(name, members) for name, members in groups.items())


def _routes(rows: Sequence[Row]) -> tuple[RouteShare, ...]:
    reached = Counter((row.backend, row.route) for row in rows if row.route)
    per_backend: Counter[str] = Counter()
    for (backend, _), n in reached.items():
        per_backend[backend] += n
    return tuple(
        RouteShare(backend, route, n, n / per_backend[backend]) for (backend, route), n in reached.most_common()
    )


def _stages(rows: Sequence[Row], top: int) -> tuple[StageTime, ...]:
    spent: dict[Stage, list[Row]] = {stage: [row for row in rows if row.stage_seconds.get(stage)] for stage in Stage}
    sums = {stage: sum(row.stage_seconds[stage] for row in members) for stage, members in spent.items()}
    whole = sum(sums.values())
    return tuple(
        StageTime(
            stage,
            sums[stage],
            sums[stage] / whole,
            tuple(sorted(members, key=lambda row, s=stage: -row.stage_seconds[s])[:top]),  # type: ignore[misc]
        )
        for stage, members in spent.items()
        if members
    )
