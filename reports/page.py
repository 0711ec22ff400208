"""The run as one HTML page that holds all it needs: opens from a file, offline, and asks nobody anything.

>>> # write_site(run / "site", info, rows, causes)  ->  run/site/index.html
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from harness.records import Cause, Row, RowKey, RunInfo
from reports import wording
from reports.summary import summarise
from reports.view import anchor_of, chapters_of, matrix_of, payload_of, run_facts

_HERE = Path(__file__).parent
_SCRIPTS = ("vendor/tabulator.min.js", "templates/table.js", "templates/row.js", "templates/page.js")
_STYLES = ("vendor/tabulator_simple.min.css", "templates/page.css", "templates/table.css", "templates/failures.css")


class RowsMissing(ValueError):
    """The rows are not the inputs: some planned row did not close, or one closed twice. No page is written."""


def render(info: RunInfo, rows: Sequence[Row], causes: Sequence[Cause], open_keys: Sequence[RowKey] = ()) -> str:
    """The whole page. Raises RowsMissing unless every planned row stands in `rows` exactly once.

    `open_keys` are rows that were opened and not closed: they make the error name what is missing.
    """
    check_rows(info, rows, open_keys)
    scripts = [_inline(name) for name in _SCRIPTS]
    styles = [_inline(name) for name in _STYLES]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            policy=_policy(scripts, styles),
            scripts=scripts,
            styles=styles,
            info=info,
            rows=rows,
            summary=summarise(rows),
            matrix=matrix_of(rows),
            chapters=chapters_of(rows, causes),
            payload=payload_of(rows),
            config=run_facts(info.config),
        )
    )


def write_site(
    folder: Path, info: RunInfo, rows: Sequence[Row], causes: Sequence[Cause], open_keys: Sequence[RowKey] = ()
) -> Path:
    """Write `folder/index.html` and return its path; a reader sees the old page or the new one, never half of one."""
    page = render(info, rows, causes, open_keys)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    part = folder / f".index.html.{os.getpid()}"
    part.write_bytes(page.encode("utf-8", "replace"))
    part.replace(path)
    return path


def check_rows(info: RunInfo, rows: Sequence[Row], open_keys: Sequence[RowKey] = ()) -> None:
    """N models in, N rows out: raise RowsMissing where that does not hold.

    >>> # RowsMissing: 40 rows planned, 39 closed; missing: timm:resnet18 on torchtpu/eager ...; finish it with ...
    """
    closed = Counter(row.key for row in rows)
    twice = [str(key) for key, n in closed.items() if n > 1]
    missing = [str(key) for key in open_keys if key not in closed]
    if len(rows) == info.rows and not twice and not missing:
        return
    said = [f"{wording.plural(info.rows, 'row')} planned, {len(rows)} closed"]
    if twice:
        said.append("closed twice: " + _first(twice))
    if missing:
        said.append("opened and not closed: " + _first(missing))
    if (unopened := info.rows - len(closed) - len(missing)) > 0:
        said.append(f"never opened: {unopened}")
    said.append("finish it with calipers sweep CONFIG --out RUN --resume")
    raise RowsMissing(wording.clean("; ".join(said)).replace("\n", " "))


def _first(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _inline(name: str) -> Markup:
    """A script or style sheet as it stands in the page."""
    text = (_HERE / name).read_text(encoding="utf-8").replace("\r\n", "\n")
    # The map is not shipped; the comment would make developer tools look for it.
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("//# sourceMap", "/*# sourceMap")))
    if "</script" in text.lower() or "</style" in text.lower():
        raise ValueError(f"{name} cannot be inlined: it would close its own element")
    return Markup(text)


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The page's Content-Security-Policy: these very blocks may run, and nothing may be fetched."""

    def hashes(blocks: Sequence[str]) -> str:
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in blocks)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": wording.clean,
        "number": wording.number,
        "cosine": wording.cosine,
        "seconds": wording.seconds,
        "count": wording.count,
        "plural": wording.plural,
        "anchor": anchor_of,
        "tone": wording.tone_of,
    }
    environment.globals |= {
        "marks": wording.MARKS,
        "faults": wording.FAULTS,
        "percent": wording.percent,
        "meanings": wording.meanings(),
    }
    return environment
