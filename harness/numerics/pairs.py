"""One class per kind of value: what it supports, and how it is compared. A difference is data, never an exception.

The order within a pair is the order of judgement: type, shape, dtype, then the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.numerics.movement import unseen
from harness.records import Metrics, NumericClass, Status


@dataclass(frozen=True)
class LeafVerdict:
    """The judgement on one leaf."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    """`torch.float32`, or the type of what is no tensor."""
    status: Status
    numeric_class: NumericClass | None
    metrics: Metrics
    message: str = ""
    """What differs, without the path; empty for a pass."""
    apart: bool = False
    """Whether the reference stands apart from its fp64 control: another mask, or an error beyond its dtype's."""


@dataclass(frozen=True)
class Values:
    """The values of one leaf: the device's, and what it is judged by."""

    path: str
    device: Any
    reference: Any
    control: Any = None
    """The fp64 value, or None where it could not be had."""
    prior: float | None = None
    """Relative error of the reference in the other leaves of the same output tree."""
    tree_scale: float | None = None
    """Greatest RMS of a leaf of the control's tree, where it was asked for."""
    second: Any = None
    """The second path's value, or None."""
    jittered: tuple[Any, ...] = ()
    """The values of runs whose roundings differ."""
    lower: Any = None
    """The value in the device's own, lower precision, or None."""
    looked: bool = False
    """Whether the row was looked at again, so that this is the last word."""
    suspect: bool = False
    """Whether that found an op of the reference at fault."""


class Pair(ABC):
    """Compares the device's value of a leaf with the reference's."""

    types: ClassVar[tuple[type, ...]]
    """Types of the reference's value that this pair is for."""

    def __init__(self, values: Values) -> None:
        self.values = values

    @classmethod
    def supports(cls, reference: Any) -> bool:
        """Whether this pair can compare with that reference."""
        return isinstance(reference, cls.types)

    def compare(self) -> LeafVerdict:
        """The verdict on this leaf."""
        return self.attributes_impl() or self.values_impl()

    def attributes_impl(self) -> LeafVerdict | None:
        """A verdict if the values cannot be compared: here, if they are not of one type."""
        if type(self.values.device) is type(self.values.reference):
            return None
        return self.contract(
            f"is a {type(self.values.device).__name__}, expected {type(self.values.reference).__name__}"
        )

    @abstractmethod
    def values_impl(self) -> LeafVerdict:
        """The verdict on values whose attributes agree."""

    def contract(self, message: str) -> LeafVerdict:
        """The verdict that type, shape or dtype differ."""
        return self.verdict(Status.CONTRACT, None, Metrics(leaf=self.values.path), message)

    def verdict(
        self, status: Status, kind: NumericClass | None, metrics: Metrics, message: str = "", apart: bool = False
    ) -> LeafVerdict:
        """A verdict on this leaf."""
        value = self.values.device
        tensor = isinstance(value, Tensor)
        return LeafVerdict(
            path=self.values.path,
            shape=tuple(value.shape) if tensor else (),
            dtype=str(value.dtype) if tensor else type(value).__name__,
            status=status,
            numeric_class=kind,
            metrics=metrics,
            message=message,
            apart=apart,
        )


class ObjectPair(Pair):
    """Strings and anything else: equal or not. Of a type that only knows identity, the type alone is compared."""

    types = (object,)

    def values_impl(self) -> LeafVerdict:
        """Compares by `==`."""
        metrics = Metrics(leaf=self.values.path)
        device, reference = self.values.device, self.values.reference
        if not _has_equality(type(reference)) or _equal(device, reference):
            return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)
        message = f"is {_short(device)}, expected {_short(reference)}"
        return self.verdict(Status.DIVERGENT, NumericClass.DIVERGENT, metrics, message)


class NumberPair(Pair):
    """Python numbers: judged as 0-d tensors, a float as one that was computed in fp32."""

    types = (bool, int, float, complex)

    def values_impl(self) -> LeafVerdict:
        """Hands on to the pair for tensors; an integer that no tensor holds is compared by `==`."""
        if any(isinstance(v, int) and abs(v) >= 2**63 for v in (self.values.device, self.values.reference)):
            return ObjectPair(self.values).values_impl()
        dtype = {float: torch.float32, complex: torch.complex64}.get(type(self.values.reference))

        def tensor(value: Any) -> Tensor | None:
            return torch.tensor(value, dtype=dtype) if isinstance(value, self.types) else None

        given = self.values
        control = torch.tensor(given.control) if isinstance(given.control, self.types) else None
        return pair_for(
            replace(
                given,
                device=tensor(given.device),
                reference=tensor(given.reference),
                control=control,
                second=tensor(given.second),
                jittered=tuple(map(tensor, given.jittered)),
                lower=tensor(given.lower),
            )
        ).compare()


class TensorPair(Pair):
    """What all tensors share: shape and dtype."""

    types = (Tensor,)

    def attributes_impl(self) -> LeafVerdict | None:
        """Contract if one is no tensor, or shape or dtype differ."""
        device, reference = self.values.device, self.values.reference
        if not isinstance(device, Tensor):
            return self.contract(f"is a {type(device).__name__}, expected a tensor")
        if device.shape != reference.shape:
            return self.contract(f"has shape {tuple(device.shape)}, expected {tuple(reference.shape)}")
        if device.dtype != reference.dtype:
            return self.contract(f"has dtype {device.dtype}, expected {reference.dtype}")
        return None

    def usable(self, value: Any) -> Tensor | None:
        """Another run's value, if it is a tensor of the same shape."""
        same = isinstance(value, Tensor) and value.shape == self.values.reference.shape
        return dense(value) if same else None


class ExactPair(TensorPair):
    """Integer and bool tensors: exactly equal, but for near ties (argmax, argsort, topk) that rounding decides.

    An element at which the device differs passes if fp64, the second path or a jittered run takes the device's value;
    it is ill-conditioned if those move it to several others, and divergent if they move it to but one, or not at all.
    """

    @classmethod
    def supports(cls, reference: Any) -> bool:
        """Whether it is a tensor of integers or bools."""
        return isinstance(reference, Tensor) and not (reference.is_floating_point() or reference.is_complex())

    def values_impl(self) -> LeafVerdict:
        """Compares by `==`; the index is that of the first difference."""
        device, reference = dense(self.values.device).flatten(), dense(self.values.reference).flatten()
        differs = device != reference
        over = int(differs.sum())
        if not over:
            metrics = Metrics(leaf=self.values.path, elements=differs.numel(), elements_over=0)
            return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)
        control = self.usable(self.values.control)
        runs = [
            run.flatten() for run in map(self.usable, (self.values.second, *self.values.jittered)) if run is not None
        ]
        times, attained = torch.zeros_like(device, dtype=torch.int32), torch.zeros_like(differs)
        for run in (*runs, *([] if control is None else [control.flatten()])):
            times += run != reference
            attained |= run == device
        unmoved = differs & ~attained & ~_several(reference, runs)
        status, kind, blamed = Status.DIVERGENT, NumericClass.DIVERGENT, differs
        if self.values.jittered and int(unmoved.sum()) > unseen(times, len(runs), deviations=1):
            blamed = unmoved
        elif self.values.jittered:
            ill = bool((differs & ~attained).any())
            status = Status.ILL_CONDITIONED if ill else Status.PASS
            kind = NumericClass.ILL_CONDITIONED if ill else NumericClass.WITHIN_BUDGET
            blamed = differs & ~attained if ill else differs
        first, explained = int(blamed.int().argmax()), over - int(unmoved.sum()) if self.values.jittered else 0
        got, expected = device[first].item(), reference[first].item()
        metrics = Metrics(
            leaf=self.values.path,
            index=unravel(first, self.values.reference.shape),
            device_value=got,
            reference_value=expected,
            control_value=None if control is None else control.flatten()[first].item(),
            elements_over=over - explained,
            elements_explained=explained if self.values.jittered else None,
            elements=differs.numel(),
            runs=1 + len(runs) if runs else None,
            rule=None if status is Status.PASS else "element",
            max_abs=float((device.double() - reference.double()).abs().max()),
        )
        message = f"is {got}, expected {expected}; {over} of {differs.numel()} elements differ"
        if status is Status.ILL_CONDITIONED:
            message += "; rounding alone moves them, no verdict is possible"
        return self.verdict(status, kind, metrics, "" if status is Status.PASS else message)


def _several(reference: Tensor, runs: Sequence[Tensor]) -> Tensor:
    """Elements that the runs move to two or more other values: what rounding chooses among is not a pair."""
    other, several = reference.clone(), torch.zeros(reference.shape, dtype=torch.bool)
    for run in runs:
        moved = run != reference
        several |= moved & (other != reference) & (run != other)
        other = torch.where(moved & (other == reference), run, other)
    return several


def pair_for(values: Values) -> Pair:
    """The pair for a leaf, chosen by the reference's value."""
    from harness.numerics.floats import FloatPair

    pairs: tuple[type[Pair], ...] = (ExactPair, FloatPair, NumberPair, ObjectPair)
    return next(pair for pair in pairs if pair.supports(values.reference))(values)


def dense(value: Tensor) -> Tensor:
    """A strided tensor on the CPU, its logical elements in order, unquantised."""
    value = value.detach().resolve_conj().resolve_neg().cpu()
    if value.is_quantized:
        value = value.dequantize()
    return value if value.layout is torch.strided else value.to_dense()


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index in a tensor of that shape of its element number `flat`.

    >>> unravel(5, (2, 3))
    (1, 2)
    """
    index: list[int] = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))


def _has_equality(kind: type) -> bool:
    """Whether a type says when two of its objects are equal; one that does not compares identities."""
    return any("__eq__" in vars(base) for base in kind.__mro__[:-1])


def _equal(a: Any, b: Any) -> bool:
    """`==`; False too where that raises or has no truth value."""
    try:
        same = a == b
        return bool(same.all() if hasattr(same, "all") else same)  # an array compares element by element
    except Exception:
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
