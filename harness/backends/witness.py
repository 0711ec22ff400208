"""What a backend claims to have executed, held against what PyTorch's CPU kernels were seen to compute meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import BackendError, Observation
from harness.records import Status

_MOVES_DATA = frozenset({"clone", "copy", "lift", "lift_fresh", "_local_scalar_dense", "_to_copy", "contiguous", "set"})
_MAKES_DATA = ("empty", "zeros", "ones", "full", "new_", "scalar_tensor")


class Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the overloads that compute something on the CPU; views, copies and new tensors are no computing."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _computes(func):
            self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def corrected(seen: Observation, on_cpu: Mapping[str, int], backend: str) -> Observation:
    """The observation with what ran on the CPU taken from `executed` and named in `fallback`.

    `BackendError` (`not_executed`) if no op that computes is left of what it claims.
    """
    if not on_cpu:
        return seen
    executed = {op: count - on_cpu.get(op, 0) for op, count in seen.executed.items()}
    executed = {op: count for op, count in executed.items() if count > 0}
    if any(map(_named_computes, seen.executed)) and not any(map(_named_computes, executed)):
        claimed, counted = sum(seen.executed.values()), sum(on_cpu.values())
        message = f"{backend} claims {claimed} op calls on the device, but {counted} were seen to run on the CPU"
        raise BackendError(Status.NOT_EXECUTED, message, op=max(on_cpu, key=lambda op: on_cpu[op]))
    return replace(seen, executed=executed, fallback=tuple(sorted({*seen.fallback, *on_cpu})))


@cache
def _computes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order op: what it calls is counted
        return False
    name = schema.name.partition("::")[2].rstrip("_")
    if name in _MOVES_DATA or name.startswith(_MAKES_DATA):
        return False
    return not any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _named_computes(name: str) -> bool:
    """The same for an overload by name, `aten::add.Tensor`; one that PyTorch does not know computes."""
    space, _, rest = name.partition("::")
    op, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), op, None)
    func = getattr(packet, overload or "default", None)
    return func is None or _computes(func)
