"""The reference: eager PyTorch on the CPU in the model's own dtype, and its second path.

The fp64 control is in `double.py`. Every run gets a private copy of the model, so that forwards that write to their
inputs, buffers or caches change nothing for the next run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import Availability, Backend, Needs, Observation, Work
from harness.backends.copies import cast, copied_inputs, private_copy, with_inputs
from harness.backends.double import ControlUnavailable, Watch, forward, run_control
from harness.backends.tree import Aliases, Leaf, aliases, walk
from model_zoo.spec import BuiltModel

__all__ = ["ControlUnavailable", "Reference", "ReferenceRun", "cast", "run_control", "run_reference", "run_second_path"]


@dataclass(frozen=True)
class ReferenceRun:
    """What the reference gave."""

    leaves: tuple[Leaf, ...]
    op_counts: dict[str, int]
    """ATen overloads dispatched (`aten::add.Tensor`), and how often."""
    aliases: Aliases
    """Which outputs share memory with an input."""


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ATen overloads that reach a kernel; a higher-order op (`torch.cond`) counts as one."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def run_reference(built: BuiltModel) -> ReferenceRun:
    """Runs the model as it is. What its forward raises passes through."""
    counter = OpCounter()
    own = isolated(built)
    leaves = walk(forward(own, counter))
    return ReferenceRun(leaves, dict(counter.counts), aliases(leaves, pytree.tree_leaves((own.args, own.kwargs))))


def run_second_path(built: BuiltModel, watch: Watch | None = None) -> tuple[Leaf, ...]:
    """Runs the model on kernels other than the reference's: no oneDNN, one thread, another memory layout.

    Where the model takes no other layout (it calls `view` on what a convolution gave), the layout stays.
    """
    with second_path_settings():
        try:
            return walk(forward(private_copy(built, other_layout), watch))
        except Exception:
            return walk(forward(isolated(built), watch))


def isolated(built: BuiltModel) -> BuiltModel:
    try:
        return private_copy(built)
    except Exception:  # a module that holds a lock, a file, a generator: the inputs at least are its own
        args, kwargs = copied_inputs(built)
        return BuiltModel(built.spec, built.module, args, kwargs, built.family, built.modality, built.reduced)


@contextmanager
def second_path_settings() -> Iterator[None]:
    threads, onednn = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    # Not `torch.backends.mkldnn.flags`, which also sets, and warns of, a switch for Intel's GPUs.
    torch._C._set_mkldnn_enabled(False)
    # One thread stays one: a second on a worker's only core spins for it, and a small model takes ten times as long.
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch._C._set_mkldnn_enabled(onednn)


def other_layout(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another memory layout: channels last for images and filters, column-major for matrices."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor
    if tensor.dim() == 2:
        return tensor.t().contiguous().t()
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    return tensor


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Reference(Backend):
    """The reference as a backend, so that a sweep can hold it, or another way to run it, against itself."""

    name: ClassVar[str] = "reference"
    modes: ClassVar[tuple[str, ...]] = ("eager", "threads", "second-path", "double")
    needs: ClassVar[Needs] = Needs.MODULE
    restart_after_error: ClassVar[bool] = False

    def availability_impl(self, mode: str | None) -> Availability:
        """Always: PyTorch itself."""
        return Availability(True, "eager PyTorch on the CPU", versions={"torch": torch.__version__})

    def activate_impl(self) -> None:
        """Sets the thread count."""
        torch.set_num_threads(self.threads)

    def lower_impl(self, work: Work) -> BuiltModel:
        """Builds the module, in the row's dtype."""
        built = work.build()
        dtype = getattr(torch, work.key.dtype)
        return built if dtype is torch.float32 else cast(built, dtype)

    def run_impl(self, compiled: BuiltModel, inputs: Sequence[Any] | None = None) -> Observation:
        """Runs the mode's path and counts its ops."""
        compiled = with_inputs(compiled, inputs)
        if self.mode in ("eager", "threads"):
            with _threads(self.threads + 2 if self.mode == "threads" else self.threads):
                run = run_reference(compiled)
            return Observation(run.leaves, run.op_counts, aliases=run.aliases)
        path = run_second_path if self.mode == "second-path" else run_control
        counter = OpCounter()
        leaves = path(compiled, counter)
        return Observation(leaves, dict(counter.counts))
