"""The audit of the reference: every op call of its forward against fp64 on the same inputs, and other kernels' word.

An op that is far from fp64 is no suspect by that alone: what cancels or overflows in the dtype does so in any kernel.
It is one if another kernel of the same op on the same inputs agrees with fp64: without oneDNN and on one thread, on
contiguous or otherwise laid out tensors, on a tensor shorter or longer than a vector register. Nothing of the model
before the call takes part, so amplification is no fault of the op that shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import is_out_of_memory
from harness.backends.double import forward
from harness.backends.program import overload_name
from harness.backends.reference import isolated, other_layout, second_path_settings
from harness.numerics.budget import rounding
from harness.numerics.floats import flat64
from harness.numerics.verdict import Suspect
from harness.numerics.wide import Call, computes, name_of, tensors_of
from model_zoo.spec import BuiltModel

DOUBT = {torch.bfloat16: 8.0, torch.float16: 8.0}
"""Errors of more unit roundoffs of the magnitude are looked into; those not named here have `DOUBT_SINGLE`."""
DOUBT_SINGLE = 64.0
WORSE = 16.0
"""How many times nearer to fp64 another kernel must be, for the op to be a suspect."""
ELEMENTS = 4
"""How many of the doubted elements of an elementwise op are tried alone and in a longer tensor."""
LONGER = 67
"""Elements of that longer tensor: some vector registers of any processor (at most 32 bf16), and a rest."""

_LINEAR = frozenset(
    {"_grouped_mm", "_adaptive_avg_pool2d", "addbmm", "addmm", "addmv", "avg_pool1d", "avg_pool2d", "avg_pool3d"}
    | {"baddbmm", "bmm", "convolution", "convolution_overrideable", "cumsum", "dot", "index_add", "linear", "mean"}
    | {"mkldnn_convolution", "mm", "mv", "scatter_add", "sum", "upsample_bicubic2d", "upsample_bilinear2d"}
    | {"upsample_linear1d", "upsample_trilinear3d", "vdot", "nansum"}
)
"""Sums of products of the inputs: run on their magnitudes in fp64, they give the magnitude of the terms."""


def audit(built: BuiltModel) -> Suspect | None:
    """The first op of the reference's forward that errs where another kernel of it does not; None if there is none.

    A forward that raises is audited as far as it goes. Ops without an fp64 kernel, and results that are not floating,
    are passed over.

    >>> from model_zoo.sources import build
    >>> audit(build("timm:resnet18")) is None
    True
    """
    watch = Audit()
    try:
        forward(isolated(built), watch)
    except Exception as error:
        if is_out_of_memory(error):
            raise
    return watch.suspect


class Audit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Examines every op call under it until one is suspect, which stands in `suspect`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.suspect: Suspect | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.suspect is not None or not computes(func, args, kwargs):
            return func(*args, **kwargs)
        call = Call.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if call.dtype is not torch.float64:
            self.suspect = examine(call, tensors_of(result))
        return result


def examine(call: Call, results: list[Tensor]) -> Suspect | None:
    """The suspicion against one op call, of which the reference made `results`."""
    if not any(r.is_floating_point() or r.is_complex() for r in results):
        return None
    wide = attempt(call.run_wide)
    if wide is None or [w.shape for w in wide] != [r.shape for r in results]:
        return None
    for index, (result, truth) in enumerate(zip(results, wide, strict=True)):
        if (result.is_floating_point() or result.is_complex()) and result.numel():
            doubt = Doubt.about(call, index, result, truth)
            suspect = doubt and _questioned(doubt)
            if suspect:
                return suspect
    return None


@dataclass(frozen=True)
class Doubt:
    """A result of an op call that is far from fp64."""

    call: Call
    index: int
    """Which of the op's results."""
    result: Tensor
    truth: Tensor
    """fp64, flat."""
    magnitude: Tensor
    """Per element, flat: what rounding errors are in proportion to."""
    error: Tensor
    """Of the reference, per element, as `errors` gives it."""

    @classmethod
    def about(cls, call: Call, index: int, result: Tensor, wide: Tensor) -> Doubt | None:
        """None if the dtype explains the result."""
        truth, given = flat64(wide), flat64(result)
        # Complex arithmetic is accurate in the modulus, not in each part (Higham, Accuracy and Stability, 3.6).
        magnitude = flat64(wide.abs()).repeat_interleave(2) if wide.is_complex() else truth.abs()
        limit = _limit(result.dtype)
        error = errors(given, truth, magnitude, result.dtype)
        if float(error.max()) <= limit:
            return None
        magnitude, terms = _magnitude(call, index, wide, magnitude, rounding(result.dtype).u)
        error = errors(given, truth, magnitude, result.dtype)
        if terms is not None:  # whether the op overflows on its way is a matter of order
            error.masked_fill_(~given.isfinite() & (terms >= rounding(result.dtype).largest), 0.0)
        return cls(call, index, result, truth, magnitude, error) if float(error.max()) > limit else None

    @property
    def worst(self) -> list[int]:
        """The doubted elements, the worst first."""
        order = torch.topk(self.error, min(ELEMENTS, len(self.error))).indices
        return [int(i) for i in order if self.error[i] > _limit(self.result.dtype)]

    def nearer(self, other: Tensor, at: slice = slice(None)) -> int | None:
        """Where another kernel's result, flat, is right and the reference errs; None if nowhere, or if it errs too."""
        error = errors(other, self.truth[at], self.magnitude[at], self.result.dtype)
        reference = self.error[at]
        wrong = reference.isinf()
        if bool(wrong.any()):
            right = wrong & (error <= _limit(self.result.dtype))
            return int(right.int().argmax()) if bool(right.any()) and not bool((error.isinf() & ~wrong).any()) else None
        return int(reference.argmax()) if float(error.max()) * WORSE < float(reference.max()) else None


def errors(result: Tensor, truth: Tensor, magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """|result - truth| in unit roundoffs of the magnitude; infinite where NaN or inf stand in one of them alone.

    What the dtype cannot hold may be inf or its greatest number; what is below its smallest normal number may be 0.
    """
    kind = rounding(dtype)
    slack = kind.largest * (1 - 4 * kind.u)
    beyond = (truth.abs() >= slack) & (result.abs() >= slack) & (result.sign() == truth.sign())
    same = beyond | (result == truth) | (result.isnan() & truth.isnan())
    unit = (kind.u * magnitude.nan_to_num(nan=0.0, posinf=kind.largest)).clamp_(min=kind.smallest)
    return ((result - truth).abs_() / unit).nan_to_num_(nan=torch.inf).masked_fill_(same, 0.0)


def _limit(dtype: torch.dtype) -> float:
    return DOUBT.get(dtype, DOUBT_SINGLE)


def _magnitude(call: Call, index: int, wide: Tensor, own: Tensor, u: float) -> tuple[Tensor, Tensor | None]:
    """Per element, what its rounding errors are in proportion to (Higham, Accuracy and Stability, 3.1 and 4.2).

    Of a sum of products its terms; of another elementwise op its inputs; of anything else the greatest result of its
    row (its last dimension). These count by fp32's roundoff, in which kernels for narrower dtypes accumulate; the
    result itself by its own. Second comes how great a value may be on the way, None for an elementwise op.
    """
    share = min(1.0, rounding(torch.float32).u / u)
    if name_of(call.func) in _LINEAR:
        found = attempt(call.mapped(_absolute).run_wide)
        if found is not None and found[index].shape == wide.shape:
            terms = flat64(found[index]).abs()
            return torch.maximum(own, share * terms), terms
    if call.is_elementwise:
        for tensor in call.tensors():
            if tensor.is_floating_point() and _broadcasts(tensor, wide):
                own = torch.maximum(own, share * _finite(flat64(tensor.expand(wide.shape))))
        return own, None
    rows = _finite(own).view(-1, (wide.shape[-1] if wide.dim() else 1) * (own.numel() // wide.numel()))
    return torch.maximum(own, share * rows.amax(1, keepdim=True).expand_as(rows).flatten()), _on_the_way(call, own)


def _on_the_way(call: Call, own: Tensor) -> Tensor:
    """How great a value may be on the way to each element: of a product its factors above one, of others a square."""
    if name_of(call.func) in ("prod", "cumprod"):
        found = attempt(call.mapped(lambda x: _absolute(x).clamp(min=1)).run_wide)
        if found is not None and flat64(found[0]).shape == own.shape:
            return flat64(found[0])
    greatest = max((float(_finite(flat64(t)).max()) for t in call.tensors() if t.numel()), default=0.0)
    squared = greatest * greatest
    return own.new_full(own.shape, squared if squared >= torch.finfo(torch.float32).max else 0.0)


def _questioned(doubt: Doubt) -> Suspect | None:
    """Asks other kernels, until one agrees with fp64."""
    for path, other in _whole(doubt):
        at = doubt.nearer(flat64(other))
        if at is not None:
            return _suspect(doubt, at, path, float(flat64(other)[at]))
    if doubt.call.is_elementwise:
        for at in doubt.worst:
            for path, value in _single(doubt, at):
                if doubt.nearer(value, slice(at, at + 1)) is not None:
                    return _suspect(doubt, at, path, float(value))
    return None


def _whole(doubt: Doubt) -> Iterator[tuple[str, Tensor]]:
    """The call again, all of it, on other paths."""
    call = doubt.call
    with second_path_settings():
        attempts = {"without oneDNN on one thread": call}
        attempts["on another layout"] = call.mapped(other_layout)
        attempts["on contiguous tensors"] = call.mapped(lambda x: x.contiguous())
        for path, other in attempts.items():
            found = attempt(other.run)
            if found is not None and len(found) > doubt.index and found[doubt.index].shape == doubt.result.shape:
                yield path, found[doubt.index]


def _single(doubt: Doubt, at: int) -> Iterator[tuple[str, Tensor]]:
    """Element `at` of an elementwise op, alone and amid copies of itself."""
    parts = 2 if doubt.result.is_complex() else 1
    shape = doubt.result.shape
    for path, size, place in (("alone", 1, 0), (f"as one of {LONGER}", LONGER, 0), (f"last of {LONGER}", LONGER, -1)):

        def picked(tensor: Tensor, size: int = size) -> Tensor:
            if not tensor.dim():
                return tensor  # it takes part in type promotion as a number does
            return tensor.expand(shape).reshape(-1)[at // parts].repeat(size)

        found = attempt(doubt.call.mapped(picked).run)
        if found is not None and len(found) > doubt.index and found[doubt.index].numel() in (1, size):
            yield path, flat64(found[doubt.index].reshape(-1)[place])[at % parts].reshape(1)


def _suspect(doubt: Doubt, at: int, path: str, other: float) -> Suspect:
    name = overload_name(doubt.call.func)
    inputs = ""
    if doubt.call.is_elementwise:
        values = [
            f"{float(flat64(t.expand(doubt.result.shape))[at]):.9g}"
            for t in doubt.call.tensors()
            if t.is_floating_point()
        ]
        inputs = f" of {', '.join(values)}" if values else ""
    message = f"{name}{inputs} in {doubt.result.dtype} gives {float(flat64(doubt.result)[at]):.9g}"
    message += f" (element {at} of shape {tuple(doubt.result.shape)}), fp64 {float(doubt.truth[at]):.9g},"
    return Suspect(name, f"{message} the same op {path} {other:.9g}")


class Repair(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts the fp64 result, rounded, wherever the op of that name errs by more than its dtype explains."""

    supports_higher_order_operators = True

    def __init__(self, op: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op = op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or overload_name(func) != self.op:
            return func(*args, **kwargs)
        call = Call.before(func, args, kwargs)
        result = func(*args, **kwargs)
        for given, wide in zip(tensors_of(result), attempt(call.run_wide) or (), strict=False):
            if given.is_floating_point() and given.shape == wide.shape:
                truth = flat64(wide)
                error = errors(flat64(given), truth, truth.abs(), given.dtype)
                doubted = (error > _limit(given.dtype)).view(given.shape)
                given.copy_(torch.where(doubted, wide.to(given.dtype), given))
        return result


def attempt(run: Any) -> list[Tensor] | None:
    """What it gives; None if it raises, except for want of memory."""
    try:
        found: list[Tensor] = run()
        return found
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None


def _broadcasts(tensor: Tensor, result: Tensor) -> bool:
    """Whether a real tensor is broadcast to the shape of a real result."""
    sizes = zip(reversed(tensor.shape), reversed(result.shape), strict=False)
    return tensor.dim() <= result.dim() and not result.is_complex() and all(a in (1, b) for a, b in sizes)


def _absolute(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def _finite(tensor: Tensor) -> Tensor:
    return tensor.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
