"""One class per kind of value: what it supports, and how it is compared. A difference is data, never an exception.

The order within a pair is the order of judgement: type, shape, dtype, then the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

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


@dataclass(frozen=True)
class Values:
    """The three values of one leaf."""

    path: str
    device: Any
    reference: Any
    control: Any = None
    """The fp64 value, or None where it could not be had."""
    prior: float | None = None
    """Relative error of the reference in the other leaves of the same output tree."""


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

    def verdict(self, status: Status, kind: NumericClass | None, metrics: Metrics, message: str = "") -> LeafVerdict:
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
        control = self.values.control
        values = Values(
            path=self.values.path,
            device=torch.tensor(self.values.device, dtype=dtype),
            reference=torch.tensor(self.values.reference, dtype=dtype),
            control=torch.tensor(control) if isinstance(control, self.types) else None,
            prior=self.values.prior,
        )
        return pair_for(values).compare()


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

    def control(self) -> Tensor | None:
        """The control, if it is a tensor of the same shape."""
        control = self.values.control
        usable = isinstance(control, Tensor) and control.shape == self.values.reference.shape
        return dense(control) if usable else None


class ExactPair(TensorPair):
    """Integer and bool tensors: exactly equal.

    Indices (argmax, argsort, topk) are compared as they are: a tie that rounding decides counts as divergent here.
    """

    @classmethod
    def supports(cls, reference: Any) -> bool:
        """Whether it is a tensor of integers or bools."""
        return isinstance(reference, Tensor) and not (reference.is_floating_point() or reference.is_complex())

    def values_impl(self) -> LeafVerdict:
        """Compares by `==`; the index is that of the first difference."""
        device, reference = dense(self.values.device), dense(self.values.reference)
        differs = (device != reference).flatten()
        over = int(differs.sum())
        if not over:
            metrics = Metrics(leaf=self.values.path, elements=differs.numel(), elements_over=0)
            return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)
        first = int(differs.int().argmax())
        got, expected = device.flatten()[first].item(), reference.flatten()[first].item()
        control = self.control()
        metrics = Metrics(
            leaf=self.values.path,
            index=unravel(first, device.shape),
            device_value=got,
            reference_value=expected,
            control_value=None if control is None else control.flatten()[first].item(),
            elements_over=over,
            elements=differs.numel(),
            max_abs=float((device.double() - reference.double()).abs().max()),
        )
        message = f"is {got}, expected {expected}; {over} of {differs.numel()} elements differ"
        return self.verdict(Status.DIVERGENT, NumericClass.DIVERGENT, metrics, message)


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
