"""What makes two failures the same: a fingerprint without addresses, paths, shapes and numbers.

>>> normalised("view(): cannot create a view of shape [1, 64] at 0x7f00 in /tmp/a.py:31")
'view(): cannot create a view of shape [#] at # in <path>'
"""

from __future__ import annotations

import hashlib
import re

from harness.records import Row

_RULES = (
    (re.compile(r"(?:[A-Za-z]:)?(?:/[\w.+@-]+){2,}(?::\d+)?"), "<path>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"[\[(](?:\s*-?\d+\s*,?)+[\])]"), "[#]"),
    (re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])"), "#"),
    (re.compile(r"'[^']*'(?=\s*(?:object|instance))"), "'…'"),
)


def normalised(message: str) -> str:
    """A message without what differs from one model or machine to the next."""
    for pattern, put in _RULES:
        message = pattern.sub(put, message)
    return " ".join(message.split())


def fingerprint(row: Row) -> str:
    """Twelve hex digits that rows of one cause share: backend, mode, status, stage, op and normalised message.

    A numeric verdict's message names this model's own figures, so there the leaf's numbers do not count.
    """
    parts = (row.backend, row.mode, row.status, row.stage or "", row.op or "", normalised(row.message))
    return hashlib.sha256("\x00".join(map(str, parts)).encode()).hexdigest()[:12]
