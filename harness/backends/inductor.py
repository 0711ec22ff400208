"""The Inductor backend: `torch.compile` on the CPU.

Compilation happens within the first call, so the compile stage makes that call and the run stage makes the second.
Uses torch._dynamo and torch._inductor as of torch 2.14.1, which are private in part; touched in this file only.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from harness.backends.base import (
    Availability,
    Backend,
    BackendError,
    Needs,
    Observation,
    Work,
    one_line,
    traceback_tail,
)
from harness.backends.copies import cast, copied_inputs, private_copy, with_inputs
from harness.backends.double import FORWARD_SEED
from harness.backends.program import op_counts
from harness.backends.tree import aliases, walk
from harness.backends.workloads import Workload
from harness.records import Stage, Status
from model_zoo.spec import BuiltModel

_OP = re.compile(r"\b(aten|prims|prim|torchvision|quantized)(?:\.|::)(\w+)(?:\.(\w+))?")


@dataclass(frozen=True)
class _Compiled:
    built: BuiltModel
    call: Callable[..., Any]
    executed: Counter[str]
    """ATen overloads in the graphs that Inductor was given."""
    breaks: tuple[str, ...]
    """Why Dynamo broke the graph, a line each."""


class Inductor(Backend):
    """`torch.compile(module, backend="inductor")` on the CPU. A graph break is noted, not a failure."""

    name: ClassVar[str] = "inductor"
    modes: ClassVar[tuple[str, ...]] = ("compile",)
    needs: ClassVar[Needs] = Needs.MODULE
    restart_after_error: ClassVar[bool] = False

    def availability_impl(self, mode: str | None) -> Availability:
        """Needs a C++ compiler and Python's headers."""
        versions = {"torch": torch.__version__}
        compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
        if compiler is None:
            return Availability(
                False, "no C++ compiler found (looked for $CXX, g++, clang++)", "install g++ or set CXX", versions
            )
        headers = Path(sysconfig.get_path("include")) / "Python.h"
        if not headers.exists():
            return Availability(False, f"no {headers}", "install Python's headers, e.g. python3-dev", versions)
        return Availability(True, f"torch.compile on the CPU, C++ by {Path(compiler).name}", versions=versions)

    def activate_impl(self) -> None:
        """Sets the thread count, and has Inductor compile in this process: a pool would outlive the row."""
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        torch.set_num_threads(self.threads)
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        inductor.compile_threads = 1
        # Dropout and noise draw as eager does, so that both sides see the same numbers.
        inductor.fallback_random = True
        # A hit there would skip `inner_compile`, and with it the count of ops.
        functorch.enable_autograd_cache = False

    def lower_impl(self, work: Work) -> BuiltModel:
        """Builds the module, in the row's dtype."""
        built = work.build()
        dtype = getattr(torch, work.key.dtype)
        return built if dtype is torch.float32 else cast(built, dtype)

    def compile_impl(self, lowered: object) -> _Compiled:
        """Makes the first call, on a copy, and counts the ops of the graphs that Inductor compiled."""
        assert isinstance(lowered, BuiltModel)
        from torch import _dynamo
        from torch._dynamo.utils import counters
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        _dynamo.reset()
        counters.clear()
        built = private_copy(lowered)
        executed: Counter[str] = Counter()

        def inner(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            executed.update(op_counts(graph))
            return compile_fx_inner(graph, inputs, **options)

        def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            return compile_fx(graph, inputs, inner_compile=inner, **options)

        if isinstance(built.module, Workload):
            dynamic = built.module.dynamic
            built.module.compile_inner(lambda model: torch.compile(model, backend=backend, dynamic=dynamic))
            call: Callable[..., Any] = built.module
        else:
            call = torch.compile(built.module, backend=backend, dynamic=False)
        with _state_kept(built.module):
            _call(call, *copied_inputs(lowered))
        breaks = tuple(
            f"graph break, {count}x, between compiled parts ran eager: {one_line(Exception(reason))[11:]}"
            for reason, count in counters["graph_break"].items()
        )
        return _Compiled(built, call, executed, breaks)

    def run_impl(self, compiled: _Compiled, inputs: Sequence[Any] | None = None) -> Observation:
        """Makes a further call, on fresh inputs and the module's first state."""
        args, kwargs = copied_inputs(with_inputs(compiled.built, inputs))
        with _state_kept(compiled.built.module):
            leaves = walk(_call(compiled.call, args, kwargs))
        shared = aliases(leaves, pytree.tree_leaves((args, kwargs)))
        return Observation(leaves, dict(compiled.executed), aliases=shared, substituted=compiled.breaks)

    def classify_impl(self, stage: Stage, error: BaseException) -> BackendError:
        """Names the op where the message does, and tells a missing compiler from a failure to compile."""
        from torch._dynamo import exc as dynamo
        from torch._inductor import exc as inductor

        chain = list(_chain(error))
        inmost = chain[-1]
        if any(isinstance(e, inductor.InvalidCxxCompiler) for e in chain):
            return BackendError(Status.ENVIRONMENT_ERROR, one_line(inmost))
        if not any(isinstance(e, dynamo.TorchDynamoException | inductor.InductorError) for e in chain):
            return super().classify_impl(stage, error)
        dynamic = ("DataDependent", "Unbacked", "GuardOnData")
        shape = any(type(e).__name__.startswith(dynamic) for e in chain)
        status = Status.DYNAMIC_SHAPE if shape else Status.COMPILE_ERROR
        return BackendError(status, one_line(inmost), op=named_op(str(error)), detail=traceback_tail(error))


def named_op(text: str) -> str | None:
    """The first ATen overload that a message names, by its dispatcher name.

    >>> named_op("LoweringException: target: aten.hypot.default")
    'aten::hypot'
    """
    match = _OP.search(text)
    if match is None:
        return None
    space, name, overload = match.groups()
    return f"{space}::{name}" + (f".{overload}" if overload and overload != "default" else "")


def _call(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(FORWARD_SEED)
        return call(*args, **kwargs)


@contextmanager
def _state_kept(module: torch.nn.Module) -> Iterator[None]:
    """Puts the buffers back afterwards: Inductor's kernels write to them without a trace in `_version`."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it was raised from, or wraps as `inner_exception`."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__
