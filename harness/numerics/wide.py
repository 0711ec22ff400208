"""One op call again in fp64, on the very inputs that it had: what an op rounds, apart from what it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from harness.backends.double import DoubleMode, call_plan, default_dtype

_MOVES = frozenset(
    {"cat", "clone", "constant_pad_nd", "contiguous", "diag_embed", "embedding", "flip", "gather", "im2col", "index"}
    | {"index_put", "index_select", "lift_fresh", "masked_select", "new_empty", "new_zeros", "new_ones", "new_full"}
    | {"permute_copy", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "repeat"}
    | {"replication_pad1d", "replication_pad2d", "resize", "roll", "select_scatter", "set", "slice_scatter", "sort"}
    | {"stack", "take", "tril", "triu", "unfold_copy", "view_copy", "zero", "zeros_like", "ones_like", "empty_like"}
    | {"_local_scalar_dense", "_reshape_copy", "_unsafe_view", "channel_shuffle", "native_channel_shuffle", "fill"}
    | {"full_like", "masked_fill", "where", "topk", "resize_as", "copy_sparse_to_sparse", "split_with_sizes_copy"}
)
"""Ops that move or set values and compute none; what rounds when it copies (`_to_copy`) is not among them."""

_ELEMENTWISE = frozenset({"hardswish", "hardsigmoid", "floor_divide", "_prelu_kernel", "complex", "polar"})
"""Ops that work element by element although torch 2.14.1 does not tag them so."""


@dataclass(frozen=True)
class Call:
    """An op call whose written arguments are copies, so that it can be repeated."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def before(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Taken before the op runs."""
        return cls(func, args, kwargs).mapped(lambda x: x) if call_plan(func).written else cls(func, args, kwargs)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest floating dtype among its tensors."""
        found = [t.dtype for t in self.tensors() if t.is_floating_point()]
        return max(found, key=lambda d: torch.finfo(d).eps, default=torch.float32)

    @property
    def is_elementwise(self) -> bool:
        """Whether element i of the result depends on element i of the inputs alone, broadcast."""
        return torch.Tag.pointwise in self.func.tags or name_of(self.func) in _ELEMENTWISE

    def tensors(self) -> Iterator[Tensor]:
        """Its tensor arguments."""
        return (v for v in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(v, Tensor))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with `change` applied to every tensor; the written ones are copied."""
        written = call_plan(self.func).written

        def one(value: Any, copied: bool) -> Any:
            def convert(tensor: Tensor) -> Tensor:
                changed = change(tensor)
                return _clone(changed) if copied and changed is tensor else changed

            return pytree.tree_map_only(Tensor, convert, value)

        args = tuple(one(a, i in written) for i, a in enumerate(self.args))
        return Call(self.func, args, {k: one(v, k in written) for k, v in self.kwargs.items()})

    def run(self) -> list[Tensor]:
        """Runs it, on copies of what it writes to."""
        call = Call.before(self.func, self.args, self.kwargs)
        return tensors_of(self.func(*call.args, **call.kwargs))

    def run_wide(self) -> list[Tensor]:
        """Runs it in fp64. `ControlUnavailable`, or whatever the op raises, where it cannot.

        Python's floats take part as the op sees them, rounded to fp32.
        """
        call = self.mapped(_widened)
        with default_dtype(torch.float64), DoubleMode(self.dtype):
            return tensors_of(self.func(*map(_rounded, call.args), **{k: _rounded(v) for k, v in call.kwargs.items()}))


def computes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call computes numbers: no view, no random draw, no data movement, no filling with a constant."""
    if not isinstance(func, torch._ops.OpOverload):
        return False  # a higher-order op: a mode does not see into it
    plan = call_plan(func)
    if plan.draws or plan.is_view or name_of(func) in _MOVES or _is_random(func, args, kwargs):
        return False
    return any(isinstance(v, Tensor) for v in pytree.tree_leaves((args, dict(kwargs))))


def _is_random(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether it draws; attention does only where it is given a dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return "attention" not in func._schema.name or bool(given.get("dropout_p"))


def name_of(func: Any) -> str:
    """Name of an op without namespace, overload and the underscore of its in-place form."""
    name: str = func._schema.name
    return name.partition("::")[2].rstrip("_")


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of an op's result, in order."""
    return [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor)]


def _widened(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _rounded(value: Any) -> Any:
    return torch.tensor(value, dtype=torch.float32).item() if isinstance(value, float) else value


def _clone(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.preserve_format)
