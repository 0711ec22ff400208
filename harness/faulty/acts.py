"""Faults that take more than an argument changed: what the device gives for a call of one op, or for a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.backends.base import Observation
from harness.backends.tree import Leaf
from harness.faulty.changes import Change, shifted
from harness.faulty.recipe import Act, After, Call, Memory


def scalar(name: str, change: Callable[[float], float]) -> Act:
    """A floating number among the operands changed, also where PyTorch made a 0-d tensor of it."""

    def act(call: Call) -> Any:
        value = call[name]
        number = value.item() if isinstance(value, Tensor) and not value.dim() else value
        return call(**{name: change(number)}) if isinstance(number, float) else call()

    return act


def attention_scale(call: Call) -> Any:
    """Attention with a scale 1 % too great."""
    scale = call["query"].shape[-1] ** -0.5 if call["scale"] is None else call["scale"]
    return call(scale=1.01 * scale)


def attention_swapped(call: Call) -> Any:
    """Query and key exchanged, where their shapes let it go unnoticed."""
    same = call["query"].shape == call["key"].shape
    return call(query=call["key"], key=call["query"]) if same else call()


def padding_as_wrapped(call: Call) -> Any:
    """Zero padding read as circular."""
    padding, image = call["padding"], call["input"]
    if len(padding) != 2 or not any(padding) or call["transposed"]:
        return call()
    high, wide = padding
    if high >= image.shape[-2] or wide >= image.shape[-1]:
        return call()
    return call(input=F.pad(image, (wide, wide, high, high), mode="circular"), padding=[0, 0])


def permuted(call: Call) -> Any:
    """The last two dimensions exchanged."""
    *front, last, latest = call["dims"]
    return call(dims=[*front, latest, last])


def moved_image(x: Tensor) -> Tensor:
    """An image one pixel further."""
    return shifted(x) if x.dim() >= 3 and x.shape[-1] > 1 else x


def padded_left(call: Call) -> Any:
    """One element of padding on the other side."""
    left, right, *rest = call["pad"]
    return call(pad=[left + 1, right - 1, *rest] if right > 0 else [left - 1, right + 1, *rest])


def sliced_early(call: Call) -> Any:
    """A slice of the right size that begins one element too early, or too late where it begins at the front."""
    start, size = call["start"] or 0, call["self"].shape[call["dim"]]
    end = size if call["end"] is None else min(call["end"], size)
    if start > 0 and end > 0:
        return call(start=start - 1, end=end - 1)
    if start == 0 and 0 < end < size:
        return call(start=1, end=end + 1)
    return call()


def selected_next(call: Call) -> Any:
    """The element after the one that was asked for; after the last comes the first."""
    size = call["self"].shape[call["dim"]]
    return call(index=(call["index"] + 1) % size)


def earlier(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Indices one too small; masks stay."""
    return [i if i is None or i.dtype is torch.bool else (i - 1).clamp(min=0) for i in indices]


def topk_late(call: Call) -> Any:
    """The k after the greatest."""
    values, places = call(k=call["k"] + 1)
    return values[..., 1:], places[..., 1:]


def without_last(call: Call) -> Any:
    """A reduction that leaves out the last element of its last dimension."""
    dims = call["dim"]
    dim = (dims[-1] if dims else -1) if isinstance(dims, list | tuple) else dims
    size = call["self"].shape[dim]
    return call(self=call["self"].narrow(dim, 0, size - 1)) if size > 1 else call()


def converted_to_nearest(call: Call) -> Any:
    """Floating numbers converted to the nearest integer instead of toward zero."""
    dtype = call["dtype"]
    if call["self"].is_floating_point() and dtype is not None and not dtype.is_floating_point:
        return call(self=call["self"].round())
    return call()


def one_pass_norm(call: Call) -> Any:
    """Layer, group or batch norm with the variance as E[x²] - E[x]²; batch norm only where it takes a variance."""
    x: Tensor = call["input"]
    if "normalized_shape" in call.arguments:
        normal = _one_pass(x, list(range(-len(call["normalized_shape"]), 0)), call["eps"])
        weight, bias = call["weight"], call["bias"]
    elif "group" in call.arguments or call["training"]:
        if "group" in call.arguments:
            normal = _one_pass(x.reshape(x.shape[0], call["group"], -1), [2], call["eps"]).view(x.shape)
        else:
            normal = _one_pass(x, [d for d in range(x.dim()) if d != 1], call["eps"])
        shape = (1, -1, *[1] * (x.dim() - 2))
        weight, bias = (v if v is None else v.view(shape) for v in (call["weight"], call["bias"]))
    else:
        return call()
    normal = normal if weight is None else normal * weight
    return (normal if bias is None else normal + bias, *call()[1:])


def _one_pass(x: Tensor, dims: list[int], eps: float) -> Tensor:
    mean = x.mean(dims, keepdim=True)
    variance = x.square().mean(dims, keepdim=True) - mean.square()
    return (x - mean) * (variance + eps).rsqrt()


def one_pass_variance(call: Call) -> Any:
    """Variance or standard deviation by E[x²] - E[x]²."""
    x: Tensor = call["self"]
    dims = list(range(x.dim())) if call["dim"] is None else list(call["dim"])
    count = math.prod(x.shape[dim] for dim in dims)
    correction = 1 if call["correction"] is None else call["correction"]
    keep = call["keepdim"]
    variance = x.square().mean(dims, keepdim=keep) - x.mean(dims, keepdim=keep).square()
    variance = variance * (count / (count - correction))
    if "std" in call.op:
        return variance.sqrt()
    return (variance, call()[1]) if "var_mean" in call.op else variance


def converted(dtype: torch.dtype) -> Change:
    """The result in that dtype."""
    return lambda x: x if x.dtype is torch.bool and dtype is not torch.uint8 else x.to(dtype)


def integer_division(call: Call) -> Any:
    """True division of integers, rounded down."""
    left, right = call["self"], call["other"]
    integers = isinstance(left, Tensor) and isinstance(right, Tensor)
    if not integers or left.is_floating_point() or right.is_floating_point():
        return call()
    return torch.floor_divide(left, right).to(call().dtype)


def integer_product(call: Call) -> Any:
    """An integer tensor times a floating one, in integers."""
    left, right = call["self"], call["other"]
    if not isinstance(right, Tensor) or left.is_floating_point() or not right.is_floating_point():
        return call()
    return (left * right.to(left.dtype)).to(right.dtype)


def of_output(change: Change) -> After:
    """The last floating output of the model changed."""

    def after(seen: Observation, memory: Memory) -> Observation:
        floats = [i for i, leaf in enumerate(seen.leaves) if _is_float(leaf)]
        if not floats:
            return seen
        leaves = list(seen.leaves)
        leaves[floats[-1]] = replace(leaves[floats[-1]], value=change(leaves[floats[-1]].value))
        return replace(seen, leaves=tuple(leaves))

    return after


def _is_float(leaf: Leaf) -> bool:
    return isinstance(leaf.value, Tensor) and leaf.value.is_floating_point()


def first_output(seen: Observation, memory: Memory) -> Observation:
    """What the device gave for its first inputs, for all others too."""
    return replace(seen, leaves=memory.always.setdefault("first", seen.leaves))


def spinning(call: Call) -> Any:
    """An op that never ends, and keeps its core busy."""
    while True:
        call()


def leaking(call: Call) -> Any:
    """4 GiB more that are never given back, in steps of 64 MiB."""
    kept = call.memory.always.setdefault("kept", [])
    kept += [torch.ones(2**24) for _ in range(64)]
    return call()


def in_two_sums(first: str, second: str) -> Act:
    """A matrix product as the sum of two, over the first half of the terms and the second."""

    def act(call: Call) -> Any:
        left, right = call[first], call[second]
        half = left.shape[-1] // 2
        left, rest = left.split((half, left.shape[-1] - half), -1)
        right, others = right.split((half, right.shape[-2] - half), -2)
        if "beta" not in call.arguments:
            return call(**{first: left, second: right}) + call(**{first: rest, second: others})
        return call(**{first: left, second: right}) + call(beta=0, **{first: rest, second: others})

    return act


def gelu_by_erf(call: Call) -> Any:
    """GELU from its definition."""
    x = call["self"]
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5)) if call["approximate"] == "none" else call()


def times_reciprocal(call: Call) -> Any:
    """A quotient of two fp32 tensors as a product with the reciprocal."""
    left, right = call["self"], call["other"]
    both = isinstance(right, Tensor) and left.dtype is right.dtype is torch.float32
    return left * right.reciprocal() if both else call()
