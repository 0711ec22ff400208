"""Vendored files are what VENDORED.md says they are, with their licence."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import reports

FOLDER = Path(reports.__file__).parent / "vendor"


def test_vendored_files_are_unmodified_and_all_listed() -> None:
    listed = dict(re.findall(r"\| `([\w.]+)` \| `dist[^|]*\| `([0-9a-f]{64})`", (FOLDER / "VENDORED.md").read_text()))
    assert len(listed) == 2
    for name, digest in listed.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest
    others = {path.name for path in FOLDER.iterdir()} - set(listed)
    assert others == {"VENDORED.md", "tabulator.LICENSE"}
