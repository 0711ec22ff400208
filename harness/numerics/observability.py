"""Observability: the share of a model's floating-point op calls whose fault the verdict could see.

A pass means little where a fault could not have shown. Each sampled op call's result is perturbed by 1 %, and the
output that follows is judged as a device's would be.
"""

from __future__ import annotations

import copy
import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.copies import copied_inputs, private_copy
from harness.backends.double import forward
from harness.backends.tree import Leaf, walk
from harness.numerics.budget import POPULOUS
from harness.numerics.verdict import References, judge
from harness.records import Status
from model_zoo.spec import BuiltModel

PERTURBATION = 0.01
"""Relative size of the perturbation, its sign drawn for each element."""
LEAST = 0.8
"""Observability below which a model is marked, and judged on its hidden states too."""
SEEN = (Status.DIVERGENT, Status.NON_FINITE, Status.CONTRACT, Status.RUNTIME_ERROR)
"""Statuses of a tree in which a fault was seen."""

_HUGE = 1e30
"""Beyond this a number stands for infinity, as in masks."""

_NO_COMPUTATION = frozenset(
    {
        "alias",
        "alias_copy",
        "clone",
        "copy",
        "contiguous",
        "detach",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "_to_copy",
    }
    | {"_unsafe_view", "_reshape_alias", "_reshape_copy", "empty", "empty_like", "empty_strided", "new_empty"}
    | {"new_empty_strided", "view_as_real", "view_as_complex", "resize", "set", "empty_permuted"}
)
"""Ops that compute nothing: views without the schema that says so, copies, memory whose content is yet to come."""


@dataclass(frozen=True)
class Observability:
    """How much of a model a comparison of its outputs can see."""

    share: float
    """Share of the sampled calls whose perturbation went beyond the output's budget; 1 where there was no such call."""
    calls_sampled: int
    calls_total: int
    """Floating-point op calls of one forward, views and copies not counted."""
    unseen: tuple[str, ...] = ()
    """The ops of sampled calls that were not seen, as `aten::add.Tensor`, in the order of their calls."""


def measure(
    built: BuiltModel,
    reference: Sequence[Leaf],
    control: Sequence[Leaf] | None,
    calls: int = 24,
    seconds: float | None = None,
) -> Observability:
    """Perturbs op calls one by one, a seeded sample of `calls` of them, each on a copy of the model.

    Args:
        built: the model, which is not changed.
        reference: what the reference gave for it.
        control: its fp64 control, None if there is none.
        calls: how many calls to perturb.
        seconds: stop before the next call when so many have passed; at least one call is perturbed.

    After the sampled perturbations of fault injection: what a fault of known size in one op does to the output
    (Li et al., SC 2017, "Understanding error propagation in deep learning neural network accelerators").
    """
    begun = time.monotonic()
    counter = _Perturbed(None)
    copies = _Copies(built)
    forward(copies.next(), counter)
    chosen = sorted(random.Random(0).sample(range(counter.calls), min(calls, counter.calls)))
    random.Random(1).shuffle(chosen)  # so that a sample cut short is one of the whole model
    judged = _Judge(reference, control)
    unseen: list[tuple[int, str]] = []
    done = 0
    for call in chosen:
        if done and seconds is not None and time.monotonic() - begun > seconds:
            break
        perturbed = _Perturbed(call)
        try:
            seen = judged.sees(walk(forward(copies.next(), perturbed)))
        except Exception:  # the model itself refuses what the perturbation made of its data
            seen = True
        done += 1
        if not seen:
            unseen.append((call, perturbed.op))
    share = 1 - len(unseen) / done if done else 1.0
    return Observability(share, done, counter.calls, tuple(op for _, op in sorted(unseen)))


def fingerprint(built: BuiltModel) -> str:
    """A hash of the ops that a forward calls, with the shapes and dtypes of their tensors: equal for equal graphs."""
    recorder = _Recorder()
    forward(_Copies(built).next(), recorder)
    return recorder.digest.hexdigest()[:16]


class _Perturbed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts floating-point op calls that compute something, and perturbs the result of one of them."""

    def __init__(self, target: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target, self.calls, self.op = target, 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload) or not _computes(func):
            return result
        found = next((t for t in pytree.tree_leaves(result) if _is_floating(t)), None)
        if found is not None:
            if self.calls == self.target:
                self.op = func.name()  # type: ignore[no-untyped-call]
                _perturb(found, self.calls)
            self.calls += 1
        return result


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hashes op calls: names, tensors' shapes and dtypes, and every argument that is no tensor."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.digest = hashlib.sha256()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = [_described(leaf) for leaf in pytree.tree_leaves((args, kwargs or {}))]
        self.digest.update(f"{func.name()}{leaves}\n".encode())
        return func(*args, **(kwargs or {}))


class _Judge:
    """Judges perturbed outputs leaf by leaf, and stops at the first leaf in which the perturbation shows."""

    def __init__(self, reference: Sequence[Leaf], control: Sequence[Leaf] | None) -> None:
        truth = {leaf.path: leaf for leaf in control or ()}
        self.reference = {leaf.path: leaf for leaf in reference}
        self.control = {path: (truth[path],) if path in truth else None for path in self.reference}
        # Cheap leaves first, but those too small to know their own error last.
        size = {leaf.path: leaf.value.numel() if isinstance(leaf.value, Tensor) else 0 for leaf in reference}
        self.order = sorted(size, key=lambda path: (size[path] < POPULOUS, size[path]))

    def sees(self, leaves: Sequence[Leaf]) -> bool:
        """Whether the verdict on these outputs would be that they are wrong."""
        given = {leaf.path: leaf for leaf in leaves}
        if given.keys() != self.reference.keys():
            return True
        return any(self._differs(given[path]) for path in self.order)

    def _differs(self, leaf: Leaf) -> bool:
        reference = self.reference[leaf.path]
        if _same(leaf.value, reference.value):
            return False
        return judge((leaf,), References((reference,), self.control[leaf.path])).status in SEEN


class _Copies:
    """Copies of a model to run one after the other, which share its parameters unless a forward writes to them."""

    def __init__(self, built: BuiltModel) -> None:
        try:
            self.origin, self.copyable = private_copy(built), True
        except Exception:  # a module that holds a lock, a file, a generator
            self.origin, self.copyable = built, False
        self.parameters = list(self.origin.module.parameters())
        self.built, self.versions = built, self._versions()

    def next(self) -> BuiltModel:
        """A copy for one forward."""
        args, kwargs = copied_inputs(self.origin)
        if not self.copyable:
            return replace(self.origin, args=args, kwargs=kwargs)
        if self._versions() != self.versions:
            return private_copy(self.built)
        memo: dict[int, Any] = {id(p): p for p in self.parameters}
        return replace(self.origin, module=copy.deepcopy(self.origin.module, memo), args=args, kwargs=kwargs)

    def _versions(self) -> list[int]:
        return [p._version for p in self.parameters]


def _computes(func: torch._ops.OpOverload) -> bool:
    """Whether an op computes something: it is no view, no copy, and no allocation."""
    if func._schema.name.partition("::")[2].rstrip("_") in _NO_COMPUTATION:
        return False
    return not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0 and not value.is_quantized


def _perturb(tensor: Tensor, seed: int) -> None:
    """Multiplies each element by 1 +- 1 %; where that changes nothing, as in masks and zeros, adds 1 % to the zeros."""
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, tensor.shape, generator=generator).mul_(2).sub_(1)
    magnitude = tensor.abs()
    if bool(((magnitude > 0) & (magnitude < _HUGE)).any()):
        tensor.mul_(1 + PERTURBATION * sign)
    else:
        tensor.copy_(torch.where(magnitude == 0, (PERTURBATION * sign).to(tensor.dtype), tensor))


def _same(a: Any, b: Any) -> bool:
    """Whether two leaves are equal, bit by bit if they are tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype}{tuple(leaf.shape)}"
    return type(leaf).__name__ if " at 0x" in repr(leaf) else repr(leaf)
