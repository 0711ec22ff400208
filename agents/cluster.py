"""From failing rows to causes: one cause per fingerprint, with the models it hits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agents.fingerprint import fingerprint, normalised
from harness.records import Cause, Row


def causes_of(rows: Sequence[Row]) -> list[Cause]:
    """The causes behind the rows that did not pass, the widest first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if not row.status.is_pass:
            groups[fingerprint(row)].append(row)
    causes = [
        Cause(
            id=key,
            backend=group[0].backend,
            status=group[0].status,
            op=group[0].op,
            message=group[0].message if len(group) == 1 else normalised(group[0].message),
            models=tuple(dict.fromkeys(row.model for row in group)),
        )
        for key, group in groups.items()
    ]
    return sorted(causes, key=lambda cause: (-len(cause.models), cause.id))
