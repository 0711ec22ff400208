"""Stages of a row as a worker goes through them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from harness.records import Stage


class StageClock:
    """Measures stages in seconds and tells the board which one is running."""

    def __init__(self, tell: Callable[[Stage], None]) -> None:
        self._tell = tell
        self.current: Stage | None = None
        self.seconds: dict[Stage, float] = {}

    @contextlib.contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """The block is that stage; an exception leaves `current` at it."""
        self._tell(stage)
        self.current = stage
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
