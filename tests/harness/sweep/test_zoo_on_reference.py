"""Breadth, measured by the product itself: every base type of transformers, swept on the reference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.records import Status
from harness.sweep.config import read_config
from harness.sweep.run import sweep
from model_zoo.sources import source

CONFIG = Path(__file__).parents[3] / "configs" / "reference.yaml"
WORKING = (Status.PASS, Status.ILL_CONDITIONED, Status.REFERENCE_SUSPECT)
"""What a model that builds and runs on the reference can come to there."""


@pytest.mark.slow
def test_most_base_types_build_and_run_and_none_is_lost(tmp_path: Path) -> None:
    run, _ = sweep(read_config(CONFIG), tmp_path / "run")
    base_types = [name for name in source("transformers").names() if "/" not in name]
    assert sorted(row.model for row in run.rows) == sorted(f"transformers:{name}" for name in base_types)
    print(Counter(row.status.value for row in run.rows))
    assert sum(row.status in WORKING for row in run.rows) >= 500
    assert not [row for row in run.rows if row.status in (Status.DIVERGENT, Status.NON_FINITE, Status.CONTRACT)]
