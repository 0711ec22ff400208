"""What a worker does to its own process: stderr that outlives it, the memory limit, its peak, the garbage collector."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def settle() -> None:
    """Takes what lives now, mostly modules, out of the garbage collector's sight.

    Else every collection walks through all that torch and its friends imported: 0.35 s a model, and half of an export.
    """
    gc.collect()
    gc.freeze()


def keep_stderr(path: str) -> Any:
    """Sends this process's stderr, native code's too, to a file, and Python's frames there when it dies."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    log = Path(path).open("a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115  (for life)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log, all_threads=False)
    return log


@contextlib.contextmanager
def memory_limit(gib: float) -> Iterator[None]:
    """Lets the process allocate `gib` GiB beyond what it holds; then an allocation fails as it does on a full machine.

    RLIMIT_DATA counts private writable memory, so the address space that XLA and CUDA reserve does not count.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_bytes() + int(gib * 2**30)
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], float | None]]:
    """Yields a call that gives the peak resident memory of this process since now, in MiB; None where unknown."""
    with contextlib.suppress(OSError):  # 5 resets the peak (proc(5))
        Path("/proc/self/clear_refs").write_text("5")
    yield _resident_peak


def _resident_peak() -> float | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    return None
