"""How words and numbers of a run are written for a person: symbols, labels, tones, units.

Page and terminal both take them from here, so that a status looks the same everywhere.

>>> MARKS[Status.DIVERGENT].label, percent(1999, 2000)
('divergent', '99.9 %')
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import re
import textwrap
from dataclasses import dataclass
from functools import cache

from harness.records import Fault, Row, Status


@dataclass(frozen=True)
class Mark:
    """How a status is drawn: never by colour alone."""

    symbol: str
    ascii: str
    """The symbol where the terminal knows ASCII only."""
    label: str
    tone: str
    """The colour group: pass, fallback, wrong (it ran, with wrong results), broken (it did not run), other, skipped."""


MARKS: dict[Status, Mark] = {
    Status.CRASH: Mark("✕", "X", "crash", "broken"),
    Status.TIMEOUT: Mark("◷", "T", "timeout", "broken"),
    Status.OUT_OF_MEMORY: Mark("▲", "M", "out of memory", "broken"),
    Status.NOT_EXECUTED: Mark("∅", "0", "not executed", "wrong"),
    Status.NON_FINITE: Mark("∞", "N", "non-finite", "wrong"),
    Status.DIVERGENT: Mark("≠", "#", "divergent", "wrong"),
    Status.CONTRACT: Mark("≢", "C", "contract", "wrong"),
    Status.UNSUPPORTED_OP: Mark("⊘", "U", "unsupported op", "broken"),
    Status.LOWERING_ERROR: Mark("▼", "L", "lowering error", "broken"),
    Status.COMPILE_ERROR: Mark("◆", "K", "compile error", "broken"),
    Status.RUNTIME_ERROR: Mark("✖", "R", "runtime error", "broken"),
    Status.DYNAMIC_SHAPE: Mark("↔", "D", "dynamic shape", "broken"),
    Status.REFERENCE_SUSPECT: Mark("?", "?", "reference suspect", "other"),
    Status.ILL_CONDITIONED: Mark("≈", "~", "ill-conditioned", "other"),
    Status.ENVIRONMENT_ERROR: Mark("⚙", "e", "environment error", "other"),
    Status.REFERENCE_ERROR: Mark("!", "!", "reference error", "other"),
    Status.INPUT_ERROR: Mark("⊣", "i", "input error", "other"),
    Status.LOAD_ERROR: Mark("⊡", "l", "load error", "other"),
    Status.SKIPPED: Mark("–", "-", "skipped", "skipped"),
    Status.PASS_WITH_FALLBACK: Mark("◐", "%", "pass with fallback", "fallback"),
    Status.PASS: Mark("✓", "+", "pass", "pass"),
}
"""Every status, worst first: the order in which people want to see them."""

RANK: dict[Status, int] = {status: rank for rank, status in enumerate(MARKS)}
"""Place of a status in that order, 0 the worst."""

FAULTS: dict[Fault, str] = {
    Fault.NONE: "nobody's",
    Fault.BACKEND: "the backend's",
    Fault.MODEL: "the model's",
    Fault.REFERENCE: "the reference's",
    Fault.ENVIRONMENT: "the environment's",
}


def tone_of(row: Row) -> str:
    """The colour group of a row: a crash in the reference is not shown as the backend's."""
    if row.status.blames_backend and row.at_fault is not Fault.BACKEND:
        return "other"
    return MARKS[row.status].tone


@cache
def meanings() -> dict[Status, str]:
    """What each status means: the docstrings of `harness.records.Status`, which Python itself does not keep."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(Status))).body[0]
    except (OSError, TypeError, SyntaxError):  # installed without sources: a page without a glossary, not a crash
        return {}
    found: dict[Status, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for statement, following in itertools.pairwise(statements):
        match statement, following:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                found[Status[name]] = " ".join(text.split())
    return found


# Escape sequences, other control characters, and the bidirectional overrides that make text read backwards.
_UNSAFE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    r"""Text of others, without what could steer a terminal or turn the reading direction.

    >>> clean("a\x1b[31mb\x07")
    'ab'
    """
    return _UNSAFE.sub("", text.replace("\r\n", "\n"))


def number(value: float | str | None, digits: int = 3) -> str:
    """A measured number with as many digits as help: ratios and values without a unit.

    >>> number(0.00001234), number(1234567.0), number(0.98765), number(None), number(float("nan"))
    ('1.23e-05', '1.23e+06', '0.988', '–', 'NaN')
    """
    if value is None:
        return "–"
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.{digits}g}"


def cosine(value: float | None) -> str:
    """A cosine similarity; never rounded up to 1, which would claim what was not measured.

    >>> cosine(0.99999999), cosine(1.0), cosine(0.5)
    ('0.999999', '1', '0.5')
    """
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{math.floor(value * 1e6) / 1e6:.6g}"


def seconds(value: float | None) -> str:
    """A duration given in seconds.

    >>> seconds(0.0042), seconds(7.25), seconds(75), seconds(7384)
    ('4.2 ms', '7.2 s', '1 min 15 s', '2 h 03 min')
    """
    if value is None:
        return "–"
    if value < 0.1:
        return f"{value * 1000:.2g} ms" if value else "0 s"
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: int | None) -> str:
    """A large count, as in parameters.

    >>> count(25_557_032), count(950), count(None)
    ('25.6 M', '950', '–')
    """
    if value is None:
        return "–"
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)


def percent(part: int, whole: int) -> str:
    """A share, rounded down: 100 % means all.

    >>> percent(37, 40), percent(40, 40), percent(0, 0)
    ('92.5 %', '100 %', '–')
    """
    if not whole:
        return "–"
    return f"{math.floor(1000 * part / whole) / 10:g} %"


def plural(n: int, word: str, many: str = "") -> str:
    """A count with its word.

    >>> plural(1, "row"), plural(2, "family", "families")
    ('1 row', '2 families')
    """
    return f"{n} {word if n == 1 else many or word + 's'}"
