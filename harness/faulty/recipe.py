"""What a fault is, and the device that has it: a dispatch mode that hands the calls of some ops to a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch  # private; torch 2.14.1
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import Observation
from harness.records import Status


class Kind(StrEnum):
    """The kinds of faults that backends have."""

    WRONG_CONSTANT = "wrong-constant"
    """An epsilon, a momentum, a scale, a coefficient."""
    ARGUMENT_IGNORED = "argument-ignored"
    TRANSPOSED = "transposed"
    """Operands swapped, a matrix read in the other layout, the other axis."""
    OFF_BY_ONE = "off-by-one"
    """In pooling, padding, slicing, rolling, indexing."""
    BF16_ACCUMULATION = "bf16-accumulation"
    FLUSH_TO_ZERO = "flush-to-zero"
    """Of normal numbers: below the smallest normal number of fp16."""
    ROUNDING_MODE = "rounding-mode"
    ONE_PASS_VARIANCE = "one-pass-variance"
    NAN_SWALLOWED = "nan-swallowed"
    NAN_MADE = "nan-made"
    DTYPE_PROMOTION = "dtype-promotion"
    INT_OVERFLOW = "int-overflow"
    """Integers computed in, or narrowed to, a type that does not hold them."""
    STALE_OUTPUT = "stale-output"
    """What an earlier call gave is given again for other inputs."""
    NON_DETERMINISM = "non-determinism"
    HIDDEN_FALLBACK = "hidden-fallback"
    """Ops claimed as executed on the device that ran on the CPU."""
    CORRUPTED = "corrupted"
    """One element or one row."""
    HANG = "hang"
    ABORT = "abort"
    LEAK = "leak"
    NOT_EXECUTED = "not-executed"
    HARMLESS = "harmless"
    """No fault, but another honest way to compute the same: must pass."""


class Call:
    """A call of an op, its arguments by the names that the op's schema has for them."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int, memory: Memory) -> None:
        self._func = func
        self._schema = func._schema.arguments
        self.arguments: dict[str, Any] = {a.name: a.default_value for a in self._schema if a.has_default_value()}
        self.arguments |= dict(zip((a.name for a in self._schema), args, strict=False)) | kwargs
        self.index = index
        """How many calls of ops of the recipe the device had before, in this run."""
        self.memory = memory
        self.op: str = func.name()
        self.written = next((a.name for a in self._schema if a.alias_info is not None and a.alias_info.is_write), None)
        """The argument that an in-place op writes to."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __call__(self, /, **changed: Any) -> Any:
        """Runs the op, some arguments changed."""
        values = self.arguments | changed
        positional = [values[a.name] for a in self._schema if not a.kwarg_only and a.name in values]
        return self._func(*positional, **{a.name: values[a.name] for a in self._schema if a.kwarg_only})


@dataclass
class Memory:
    """What a faulty device keeps, within one run and over the runs of its process."""

    run: dict[Any, Any] = field(default_factory=dict)
    always: dict[Any, Any] = field(default_factory=dict)


Act = Callable[[Call], Any]
"""What the device gives for a call, in place of what the op gives."""
After = Callable[[Observation, Memory], Observation]
"""What the device gives for a run, in place of what the model gave."""


@dataclass(frozen=True)
class Recipe:
    """A fault: which op has it, and how."""

    kind: Kind
    what: str = ""
    """Which of several faults of the kind that the op can have."""
    ops: tuple[str, ...] = ()
    """Overloads that have it, without `aten::`; empty if the device as a whole has it."""
    act: Act | None = None
    after: After | None = None
    right: frozenset[Status] = frozenset({Status.DIVERGENT})
    """The statuses that name this fault correctly."""
    in_process: bool = True
    """Whether the process survives it."""

    @property
    def name(self) -> str:
        """Unique; it is the mode of the backend `faulty`."""
        return ":".join(part for part in (self.kind.value, self.ops[0] if self.ops else "", self.what) if part)


class FaultyDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The device: PyTorch's CPU kernels, hidden from every mode outside, and one recipe."""

    supports_higher_order_operators = True

    def __init__(self, recipe: Recipe | None, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recipe = recipe if recipe is not None and recipe.act is not None else None
        self._ops = frozenset(f"aten::{op}" for op in self._recipe.ops) if self._recipe else frozenset()
        self._memory = memory
        self._memory.run.clear()
        self.counts: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        """Calls that the recipe was asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        self.counts[name] += 1
        recipe = self._recipe
        if recipe is None or recipe.act is None or (self._ops and name not in self._ops):
            with no_dispatch():
                return func(*args, **(kwargs or {}))
        call = Call(func, args, kwargs or {}, sum(self.hit.values()), self._memory)
        self.hit[name] += 1
        # What falls back to the CPU is what the harness can see there.
        with nullcontext() if recipe.kind is Kind.HIDDEN_FALLBACK else no_dispatch():
            return recipe.act(call)


def first_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with its first tensor changed: the result itself, or the first of a tuple."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list) and value:
        return type(value)((first_tensor(value[0], change), *value[1:]))
    return value
