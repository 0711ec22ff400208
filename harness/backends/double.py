"""The fp64 control: the same function as the model computes, with the arithmetic in fp64.

`module.double()` alone is no control: models cast inside forward (`.float()`, `softmax(dtype=torch.float32)`, masks and
position tables made in fp32), and every such cast rounds. So three things hold while the control runs:

* a dispatch mode turns every narrow dtype that an op is asked for into fp64, and every narrow tensor it meets;
* a function mode answers `x.dtype` with the dtype that the model believes in, so that what forward derives from it in
  Python (`finfo(x.dtype).min` of a mask, `finfo(x.dtype).eps`, branches for half precision) stays the model's own;
* the default dtype is fp64, for what PyTorch makes from integers and Python numbers.

What would round without a trace raises `ControlUnavailable` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import is_out_of_memory, one_line
from harness.backends.copies import private_copy
from harness.backends.tree import Leaf, walk
from model_zoo.spec import BuiltModel

Watch = AbstractContextManager[Any]

FORWARD_SEED = 0
"""Seed of the global generator during every forward: a model that draws in forward draws the same in all runs."""

DRAWS = frozenset(
    {"bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal_functional"}
    | {
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "uniform",
    }
)
"""Ops whose result is a random draw and nothing else."""

_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


class ControlUnavailable(Exception):
    """There is no fp64 control of this model; the message is one line that says why."""


def run_control(built: BuiltModel, watch: Watch | None = None) -> tuple[Leaf, ...]:
    """Runs the model in fp64: every floating leaf comes back as float64, every complex one as complex128.

    `watch` is entered around the forward and sees the model's ops as the model asked for them.
    `ControlUnavailable` if an op has no fp64 kernel, or if a leaf would have been rounded on its way.
    """
    nominal = _nominal(built)
    try:
        wide = private_copy(built, _widened)
        with default_dtype(torch.float64), DoubleMode(nominal), _NominalDtype(nominal):
            leaves = walk(forward(wide, watch))
    except ControlUnavailable:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ControlUnavailable(f"no fp64 control: {one_line(error)}") from error
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor) and leaf.value.dtype in _WIDE:
            raise ControlUnavailable(f"no fp64 control: output {leaf.path or '(whole)'} came back {leaf.value.dtype}")
    return leaves


def forward(built: BuiltModel, watch: Watch | None = None) -> Any:
    """Calls the model once without gradients, its draws seeded, the caller's generator left alone."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(FORWARD_SEED)
        with watch or nullcontext():
            return built.module(*built.args, **built.kwargs)


class DoubleMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every op in fp64, whatever dtype it was asked for. `nominal` is the dtype that random draws are made in."""

    def __init__(self, nominal: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nominal = nominal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = call_plan(func)
        kwargs = kwargs or {}
        if plan.draws:
            return self._draw(func, plan, args, kwargs)
        wide_args = tuple(
            _checked(func, a) if i in plan.written else a if plan.is_view and i == 0 else _wide(a)
            for i, a in enumerate(args)
        )
        wide_kwargs = {k: _checked(func, v) if k in plan.written else _wide(v) for k, v in kwargs.items()}
        if func is torch.ops.aten.view.dtype and wide_args[1] is not args[0].dtype:
            raise ControlUnavailable(f"no fp64 control: the model reads the bits of {args[0].dtype} as {args[1]}")
        if func in _CLAMPS_TO_DTYPE:
            limit = torch.finfo(self.nominal).max
            defaults = {"posinf": limit, "neginf": -limit}
            named = dict(zip(("nan", "posinf", "neginf"), wide_args[1:], strict=False)) | wide_kwargs
            wide_args, wide_kwargs = wide_args[:1], defaults | {k: v for k, v in named.items() if v is not None}
        run = _WITHOUT_FP64.get(func, func)
        result = run(*wide_args, **wide_kwargs)
        return result if plan.written or plan.is_view else _wide(result)

    def _draw(self, func: Any, plan: CallPlan, args: Any, kwargs: Any) -> Any:
        """Random numbers are drawn in the model's dtype and then widened: the generator gives fp64 other numbers."""
        if plan.written:
            target = args[0]
            drawn = torch.empty_like(target, dtype=self._narrow(target.dtype))
            func(drawn, *[self._narrowed(a) for a in args[1:]], **kwargs)
            target.copy_(drawn)
            return target
        kwargs = {k: self._narrowed(v) for k, v in kwargs.items()}
        if plan.has_dtype and kwargs.get("dtype") is None:
            like = args[0].dtype if args and isinstance(args[0], torch.Tensor) else torch.float64
            kwargs["dtype"] = self._narrow(like)
        return _wide(func(*[self._narrowed(a) for a in args], **kwargs))

    def _narrow(self, dtype: torch.dtype) -> torch.dtype:
        return self.nominal if dtype is torch.float64 else dtype

    def _narrowed(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
            return value.to(self.nominal)
        return value


class _NominalDtype(TorchFunctionMode):
    """Answers `x.dtype` with the model's own dtype, and lets `torch.tensor(..., dtype=torch.float32)` keep fp64."""

    def __init__(self, nominal: torch.dtype) -> None:
        super().__init__()
        self.answers = {torch.float64: nominal, torch.complex128: torch.complex64}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _DTYPE:
            dtype = func(*args)
            return self.answers.get(dtype, dtype)
        kwargs = kwargs or {}
        if func in _FROM_DATA and "dtype" in kwargs:
            kwargs = {**kwargs, "dtype": _wide(kwargs["dtype"])}
        elif func is torch.nn.functional.rms_norm and _without_eps(args, kwargs):
            # PyTorch's default is the epsilon of the tensor's dtype, which must be the model's and not fp64's.
            kwargs = {**kwargs, "eps": torch.finfo(self.answers[torch.float64]).eps}
            args = args[:3]
        return func(*args, **kwargs)


_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor})


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch._grouped_mm` (experts of a mixture): group g of rows, which ends at offs[g], times matrix g."""
    if left.dim() == 3 and right.dim() == 3:
        return torch.bmm(left, right)
    if left.dim() != 2 or right.dim() != 3 or offs is None or bias is not None:
        raise ControlUnavailable("no fp64 control: aten::_grouped_mm in a form that only training uses")
    result = left.new_zeros(left.shape[0], right.shape[2])
    start = 0
    for group, end in enumerate(offs.tolist()):
        result[start:end] = left[start:end] @ right[group]
        start = end
    return result


_CLAMPS_TO_DTYPE = frozenset({torch.ops.aten.nan_to_num.default, torch.ops.aten.nan_to_num_.default})
"""Ops that replace infinity by the greatest number of the dtype, which must be the model's dtype."""

_WITHOUT_FP64 = {torch.ops.aten._grouped_mm.default: _grouped_mm}
"""Ops that PyTorch has no fp64 kernel for, and what computes the same."""


def _without_eps(args: Any, kwargs: Any) -> bool:
    return kwargs.get("eps") is None and (len(args) < 4 or args[3] is None)


@dataclass(frozen=True)
class CallPlan:
    """What an overload's schema says about how to run it in fp64."""

    written: frozenset[int | str]
    """Arguments that it writes to, by position and by name: they must stay themselves."""
    is_view: bool
    """Whether it returns a view of its first argument: a view of a widened copy would lose what is written to it."""
    draws: bool
    has_dtype: bool


@cache
def call_plan(func: Any) -> CallPlan:
    """What the schema of an overload says."""
    arguments = func._schema.arguments
    written: set[int | str] = set()
    for index, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {index, argument.name}
    returns = func._schema.returns
    return CallPlan(
        written=frozenset(written),
        is_view=not written and any(r.alias_info is not None for r in returns),
        # Not by the tag `nondeterministic_seeded`: attention carries it for its dropout, and computes besides.
        draws=func._schema.name.removeprefix("aten::").rstrip("_") in DRAWS,
        has_dtype=any(a.name == "dtype" for a in arguments),
    )


def _wide(value: Any) -> Any:
    """Narrow tensors and dtypes, also in lists, in fp64; all else as it is."""
    if isinstance(value, torch.Tensor):
        return _widened(value)
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(_wide(v) for v in value)
    return value


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    dtype = _WIDE.get(tensor.dtype)
    return tensor if dtype is None else tensor.to(dtype)


def _checked(func: Any, value: Any) -> Any:
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, torch.Tensor) and tensor.dtype in _WIDE:
            raise ControlUnavailable(f"no fp64 control: {func.name()} writes to a {tensor.dtype} made outside of it")
    return value


def _nominal(built: BuiltModel) -> torch.dtype:
    """The floating dtype that the model is in."""
    return next((p.dtype for p in built.module.parameters() if p.dtype in _WIDE and not p.is_complex()), torch.float32)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What PyTorch makes from Python numbers has that dtype in the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
