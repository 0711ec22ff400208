"""The model's own amplification: the reference run again with the result of every op rounded another way.

After stochastic arithmetic: CESTAC (Vignes, 1993) replaces a rounded result by one of its two neighbours at random,
Monte Carlo arithmetic (Parker, 1997) adds a random error of the size of the rounding; what differs between a few such
runs is what rounding alone can do to the output. A result that is exact in the dtype is exact on any device and stays
(`floor`, a copy, a count, `relu`), so a recording run learns first, against fp64 on the same inputs, which elements
each op rounds, and how large the errors of its sums are. Inputs and parameters are exact on both sides and stay too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.copies import private_copy
from harness.backends.double import forward
from harness.backends.reference import isolated
from harness.backends.tree import Leaf, walk
from harness.numerics.audit import attempt
from harness.numerics.budget import rms, rounding
from harness.numerics.floats import flat64
from harness.numerics.wide import Call, computes, tensors_of
from model_zoo.spec import BuiltModel

RUNS = 8
"""Runs that a doubted row gets at first."""
MOST_RUNS = 32
"""Runs at most, where some leave elements unexplained."""
ROW = 16
"""Elements a row needs for its errors to be measured apart from the whole result's."""
EXACT = 2.0**-10
"""Errors up to so many unit roundoffs are none: 1 - 1e-17 is 1 on any device."""

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


@dataclass(frozen=True)
class Rounded:
    """What one result of an op call rounds."""

    shape: torch.Size
    exact: Tensor | None
    """Elements that the dtype holds exactly, or as good as; None if there are none, or none but zeros."""
    size: Tensor | None
    """Standard deviation of the error, broadcastable; None where an ulp of the element is the right measure."""


@dataclass
class Recording:
    """What each op call of a forward rounds, in the order of the calls."""

    calls: list[tuple[Any, tuple[Rounded | None, ...]]] = field(default_factory=list)
    last: set[int] = field(default_factory=set)
    """Calls whose result is an output and nothing else: their rounding is the budget's matter."""


def record(built: BuiltModel) -> Recording:
    """Runs the reference once, each op in fp64 besides. Raises what the forward raises."""
    recorder = _Recorder()
    outputs = walk(forward(isolated(built), recorder))
    recorder.settle(outputs)
    return recorder.recording


def run_jittered(built: BuiltModel, seed: int, recording: Recording | None = None) -> tuple[Leaf, ...]:
    """The reference's outputs with every op's result rounded another way, as `seed` says; raises what forward raises.

    >>> from model_zoo.sources import build
    >>> built = build("timm:resnet18")
    >>> spread(walk(forward(isolated(built))), run_jittered(built, 1))[""] < 1000
    True
    """
    mode = _Jitter(record(built) if recording is None else recording, seed)
    return walk(forward(isolated(built), mode))


def spread(reference: Sequence[Leaf], jittered: Sequence[Leaf]) -> dict[str, float]:
    """Per floating leaf, by its path: RMS of the movement over RMS of the values, in unit roundoffs."""
    moved = {leaf.path: leaf.value for leaf in jittered}
    found: dict[str, float] = {}
    for leaf in reference:
        value, other = leaf.value, moved.get(leaf.path)
        floating = isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        if floating and isinstance(other, Tensor) and other.shape == value.shape:
            a, b = flat64(value), flat64(other)
            finite = a.isfinite() & b.isfinite()
            scale = rms(a[finite])
            found[leaf.path] = rms((b - a)[finite]) / (rounding(value.dtype).u * scale) if scale else 0.0
    return found


def amplification(built: BuiltModel, seed: int = 0) -> float | None:
    """Epsilons by which the outputs move when each floating input moves by one; None without a floating input.

    TTrace's measure (arXiv 2506.09280): the condition of the model as it is seen from its inputs. Shown, and no excuse:
    a device has the same inputs to the last bit, so only what its ops round can move its outputs.
    """
    generator = torch.Generator().manual_seed(seed)
    epsilon = 0.0

    def perturbed(tensor: Tensor) -> Tensor:
        nonlocal epsilon
        if not tensor.is_floating_point() or tensor.dtype not in _BITS:
            return tensor
        epsilon = max(epsilon, torch.finfo(tensor.dtype).eps)
        sign = torch.empty(tensor.shape, dtype=tensor.dtype).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        return tensor + tensor * sign * torch.finfo(tensor.dtype).eps

    moved = private_copy(built, lambda tensor: tensor, perturbed)
    if not epsilon:
        return None
    spreads = spread(walk(forward(isolated(built))), walk(forward(moved)))
    return max(spreads.values(), default=0.0) / 2  # an epsilon is two unit roundoffs


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._made: dict[int, int] = {}
        """Address of a storage to the call that wrote it last."""
        self._used: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not computes(func, args, kwargs):
            if isinstance(func, torch._ops.OpOverload) and any(r.alias_info is None for r in func._schema.returns):
                self._use(args, kwargs)
            return func(*args, **kwargs)
        self._use(args, kwargs)
        call = Call.before(func, args, kwargs)
        result = func(*args, **kwargs)
        results = tensors_of(result)
        wide = attempt(call.run_wide) or []
        rounded = tuple(
            _rounded(call, r, wide[i] if i < len(wide) else None) if _can_move(r) else None
            for i, r in enumerate(results)
        )
        for tensor in results:
            self._made[_address(tensor)] = len(self.recording.calls)
        self.recording.calls.append((func, rounded))
        return result

    def settle(self, outputs: Sequence[Leaf]) -> None:
        """Finds the calls that nothing follows."""
        for leaf in outputs:
            if isinstance(leaf.value, Tensor) and leaf.value.layout is torch.strided:
                made = self._made.get(_address(leaf.value))
                if made is not None and made not in self._used:
                    self.recording.last.add(made)

    def _use(self, args: Any, kwargs: Any) -> None:
        for tensor in tensors_of((args, kwargs)):
            if tensor.layout is torch.strided and _address(tensor) in self._made:
                self._used.add(self._made[_address(tensor)])


class _Jitter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, recording: Recording, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording
        self._next = 0
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not computes(func, args, kwargs):
            return result
        index, self._next = self._next, self._next + 1
        if index >= len(self._recording.calls) or self._recording.calls[index][0] is not func:
            return result  # rounding made the forward take another branch: what follows has no record
        if index in self._recording.last:
            return result
        for tensor, rounded in zip(tensors_of(result), self._recording.calls[index][1], strict=False):
            if rounded is not None and tensor.shape == rounded.shape:
                self._move(tensor, rounded)
        return result

    def _move(self, tensor: Tensor, rounded: Rounded) -> None:
        parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if rounded.size is None:
            # Stochastic rounding takes the further neighbour with probability of the residual in ulp: 1/4 on average.
            draw = torch.empty(parts.shape, dtype=torch.int8).random_(0, 8, generator=self._generator)
            moved = _neighbour(parts, (draw == 7).to(torch.int8) - (draw == 0).to(torch.int8))
        else:
            noise = torch.empty(parts.shape, dtype=rounded.size.dtype).normal_(generator=self._generator)
            moved = (parts + noise * rounded.size).to(parts.dtype)
            moved = torch.where(parts.isfinite() & moved.isfinite(), moved, parts)
        parts.copy_(moved if rounded.exact is None else torch.where(rounded.exact, parts, moved))


def _rounded(call: Call, result: Tensor, wide: Tensor | None) -> Rounded | None:
    """What the call rounds in that result; None if nothing."""
    if wide is None or wide.shape != result.shape:
        return Rounded(result.shape, None, None)
    parts, truth = (torch.view_as_real(x) if result.is_complex() else x for x in (result, wide))
    error = (parts.double() - truth.double()).abs_()
    exact = error <= EXACT * rounding(result.dtype).u * parts.double().abs()
    if bool(exact.all()):
        return None
    zeros_only = not bool((exact & (parts != 0)).any())
    if call.is_elementwise:
        return Rounded(result.shape, None if zeros_only else exact, None)
    return Rounded(result.shape, exact if bool(exact.any()) else None, _size(parts, error))


def _size(result: Tensor, error: Tensor) -> Tensor | None:
    """Standard deviation of an op's error: of its row's if it is long enough. By the median, which no outlier moves."""
    error = error.nan_to_num(nan=0.0, posinf=0.0)
    row = error.flatten(2) if error.dim() > 3 else error
    if not row.dim() or row.shape[-1] < ROW:
        size = error.median() * (1 / 0.6745)  # of a normal distribution the median is 0.6745 standard deviations
    else:
        size = row.median(-1, keepdim=True).values * (1 / 0.6745)
        size = size.reshape(*size.shape[:-1], *[1] * (error.dim() - size.dim() + 1))
    least = rounding(result.dtype).u / math.sqrt(3)  # of a result whose rounding is uniform within half an ulp
    wide = result.double().abs().nan_to_num(nan=0.0, posinf=0.0) * least
    return torch.maximum(size, wide).to(torch.float32 if result.dtype is not torch.float64 else torch.float64)


def _neighbour(tensor: Tensor, step: Tensor) -> Tensor:
    """The number `step` places further from zero; zeros, NaN, inf and the dtype's greatest number stay."""
    bits = _BITS[tensor.dtype]
    stays = (tensor == 0) | ~(tensor.abs() < torch.finfo(tensor.dtype).max)
    moved = tensor.contiguous().view(bits) + step.to(bits).masked_fill_(stays, 0)
    return moved.view(tensor.dtype)


def _can_move(tensor: Tensor) -> bool:
    return (tensor.dtype in _BITS or tensor.dtype is torch.complex64) and tensor.layout is torch.strided


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
