"""The page as text: rows are the inputs, hostile text is inert, the data reads back as what went in."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from harness.records import Row, RowKey
from reports.page import RowsMissing, render, write_site
from reports.view import anchor_of, chapters_of, matrix_of
from tests.reports.sample_run import HOSTILE_MODEL, sample_causes, sample_info, sample_rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return sample_rows()


@pytest.fixture(scope="module")
def page(rows: list[Row]) -> str:
    return render(sample_info(len(rows)), rows, sample_causes())


def data_of(page: str) -> dict[str, list[object]]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_a_missing_row_stops_the_page_and_is_named(rows: list[Row]) -> None:
    lost: RowKey = rows[0].key
    with pytest.raises(RowsMissing) as error:
        render(sample_info(len(rows)), rows[1:], [], open_keys=[lost])
    said = str(error.value)
    assert "62 rows planned, 61 closed" in said
    assert str(lost) in said
    assert "calipers sweep CONFIG --out RUN --resume" in said
    assert "\n" not in said


def test_rows_never_opened_are_counted(rows: list[Row]) -> None:
    with pytest.raises(RowsMissing, match="never opened: 2"):
        render(sample_info(len(rows)), rows[2:], [])


def test_a_double_row_stops_the_page_even_when_the_count_is_right(rows: list[Row]) -> None:
    with pytest.raises(RowsMissing, match="closed twice: " + re.escape(str(rows[1].key))):
        render(sample_info(len(rows)), [*rows[1:], rows[1]], [])


def test_no_page_is_left_when_rows_are_missing(rows: list[Row], tmp_path: Path) -> None:
    with pytest.raises(RowsMissing):
        write_site(tmp_path / "site", sample_info(len(rows)), rows[1:], [])
    assert not (tmp_path / "site").exists()


def test_the_page_is_written_whole_and_small(rows: list[Row], tmp_path: Path) -> None:
    path = write_site(tmp_path / "site", sample_info(len(rows)), rows, sample_causes())
    assert [found.name for found in path.parent.iterdir()] == ["index.html"]
    assert path.stat().st_size < 3_000_000 * len(rows) / 100


def test_the_data_reads_back_as_the_rows(page: str, rows: list[Row]) -> None:
    back = [Row.model_validate(row) for row in data_of(page)["rows"]]
    assert any(math.isnan(row.metrics.device_value or 0) for row in rows)
    # repr, because NaN is not equal to itself
    assert [repr(row.model_dump(mode="json")) for row in back] == [repr(row.model_dump(mode="json")) for row in rows]


def test_hostile_text_stays_text(page: str) -> None:
    assert HOSTILE_MODEL not in page
    assert "<script>window" not in page
    assert "<img" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]  # type: ignore[index]


def test_the_policy_allows_no_inline_code_but_its_own_and_no_request(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]  # type: ignore[index]
    assert "default-src 'none'" in policy.replace("&#39;", "'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"\s(style|on\w+)=\"", page.split("<body>")[1].split('<script type="application/json"')[0])


def test_every_row_that_did_not_pass_has_its_section_and_command(page: str, rows: list[Row]) -> None:
    bad = [row for row in rows if not row.status.is_pass]
    assert len({anchor_of(row) for row in rows}) == len(rows)
    assert sorted(re.findall(r'<article class="failure" id="([^"]*)"', page)) == sorted(map(anchor_of, bad))
    assert "calipers check transformers:mamba2 --backend torchtpu --mode eager --seed 3" in page


def test_rows_of_one_cause_stand_together_and_no_row_is_lost(rows: list[Row]) -> None:
    chapters = chapters_of(rows, sample_causes())
    assert [chapter.anchor for chapter in chapters] == ["backend", "elsewhere", "unmeasured"]
    assert len(chapters[0].groups[0].rows) == 5
    assert sum(chapter.rows for chapter in chapters) == sum(not row.status.is_pass for row in rows)


def test_a_cell_shows_its_worst_row(rows: list[Row]) -> None:
    two = [row.model_copy(update={"family": "same"}) for row in rows if row.family in ("gpt2", "bert")]
    (line,) = matrix_of(two).lines
    inductor = line.cells[1]
    assert inductor is not None
    assert (inductor.status, inductor.passes, inductor.rows) == ("divergent", 1, 2)


def test_empty_pages_say_why(rows: list[Row]) -> None:
    green = [row for row in rows if row.status.is_pass]
    assert "No failures: every row passed." in render(sample_info(len(green)), green, [])
    nothing = render(sample_info(0), [], [])
    assert "the configuration chose no models" in nothing
    assert "No failures, because nothing was measured." in nothing
