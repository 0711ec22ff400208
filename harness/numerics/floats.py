"""Floating and complex tensors: NaN and inf masks first, then each element in units of the error budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.numerics.budget import (
    MORE_PRECISE,
    POPULOUS,
    RMS_LIMIT,
    SUSPECT,
    Budget,
    Rounding,
    budget,
    ordinary,
    rms,
    rounding,
)
from harness.numerics.movement import GAIN, Excuse, excuse, jumps, spread
from harness.numerics.pairs import LeafVerdict, TensorPair, dense, unravel
from harness.numerics.systematic import LENGTH, Rows, Systematic, row_length, systematic
from harness.records import Metrics, NumericClass, Status

LOWER_RMS_LIMIT = 3.0
"""RMS ratio that passes where the unit is the CPU in a 16-bit or 8-bit precision: AWS Neuron's limit of worst L2."""
LOWER_MAX_LIMIT = 5.0
"""Likewise, of the greatest errors: AWS Neuron's limit of worst L-inf."""
NOISE = 16.0
"""A leaf of no more unit roundoffs of the greatest leaf of its tree is zero with rounding noise, not a number."""


@dataclass(frozen=True)
class _Flat:
    """The values of a leaf in fp64, flat, what is no finite number set to zero in all."""

    device: Tensor
    reference: Tensor
    control: Tensor | None
    second: Tensor | None
    jittered: tuple[Tensor, ...]
    lower: Tensor | None

    @property
    def truth(self) -> Tensor:
        return self.reference if self.control is None else self.control

    @property
    def runs(self) -> tuple[Tensor, ...]:
        """The other runs in the reference's dtype."""
        return (*([] if self.second is None else [self.second]), *self.jittered)

    def without(self, mask: Tensor) -> _Flat:
        """The same with zero in all values where the mask is set."""

        def cleared(value: Tensor | None) -> Any:
            return None if value is None else value.masked_fill(mask, 0.0)

        lists = {name: cleared(getattr(self, name)) for name in ("device", "reference", "control", "second", "lower")}
        return _Flat(**lists, jittered=tuple(cleared(run) for run in self.jittered))


class FloatPair(TensorPair):
    """Floating tensors, and complex ones as pairs of reals."""

    @classmethod
    def supports(cls, reference: Any) -> bool:
        """Whether it is a floating or complex tensor."""
        return isinstance(reference, Tensor) and (reference.is_floating_point() or reference.is_complex())

    def values_impl(self) -> LeafVerdict:
        """Bit for bit the same; the masks; then the budget."""
        values = self.values
        self._partly = False
        lower = self.usable(values.lower)
        self.kind: Rounding = rounding((values.reference if lower is None else lower).dtype)
        control = self.usable(values.control)
        reference = flat64(values.reference)
        given = None if control is None else flat64(control)
        if not values.reference.numel():
            metrics = Metrics(leaf=values.path, elements=0, elements_over=0)
            return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)
        if lower is None and not values.looked and _same_bits(values.device, values.reference):
            identical = self._identical(reference, given)
            if identical is not None:
                return identical
        second = self.usable(values.second)
        jittered = tuple(flat64(run) for run in map(self.usable, values.jittered) if run is not None)
        flat = _Flat(
            device=flat64(values.device),
            reference=reference,
            control=None if given is None else self._saturated(given, reference),
            second=None if second is None else flat64(second),
            jittered=jittered,
            lower=None if lower is None else flat64(lower),
        )
        masks = self._masks(flat, given)
        if isinstance(masks, LeafVerdict):
            return masks
        return self._judge(flat) if masks is None else self._beside(masks, flat)

    # The values that are not finite.

    def _saturated(self, control: Tensor, reference: Tensor) -> Tensor:
        """The control with what the dtype cannot hold replaced by the reference's own inf or greatest value."""
        beyond = control.abs() > self.kind.largest
        if not bool(beyond.any()):
            return control
        accepted = beyond & (reference.abs() >= self.kind.largest) & (reference.sign() == control.sign())
        return torch.where(accepted, reference, torch.where(beyond, control.sign() * torch.inf, control))

    def _masks(self, flat: _Flat, control: Tensor | None) -> LeafVerdict | Tensor | None:
        """A verdict if NaN or inf stand in other places; else the mask of what to leave out, None if nothing is."""
        present = [flat.device, flat.reference, flat.control, *flat.runs, flat.lower]
        if all(bool(torch.isfinite(x.sum())) for x in present if x is not None):
            return None
        device, reference = _code(flat.device), _code(flat.reference)
        truth = reference if flat.control is None else _code(flat.control)
        doubt = reference != truth
        differs = (device != reference) & ~doubt
        runs = [_code(run) for run in flat.runs]
        unexplained = differs.clone()
        for run in runs:
            unexplained &= device != run
        if bool(unexplained.any()):
            return self._mask_verdict(Status.NON_FINITE, unexplained, flat)
        if bool(doubt.any()):
            assert control is not None
            overflows = (reference != 0) & torch.isfinite(control)
            if not self.values.looked or self.values.suspect or bool((doubt & ~overflows).any()):
                return self._mask_verdict(Status.REFERENCE_SUSPECT, doubt, flat)
        self._ill_mask = doubt | differs
        mask = self._ill_mask | (reference != 0)
        for run in (*runs, *([] if flat.lower is None else [_code(flat.lower)])):
            mask |= run != 0
        return mask

    def _mask_verdict(self, status: Status, differs: Tensor, flat: _Flat) -> LeafVerdict:
        first, over = int(differs.int().argmax()), int(differs.sum())
        metrics = self._metrics(first, flat, elements_over=over, rule="mask")
        device, reference, control = metrics.device_value, metrics.reference_value, metrics.control_value
        message = f"is {device}, expected {reference}"
        if status is Status.REFERENCE_SUSPECT:
            whose = "reference and device" if _alike(device, reference) else "the reference"
            message = f"is {reference} on {whose}, {control} in fp64"
            message += "" if whose != "the reference" or _alike(device, control) else f", {device} on the device"
        message += f"; NaN or inf differ in {over} of {flat.device.numel()} elements"
        return self.verdict(status, NumericClass.DIVERGENT, metrics, message, apart=status is Status.REFERENCE_SUSPECT)

    def _beside(self, mask: Tensor, flat: _Flat) -> LeafVerdict:
        """The verdict on the rest, where masks agree or their difference has an explanation."""
        ill = int(self._ill_mask.sum())
        if bool(mask.all()):
            found = self.verdict(
                Status.PASS,
                NumericClass.IDENTICAL,
                Metrics(leaf=self.values.path, elements=mask.numel(), elements_over=0),
            )
        else:
            found = self._judge(flat.without(mask))
        if not ill or not found.status.is_pass:
            return found
        first = int(self._ill_mask.int().argmax())
        metrics = self._metrics(first, flat, elements_over=ill, rule="mask")
        message = (
            f"overflows in {str(self.values.reference.dtype).removeprefix('torch.')}: is {metrics.device_value}, "
            f"reference {metrics.reference_value}, fp64 {metrics.control_value}; {ill} of {mask.numel()} elements"
        )
        return self.verdict(Status.ILL_CONDITIONED, NumericClass.ILL_CONDITIONED, metrics, message, apart=True)

    # Finite values.

    def _identical(self, reference: Tensor, control: Tensor | None) -> LeafVerdict | None:
        """The verdict on a device that is the reference bit for bit, where that is near its control: a short cut."""
        scale = 0.0
        error = reference
        if control is not None:
            error = (reference - control).abs_()
            magnitude = control.abs()
            scale = rms(magnitude)
            table = magnitude.clamp(max=16 * ordinary(magnitude)).view(self._rows(), -1)
            norm = torch.linalg.vector_norm(table, dim=1, keepdim=True).div_(math.sqrt(table.shape[1]))
            bound = magnitude.view(self._rows(), -1).add(norm).add_(self.kind.smallest)
            worst = float((error.view_as(bound) / bound).max())
            if not worst <= self.kind.apart * self.kind.u / 2:  # also if it is NaN
                return None
        metrics = Metrics(
            leaf=self.values.path,
            elements=self.values.reference.numel(),
            elements_over=0,
            rms_ratio=1.0,
            reference_rms=rms(error) / scale if scale else None,
            device_rms=rms(error) / scale if scale else None,
            max_abs=0.0,
            max_rel=0.0,
            cosine=1.0,
        )
        return self.verdict(Status.PASS, NumericClass.IDENTICAL, metrics)

    def _judge(self, flat: _Flat) -> LeafVerdict:
        """The order of judgement: each element, the RMS, the worst row, the leaf's scale and offset."""
        truth = flat.truth
        own = None if flat.control is None else (flat.reference - truth)
        unit = own if flat.lower is None else flat.lower - truth
        exact = own is not None and flat.lower is None and truth.numel() >= POPULOUS and not rms(own)
        if exact and all(torch.equal(run, truth) for run in flat.runs):
            return self._judge_exact(flat)
        others, wild = [], None
        if flat.jittered:
            wild = jumps(flat.reference, flat.runs, truth.numel() // self._rows(), self.kind)
            wild = wild if bool(wild.any()) else None
            others = [spread(truth, flat.jittered)]
            others += [] if flat.second is None else [(flat.second - truth).abs()]
        allowed = budget(
            truth,
            None if unit is None else unit.abs(),
            self._rows(),
            self.kind,
            self.values.prior,
            others,
            wild,
        )
        doubtful = allowed.apart or self._is_ill(allowed, unit)
        if doubtful and (astray := self._astray(flat)) is not None:
            rest_of_leaf = self._judge(flat.without(astray))
            if rest_of_leaf.status is Status.DIVERGENT:
                return rest_of_leaf
        signed = flat.device - truth
        self._flip(flat, signed, allowed)
        excused = None
        if flat.jittered:
            found = excuse(flat.device, flat.reference, flat.control, flat.runs, allowed.limit)
            excused = found if bool(found.explained.any()) else None
        rest = signed if excused is None else signed.masked_fill(excused.explained, 0.0)
        in_sigmas = rest / allowed.sigma
        unit_in_sigmas = None if unit is None else unit / allowed.sigma
        shared = self._systematic(flat, allowed, in_sigmas, unit_in_sigmas)
        units = [] if unit_in_sigmas is None else [unit_in_sigmas, *(other / allowed.sigma for other in others)]
        units = units if wild is None else [x.masked_fill(wild, 0.0) for x in units]
        metrics = self._measure(flat, allowed, signed, rest, unit, in_sigmas, units, shared, excused)
        identical = not metrics.max_abs and _same_bits(self.values.device, self.values.reference)
        rule, status, kind = self._decide(metrics, allowed, identical, excused, unit)
        metrics = metrics.model_copy(update={"rule": rule})
        message = "" if status is Status.PASS else _message(status, metrics, shared)
        return self.verdict(status, kind, metrics, message, apart=allowed.apart and flat.lower is None)

    def _flip(self, flat: _Flat, signed: Tensor, allowed: Budget) -> None:
        """No room for another sign at subnormals that the reference has exactly: flushing gives zero, not that."""
        truth = flat.truth
        magnitude = truth.abs()
        if flat.control is None or float(magnitude.min()) >= self.kind.smallest:
            return
        flipped = (magnitude < self.kind.smallest) & (flat.reference == truth) & (flat.device * truth.sign() < 0)
        allowed.limit[flipped] = 5e-324

    def _systematic(self, flat: _Flat, allowed: Budget, errors: Tensor, unit: Tensor | None) -> Systematic | None:
        """What the errors share, for leaves large enough to tell; None without a control, which it is told from.

        Errors of the device and of the unit, in standard deviations.
        """
        parts = 2 if self.values.reference.is_complex() else 1
        length = row_length(self.values.reference.shape, parts)
        if unit is None or errors.numel() < POPULOUS or length < LENGTH:
            return None
        rows = Rows(flat.truth, allowed.sigma, length)
        runs = [rows.project(unit)]
        runs += [] if flat.second is None else [rows.project((flat.second - flat.truth) / allowed.sigma)]
        runs += [rows.project((run - flat.truth) / allowed.sigma / GAIN) for run in flat.jittered]
        return systematic(rows, rows.project(errors), runs, self.kind)

    def _judge_exact(self, flat: _Flat) -> LeafVerdict:
        """A reference without any error, over many elements: the leaf was looked up or moved, and nothing computed.

        The device may differ by one last place of the element, 2u of its magnitude, or flush what is below the normal
        numbers to zero; and by no more than u in what all elements share. A zero is a zero.
        """
        truth, kind = flat.truth, self.kind
        signed = flat.device - truth
        signed.masked_fill_((flat.device == 0) & (truth.abs() < kind.smallest), 0.0)
        last_place = truth.abs().mul_(2 * kind.u).clamp_(min=5e-324)
        in_budgets = signed.abs() / last_place
        worst, scale = int(in_budgets.argmax()), rms(truth)
        share = float(signed @ truth) / (scale * scale * truth.numel()) if scale else 0.0
        offset = float(signed.mean()) / scale if scale else 0.0
        metrics = self._metrics(
            worst,
            flat,
            worst_in_budgets=float(in_budgets[worst]),
            elements_over=int((in_budgets > 1).sum()),
            reference_rms=0.0,
            device_rms=rms(signed) / scale if scale else None,
            scale_error=share,
            offset_error=offset,
            systematic_in_limits=max(abs(share), abs(offset)) / kind.u,
            **self._shown(flat),
        )
        rules = (("element", metrics.worst_in_budgets), ("systematic", metrics.systematic_in_limits))
        metrics = metrics.model_copy(update={"rule": next((name for name, x in rules if x and x > 1), None)})
        if metrics.rule is None:
            same = _same_bits(self.values.device, self.values.reference)
            kind_of = NumericClass.IDENTICAL if same else NumericClass.WITHIN_BUDGET
            return self.verdict(Status.PASS, kind_of, metrics)
        message = f"{_message(Status.DIVERGENT, metrics, None)}; the reference is exact"
        return self.verdict(Status.DIVERGENT, NumericClass.DIVERGENT, metrics, message)

    def _measure(
        self,
        flat: _Flat,
        allowed: Budget,
        signed: Tensor,
        rest: Tensor,
        unit: Tensor | None,
        in_sigmas: Tensor,
        units: Sequence[Tensor],
        shared: Systematic | None,
        excused: Excuse | None,
    ) -> Metrics:
        """All numbers that decide, and those for show.

        The device's errors, all of them and those without an excuse; the unit's; then the latter two in standard
        deviations, with the units beside it of which the greatest counts.
        """
        truth, in_budgets = flat.truth, rest.abs().div_(allowed.limit)
        scale = rms(truth)
        rms_device, greatest_device = rms(in_sigmas), _greatest(in_sigmas)
        rms_unit = max(map(rms, units), default=0.0)
        greatest_unit = max(map(_greatest, units), default=0.0)
        worst = int(in_budgets.argmax())
        numbers: dict[str, Any] = {}
        if excused is not None:
            numbers["elements_explained"] = int(excused.explained.sum())
            if not float(in_budgets[worst]) > 1:
                worst = int(excused.explained.int().argmax())
        if flat.runs:
            numbers["runs"] = 1 + len(flat.runs)
        if shared is not None:
            length = row_length(self.values.reference.shape, self._parts())
            numbers |= {
                "row": unravel(shared.row * length // self._parts(), self.values.reference.shape),
                "row_in_limits": max(shared.row_rms, shared.row_scale, shared.row_offset),
                "systematic_in_limits": max(shared.leaf_scale, shared.leaf_offset),
            }
        if scale:
            weight = scale * scale * truth.numel()
            unit_rms = None if unit is None else rms(unit) / scale
            other = flat.lower is not None and flat.control is not None
            numbers |= {
                "reference_rms": rms(flat.reference - truth) / scale if other else unit_rms,
                "device_rms": rms(signed) / scale,
                "unit_rms": unit_rms,
                "scale_error": float(rest @ truth) / weight if weight else None,
                "offset_error": float(rest.mean()) / scale,
                "device_bias": float(signed.mean()) / scale,
                "unit_bias": None if unit is None else float(unit.mean()) / scale,
            }
        floor = allowed.floor
        if flat.lower is not None:
            numbers["equivalence"] = _equivalence(flat)
        return self._metrics(
            worst,
            flat,
            worst_in_budgets=float(in_budgets.max()),
            elements_over=int((in_budgets > 1).sum()) if float(in_budgets.max()) > 1 else 0,
            rms_ratio=max(rms_device, floor) / max(rms_unit, floor),
            max_ratio=max(greatest_device, floor) / max(greatest_unit, floor),
            **numbers,
            **self._shown(flat),
        )

    def _shown(self, flat: _Flat) -> dict[str, Any]:
        """The numbers for show."""
        difference, greatest = float((flat.device - flat.reference).abs_().max()), float(flat.reference.abs().max())
        norms = float(torch.linalg.vector_norm(flat.device)) * float(torch.linalg.vector_norm(flat.reference))
        return {
            "max_abs": difference,
            "max_rel": difference / greatest if greatest else None,
            "cosine": float(flat.device @ flat.reference) / norms if norms else None,
        }

    def _decide(
        self, metrics: Metrics, allowed: Budget, identical: bool, excused: Excuse | None, unit: Tensor | None
    ) -> tuple[str | None, Status, NumericClass]:
        """The rule that was broken, if one was; status and class."""
        ratio = metrics.rms_ratio or 0.0
        ill = self._is_ill(allowed, unit)
        lower = self.values.lower is not None
        half = self.values.reference.element_size() < 4
        rules = (
            ("element", 0.0 if ill else metrics.worst_in_budgets or 0.0),
            ("rms", ratio / (LOWER_RMS_LIMIT if lower or half else RMS_LIMIT)),
            ("max", (metrics.max_ratio or 0.0) / LOWER_MAX_LIMIT if lower else 0.0),
            ("row", 0.0 if ill else metrics.row_in_limits or 0.0),
            ("systematic", 0.0 if ill else metrics.systematic_in_limits or 0.0),
        )
        rule = next((name for name, in_limits in rules if in_limits > 1), None)
        if rule:
            return rule, Status.DIVERGENT, NumericClass.DIVERGENT
        if excused is not None and bool(excused.jumping.any()):
            return "jump", Status.ILL_CONDITIONED, NumericClass.ILL_CONDITIONED
        if ill and ratio < SUSPECT and not self.values.looked:
            return "reference", Status.REFERENCE_SUSPECT, NumericClass.MORE_PRECISE
        if ill and ratio >= SUSPECT:
            return "reference", Status.ILL_CONDITIONED, NumericClass.ILL_CONDITIONED
        if identical:
            return None, Status.PASS, NumericClass.IDENTICAL
        return None, Status.PASS, NumericClass.MORE_PRECISE if ratio < MORE_PRECISE else NumericClass.WITHIN_BUDGET

    def _is_ill(self, allowed: Budget, unit: Tensor | None) -> bool:
        """Whether the reference is too far from fp64, in the leaf as a whole, to judge by."""
        return allowed.relative > self.kind.ill and not self._is_noise(unit)

    def _astray(self, flat: _Flat) -> Tensor | None:
        """The rows and elements that make a leaf ill, where they are the lesser part: the rest can be judged.

        None where most of the leaf is ill, or where they are left out already.
        """
        if self._partly or flat.control is None:
            return None
        self._partly = True
        rows = self._rows()
        truth, error = flat.truth.view(rows, -1), (flat.reference - flat.truth).view(rows, -1)
        scale = truth.square().mean(1, keepdim=True)
        lost = error.square().mean(1, keepdim=True) > self.kind.ill**2 * scale
        astray = lost | (error.square() > (self.kind.ill / 10) ** 2 * (truth.square() + scale))
        share = float(astray.double().mean())
        return astray.flatten() if 0 < share <= 0.5 else None

    def _is_noise(self, unit: Tensor | None) -> bool:
        """Whether the leaf is zero and its values rounding noise: a gradient that cancels, say, beside its siblings."""
        scale = self.values.tree_scale
        return unit is not None and scale is not None and rms(unit) <= NOISE * self.kind.u * scale

    def _rows(self) -> int:
        """How many rows the leaf has: all dims but the last."""
        shape = self.values.reference.shape
        return max(1, self.values.reference.numel() // shape[-1]) if len(shape) > 1 else 1

    def _parts(self) -> int:
        return 2 if self.values.reference.is_complex() else 1

    def _metrics(self, at: int, flat: _Flat, **numbers: Any) -> Metrics:
        """Metrics with the place and the three values of element number `at`."""
        return Metrics(
            leaf=self.values.path,
            index=unravel(at // self._parts(), self.values.reference.shape),
            device_value=float(flat.device[at]),
            reference_value=float(flat.reference[at]),
            control_value=None if flat.control is None else float(flat.control[at]),
            elements=flat.device.numel() // self._parts(),
            **numbers,
        )


def flat64(value: Tensor) -> Tensor:
    """The elements in logical order in fp64, flat; of a complex tensor real and imaginary parts in turn."""
    value = dense(value)
    if value.is_complex():
        value = torch.view_as_real(value.to(torch.complex128))
    return value.to(torch.float64).reshape(-1)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether all elements are the same, the signs of zeros and the kinds of NaN too."""
    a, b = dense(a), dense(b)
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def _greatest(x: Tensor) -> float:
    low, high = torch.aminmax(x)
    return max(-float(low), float(high))


def _code(x: Tensor) -> Tensor:
    """0 where finite, 1 NaN, 2 inf, 3 -inf."""
    return torch.isnan(x).to(torch.int8) + 2 * torch.isposinf(x).to(torch.int8) + 3 * torch.isneginf(x).to(torch.int8)


def _alike(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def _equivalence(flat: _Flat) -> float | None:
    """R = |dev - ref| / |lower - ref| in the Frobenius norm: 1 is the precision of the device, no more.

    AWS Neuron's equivalence rule, where ref is the CPU in fp32 and lower the CPU in the device's precision: below 1.2
    passes, up to 3 looks like a difference of precision, far above 10 like another algorithm.
    """
    least = float(torch.linalg.vector_norm(flat.lower - flat.reference))  # type: ignore[operator]
    return float(torch.linalg.vector_norm(flat.device - flat.reference)) / least if least else None


def _message(status: Status, metrics: Metrics, shared: Systematic | None) -> str:
    device, reference, control = (
        f"{x:.9g}" for x in (metrics.device_value, metrics.reference_value, metrics.control_value or 0.0)
    )
    truth = "no fp64 control" if metrics.control_value is None else f"fp64 {control}"
    over = f"{metrics.elements_over} of {metrics.elements} elements over"
    text = f"is {device}, reference {reference}, {truth}: {metrics.worst_in_budgets:.3g} budgets off, {over}"
    if metrics.rms_ratio is not None:
        text += f", RMS error {metrics.rms_ratio:.3g}x the reference's"
    if metrics.rule == "row" and shared is not None:
        text += f"; the row of {list(metrics.row or ())} is {metrics.row_in_limits:.3g} limits off, {_worst_of(shared)}"
    if (metrics.systematic_in_limits or 0.0) > 1:
        text += f"; all values are off by a factor of {1 + (metrics.scale_error or 0.0):.6g}, "
        text += f"or by {metrics.offset_error:.3g} of their RMS: {metrics.systematic_in_limits:.3g} limits"
    if metrics.rule == "jump":
        return f"{text}; rounding alone moves {metrics.elements_explained} elements as far, no verdict is possible"
    if status is Status.ILL_CONDITIONED:
        return f"{text}; the reference itself is {_percent(metrics.reference_rms)} off, no verdict is possible"
    if status is Status.REFERENCE_SUSPECT:
        return f"{text}; the reference is {_percent(metrics.reference_rms)} off from fp64 and the device is not"
    return text


def _worst_of(shared: Systematic) -> str:
    """In what a row is worst."""
    words = {"rms": "in its RMS", "scale": "by a common factor", "offset": "by a common summand"}
    return words[max(words, key=lambda name: float(getattr(shared, f"row_{name}")))]


def _percent(share: float | None) -> str:
    return "far" if share is None else f"{100 * share:.2g} %"
