"""How a call is changed: small functions that give an `Act`, combined into recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from harness.faulty.recipe import Act, Call, first_tensor

Change = Callable[[Tensor], Tensor]


def argument(**changes: Any) -> Act:
    """Arguments that the op has replaced, by a value or by a function of the value that was given."""

    def act(call: Call) -> Any:
        given = {name: new for name, new in changes.items() if name in call.arguments}
        return call(**{name: new(call[name]) if callable(new) else new for name, new in given.items()})

    return act


def result(change: Change) -> Act:
    """The result changed; of several the first. An in-place op's result is changed in place."""

    def act(call: Call) -> Any:
        out = call()
        if call.written is not None:
            out.copy_(change(out.clone()))
            return out
        return first_tensor(out, change)

    return act


def instead(compute: Callable[[Call], Tensor]) -> Act:
    """Something else computed; an in-place op writes that."""

    def act(call: Call) -> Any:
        out = compute(call)
        return out if call.written is None else call[call.written].copy_(out)

    return act


def inputs(change: Change) -> Act:
    """Every floating tensor that goes in changed, what comes out in the dtype that it should have."""

    def act(call: Call) -> Any:
        dtypes: list[torch.dtype] = []

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                dtypes.append(value.dtype)
                return change(value)
            return value

        out = call(**pytree.tree_map(changed, call.arguments))
        if call.written is not None:
            return call[call.written].copy_(out)
        return pytree.tree_map(
            lambda v: v.to(dtypes[0]) if isinstance(v, Tensor) and v.is_floating_point() and dtypes else v, out
        )

    return act


def swapped(first: str, second: str) -> Act:
    """Two operands exchanged."""
    return lambda call: call(**{first: call[second], second: call[first]})


def once(act: Act) -> Act:
    """The fault in the first call alone."""
    return lambda call: act(call) if call.index == 0 else call()


def in_bf16(x: Tensor) -> Tensor:
    """The tensor in bf16, which is what is then computed in."""
    return x.bfloat16()


def chopped(x: Tensor) -> Tensor:
    """fp32 rounded to the 8 bits of bf16 toward zero instead of to the nearest."""
    return (x.contiguous().view(torch.int32) & -(2**16)).view(torch.float32) if x.dtype is torch.float32 else x


def flushed(x: Tensor) -> Tensor:
    """What fp16 has no normal number for, as zero."""
    return x.masked_fill(x.abs() < 2**-14, 0) if x.is_floating_point() else x


def relaid(x: Tensor) -> Tensor:
    """A matrix read in the other layout: the numbers of its transpose in its own shape."""
    return x.mT.contiguous().view(x.shape) if x.dim() >= 2 else x


def shifted(x: Tensor) -> Tensor:
    """One position further along the last dimension."""
    return x.roll(1, -1) if x.dim() else x


def without_nan(x: Tensor) -> Tensor:
    """NaN taken for zero."""
    return x.nan_to_num(0.0, torch.inf, -torch.inf) if x.is_floating_point() else x


def with_one_nan(x: Tensor) -> Tensor:
    """NaN in the last element."""
    return _set_last(x, lambda last: torch.full_like(last, torch.nan)) if x.is_floating_point() else x


def element(x: Tensor) -> Tensor:
    """The last element one tenth too great, and one tenth of the tensor's RMS besides."""
    return _set_last(x, lambda last: last * 1.1 + 0.1 * _rms(x)) if x.is_floating_point() else x


def row(x: Tensor) -> Tensor:
    """The last row (all dims but the last) 5 % too great."""
    if not x.is_floating_point() or x.dim() < 2 or not x.numel():
        return x
    x = x.clone()
    index = tuple(size - 1 for size in x.shape[:-1])
    x[index] *= 1.05
    return x


def scaled(factor: float) -> Change:
    """That many times the tensor."""
    return lambda x: x * factor if x.is_floating_point() else x


def narrowed(dtype: torch.dtype) -> Act:
    """Integers computed in that dtype: what does not fit wraps."""

    def act(call: Call) -> Any:
        def to(narrow: torch.dtype, value: Any) -> Any:
            return value.to(narrow) if isinstance(value, Tensor) and value.dtype is torch.int64 else value

        narrow = pytree.tree_map(lambda v: to(dtype, v).to(torch.int64) if isinstance(v, Tensor) else v, call.arguments)
        return pytree.tree_map(
            lambda v: to(dtype, v).to(torch.int64) if isinstance(v, Tensor) and v.dtype is torch.int64 else v,
            call(**narrow),
        )

    return act


def stale(call: Call) -> Any:
    """The result of the first call with these shapes, for all later ones."""
    shapes = [tuple(v.shape) if isinstance(v, Tensor) else v for v in pytree.tree_leaves(call.arguments)]
    key = (call.op, repr(shapes))
    if key not in call.memory.run:
        call.memory.run[key] = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, call())
        return pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, call.memory.run[key])
    first = pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, call.memory.run[key])
    return first if call.written is None else call[call.written].copy_(first)


def noisy(call: Call) -> Any:
    """One element in ten 1 % off, other ones in every run."""
    generator = call.memory.always.setdefault("noise", torch.Generator().manual_seed(0))

    def change(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return torch.where(torch.rand(x.shape, generator=generator) < 0.1, x * 1.01, x)

    return result(change)(call)


def _set_last(x: Tensor, change: Change) -> Tensor:
    if not x.numel():
        return x
    x = x.contiguous().clone()
    flat = x.view(-1)
    flat[-1:] = change(flat[-1:])
    return x


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
