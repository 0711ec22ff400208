"""What it means that a worker died: from Ray's exception and the worker's last words to a status and one line."""

from __future__ import annotations

import re

from ray.exceptions import NodeDiedError, RayActorError, RayTaskError, WorkerCrashedError
from ray.exceptions import OutOfMemoryError as RayOutOfMemory

from harness.records import Stage, Status

_SIGNALS = (
    ("Segmentation fault", "SIGSEGV (segmentation fault)"),
    ("SIGSEGV", "SIGSEGV (segmentation fault)"),
    ("Bus error", "SIGBUS (bus error)"),
    ("Floating point exception", "SIGFPE (floating point exception)"),
    ("SIGFPE", "SIGFPE (floating point exception)"),
    ("Illegal instruction", "SIGILL (illegal instruction)"),
    ("SIGILL", "SIGILL (illegal instruction)"),
    ("Fatal Python error: Aborted", "SIGABRT (abort)"),
    ("SIGABRT", "SIGABRT (abort)"),
)
_CHECK = re.compile(r"^.*?((?:Check failed|CHECK failed|terminate called|Assertion .* failed|LLVM ERROR).*)$", re.M)


def cause_of_death(error: Exception, words: str, stage: Stage | None) -> tuple[Status, str]:
    """Status and message for a worker that died in `stage` and left `words` on its stderr."""
    where = f"in stage {stage}" if stage else "before its first stage"
    if isinstance(error, RayTaskError):
        cause = error.cause or error
        return Status.ENVIRONMENT_ERROR, f"the harness failed {where}: {type(cause).__name__}: {_first(cause)}"
    if isinstance(error, RayOutOfMemory) or "due to the node running low on memory" in str(error):
        return Status.OUT_OF_MEMORY, f"killed {where}: the machine ran low on memory"
    if "bad_alloc" in words or "Cannot allocate memory" in words:
        return Status.OUT_OF_MEMORY, f"memory limit reached {where}: an allocation failed in native code"
    if not isinstance(error, RayActorError | WorkerCrashedError | NodeDiedError):
        return Status.ENVIRONMENT_ERROR, f"Ray failed {where}: {type(error).__name__}: {_first(error)}"
    if isinstance(error, NodeDiedError) or "its node has died" in str(error):
        return Status.ENVIRONMENT_ERROR, f"the node was lost {where}"
    check = _CHECK.search(words)
    said = f": {check[1].strip()[:200]}" if check else ""
    for sign, signal in _SIGNALS:
        if sign in words:
            return Status.CRASH, f"the process died of {signal} {where}{said}"
    return Status.CRASH, f"the process ended {where} without a word (exit called, or killed from outside){said}"


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0][:300] if str(error) else ""
