"""Floating and complex tensors: NaN and inf masks first, then each element in units of the error budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.numerics.budget import MORE_PRECISE, RMS_LIMIT, SUSPECT, Budget, Rounding, budget, rms, rounding
from harness.numerics.pairs import LeafVerdict, TensorPair, dense, unravel
from harness.records import Metrics, NumericClass, Status


class FloatPair(TensorPair):
    """Floating tensors, and complex ones as pairs of reals."""

    @classmethod
    def supports(cls, reference: Any) -> bool:
        """Whether it is a floating or complex tensor."""
        return isinstance(reference, Tensor) and (reference.is_floating_point() or reference.is_complex())

    def values_impl(self) -> LeafVerdict:
        """Masks, then the budget."""
        self.kind: Rounding = rounding(self.values.reference.dtype)
        device, reference = flat64(self.values.device), flat64(self.values.reference)
        given = self.control()
        control = None if given is None else self._saturated(flat64(given), reference)
        non_finite = self._masks(device, reference, control)
        if isinstance(non_finite, LeafVerdict):
            return non_finite
        if non_finite is not None:
            device, reference = (x.masked_fill(non_finite, 0.0) for x in (device, reference))
            control = None if control is None else control.masked_fill(non_finite, 0.0)
        compared = device.numel() - (int(non_finite.sum()) if non_finite is not None else 0)
        if not compared:
            metrics = Metrics(leaf=self.values.path, elements=device.numel(), elements_over=0)
            return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)
        return self._judge(device, reference, control)

    def _saturated(self, control: Tensor, reference: Tensor) -> Tensor:
        """The control with what the dtype cannot hold replaced by the reference's own inf or greatest value."""
        beyond = control.abs() > self.kind.largest
        if not bool(beyond.any()):
            return control
        accepted = beyond & (reference.abs() >= self.kind.largest) & (reference.sign() == control.sign())
        return torch.where(accepted, reference, torch.where(beyond, control.sign() * torch.inf, control))

    def _masks(self, device: Tensor, reference: Tensor, control: Tensor | None) -> LeafVerdict | Tensor | None:
        """A verdict if NaN or inf stand in other places; else the mask of what is not finite, None if nothing is."""
        present = [device, reference] + ([] if control is None else [control])
        if all(bool(torch.isfinite(x.sum())) for x in present):
            return None
        codes = [_code(x) for x in present]
        if bool((codes[0] != codes[1]).any()):
            return self._mask_verdict(Status.NON_FINITE, codes[0] != codes[1], device, reference, control)
        if control is not None and bool((codes[1] != codes[2]).any()):
            return self._mask_verdict(Status.REFERENCE_SUSPECT, codes[1] != codes[2], device, reference, control)
        return codes[0] != 0 if bool(codes[0].any()) else None

    def _mask_verdict(
        self, status: Status, differs: Tensor, device: Tensor, reference: Tensor, control: Tensor | None
    ) -> LeafVerdict:
        first, over = int(differs.int().argmax()), int(differs.sum())
        metrics = self._metrics(first, device, reference, control, elements_over=over)
        if status is Status.REFERENCE_SUSPECT:
            message = f"is {metrics.reference_value} on reference and device, {metrics.control_value} in fp64"
        else:
            message = f"is {metrics.device_value}, expected {metrics.reference_value}"
        message += f"; NaN or inf differ in {over} of {device.numel()} elements"
        return self.verdict(status, NumericClass.DIVERGENT, metrics, message)

    def _judge(self, device: Tensor, reference: Tensor, control: Tensor | None) -> LeafVerdict:
        truth = reference if control is None else control
        scale = rms(truth)
        error_reference = None if control is None else (reference - truth).abs_()
        error_device = (device - truth).abs_()
        allowed = budget(truth, error_reference, self._rows(), self.kind, self.values.prior)
        in_budgets = error_device / allowed.limit
        worst = int(in_budgets.argmax())
        rms_device = rms(error_device / allowed.sigma)
        rms_reference = 0.0 if error_reference is None else rms(error_reference / allowed.sigma)
        difference, greatest = float((device - reference).abs_().max()), float(reference.abs().max())
        norms = float(torch.linalg.vector_norm(device)) * float(torch.linalg.vector_norm(reference))
        metrics = self._metrics(
            worst,
            device,
            reference,
            control,
            worst_in_budgets=float(in_budgets[worst]),
            elements_over=int((in_budgets > 1).sum()),
            rms_ratio=max(rms_device, allowed.floor) / max(rms_reference, allowed.floor),
            reference_rms=None if error_reference is None or not scale else rms(error_reference) / scale,
            device_rms=rms(error_device) / scale if scale else None,
            max_abs=difference,
            max_rel=difference / greatest if greatest else None,
            cosine=float(device @ reference) / norms if norms else None,
        )
        identical = not difference and torch.equal(torch.signbit(device), torch.signbit(reference))
        status, kind = self._decide(metrics, allowed, identical)
        return self.verdict(status, kind, metrics, "" if status is Status.PASS else _message(status, metrics))

    def _decide(self, metrics: Metrics, allowed: Budget, identical: bool) -> tuple[Status, NumericClass]:
        """Status and class from the numbers."""
        ratio = metrics.rms_ratio or 0.0
        ill = allowed.relative > self.kind.ill
        if ratio > RMS_LIMIT or (metrics.elements_over and not ill):
            return Status.DIVERGENT, NumericClass.DIVERGENT
        if ill and ratio < SUSPECT:
            return Status.REFERENCE_SUSPECT, NumericClass.MORE_PRECISE
        if ill:
            return Status.ILL_CONDITIONED, NumericClass.ILL_CONDITIONED
        if identical:
            return Status.PASS, NumericClass.IDENTICAL
        return Status.PASS, NumericClass.MORE_PRECISE if ratio < MORE_PRECISE else NumericClass.WITHIN_BUDGET

    def _rows(self) -> int:
        """How many rows the leaf has: all dims but the last."""
        shape = self.values.reference.shape
        return max(1, self.values.reference.numel() // shape[-1]) if len(shape) > 1 else 1

    def _metrics(self, flat: int, device: Tensor, reference: Tensor, control: Tensor | None, **numbers: Any) -> Metrics:
        """Metrics with the place and the three values of element number `flat`."""
        parts = 2 if self.values.reference.is_complex() else 1
        return Metrics(
            leaf=self.values.path,
            index=unravel(flat // parts, self.values.reference.shape),
            device_value=float(device[flat]),
            reference_value=float(reference[flat]),
            control_value=None if control is None else float(control[flat]),
            elements=device.numel() // parts,
            **numbers,
        )


def flat64(value: Tensor) -> Tensor:
    """The elements in logical order in fp64, flat; of a complex tensor real and imaginary parts in turn."""
    value = dense(value)
    if value.is_complex():
        value = torch.view_as_real(value.to(torch.complex128))
    return value.to(torch.float64).reshape(-1)


def _code(x: Tensor) -> Tensor:
    """0 where finite, 1 NaN, 2 inf, 3 -inf."""
    return torch.isnan(x).to(torch.int8) + 2 * torch.isposinf(x).to(torch.int8) + 3 * torch.isneginf(x).to(torch.int8)


def _message(status: Status, metrics: Metrics) -> str:
    device, reference, control = (
        f"{x:.9g}" for x in (metrics.device_value, metrics.reference_value, metrics.control_value or 0.0)
    )
    truth = "no fp64 control" if metrics.control_value is None else f"fp64 {control}"
    over = f"{metrics.elements_over} of {metrics.elements} elements over"
    text = f"is {device}, reference {reference}, {truth}: {metrics.worst_in_budgets:.3g} budgets off, {over}, "
    text += f"RMS error {metrics.rms_ratio:.3g}x the reference's"
    if status is Status.ILL_CONDITIONED:
        return f"{text}; the reference itself is {_percent(metrics.reference_rms)} off, no verdict is possible"
    if status is Status.REFERENCE_SUSPECT:
        return f"{text}; the reference is {_percent(metrics.reference_rms)} off from fp64 and the device is not"
    return text


def _percent(share: float | None) -> str:
    return "far" if share is None else f"{100 * share:.2g} %"
