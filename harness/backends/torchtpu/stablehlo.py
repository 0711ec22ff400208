"""StableHLO that XLA:CPU cannot run: what is rewritten into an equal form, and what is refused.

TorchTPU has done its lowering by then; the rewrites only make its result executable without a TPU. What is refused
here is a limit of the route and is never called a gap of TorchTPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from harness.backends.base import BackendError
from harness.backends.torchtpu import rewrites
from harness.records import Status

UNRUNNABLE_CALLS = {
    "tpu_custom_call": "a Pallas kernel",
    "LuDecomposition": "LU decomposition",
    "PadRealToStatic": "a dynamic dimension",
    "SliceToDynamic": "a dynamic dimension",
}
"""Custom calls for which XLA:CPU of jaxlib 0.10.2 has no handler."""

REWRITES: dict[str, Callable[[ir.Operation], str]] = {
    "chlo.scan": rewrites.scan_to_while,
    "chlo.ragged_dot": rewrites.ragged_dot_to_dot_general,
}
"""Operations that XLA:CPU of jaxlib 0.10.2 refuses or aborts on, and what replaces each."""


def make_runnable(module: ir.Module) -> tuple[str, ...]:
    """Rewrites, in place, what XLA:CPU cannot run; gives a line for each kind of rewrite.

    `BackendError` with status skipped for what has no equal form here.
    """
    found = _operations(module)
    for operation in found:
        _refuse_unrunnable(operation)
    done: Counter[str] = Counter()
    for operation in found:
        rewrite = REWRITES.get(operation.name)
        if rewrite is None:
            continue
        with ir.InsertionPoint(operation), operation.location:
            try:
                done[rewrite(operation)] += 1
            except rewrites.NoEqualForm as error:
                raise route_limit(str(error)) from error
        operation.erase()
    return tuple(f"{line}: XLA:CPU cannot run it" + (f" ({n} times)" if n > 1 else "") for line, n in done.items())


def route_limit(what: str) -> BackendError:
    """The error for what XLA:CPU cannot run and no rewrite covers."""
    return BackendError(Status.SKIPPED, f"limit of the route, not of TorchTPU: XLA:CPU cannot run {what}")


def _operations(module: ir.Module) -> list[ir.Operation]:
    """Every operation, those in regions before the one that holds them."""
    found: list[ir.Operation] = []

    def visit(operation: Any) -> ir.WalkResult:
        found.append(operation.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _refuse_unrunnable(operation: ir.Operation) -> None:
    if operation.name == "stablehlo.custom_call":
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target in UNRUNNABLE_CALLS:
            raise route_limit(f"{target} ({UNRUNNABLE_CALLS[target]})")
