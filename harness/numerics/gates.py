"""The gate over several inputs: whether a device that computes in a lower precision errs as the CPU does in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records import Metrics

BHATTACHARYYA = 0.99
"""Least overlap of the two distributions of errors that passes; 0.95 to 0.99 is marginal."""
SIGMA_RATIO = 1.0
"""Or: greatest ratio of the RMS errors over all inputs, the device being the more precise side."""
MAX_RATIO = 5.0
"""Ratio of the greatest errors that the worst input must stay below."""
RMS_RATIO = 3.0
"""Ratio of the RMS errors that the worst input must stay below."""


@dataclass(frozen=True)
class Gate:
    """The device's errors beside the unit's, over several inputs of one model."""

    bhattacharyya: float
    """Overlap of the two error distributions, 0 to 1."""
    sigma_ratio: float
    """RMS error of the device over that of the unit, all inputs together."""
    max_ratio: float
    """Greatest error of the device over that of the unit (L-infinity), on the worst input."""
    rms_ratio: float
    """RMS error of the device over that of the unit (L2), on the worst input."""
    inputs: int

    def __str__(self) -> str:
        return (
            f"errors overlap {self.bhattacharyya:.3f} (or sigma ratio {self.sigma_ratio:.2f}), worst L-inf ratio "
            f"{self.max_ratio:.2f}, worst L2 ratio {self.rms_ratio:.2f} over {self.inputs} inputs"
        )

    @property
    def passes(self) -> bool:
        """Whether all of the gate's conditions hold."""
        alike = self.bhattacharyya >= BHATTACHARYYA or self.sigma_ratio <= SIGMA_RATIO
        return alike and self.max_ratio < MAX_RATIO and self.rms_ratio < RMS_RATIO


def gate(rows: Sequence[Metrics]) -> Gate | None:
    """The gate over the rows of one model on several inputs (ten are a good number); None if none has numbers.

    The unit is each row's own: the CPU in the device's precision, or the reference. Both sets of errors, each over the
    RMS of the fp64 output, are taken for Gaussians N(m, s^2); their overlap is then
    BC = sqrt(2 s t / (s^2 + t^2)) exp(-(m - n)^2 / (4 (s^2 + t^2))).
    Source: AWS Neuron's three-way comparison (bf16 on the device, bf16 and fp32 on the CPU), which passes if BC >= 0.99
    or the sigma ratio is at most 1, and the worst L-infinity ratio is below 5 and the worst L2 ratio below 3;
    Bhattacharyya 1943 for the coefficient.

    >>> same = Metrics(device_rms=0.01, unit_rms=0.01, rms_ratio=1.0, max_ratio=1.2)
    >>> gate([same] * 10).passes
    True
    """
    known = [row for row in rows if row.device_rms is not None and row.unit_rms is not None]
    if not known:
        return None
    device = _moments([(row.device_rms or 0.0, row.device_bias or 0.0) for row in known])
    unit = _moments([(row.unit_rms or 0.0, row.unit_bias or 0.0) for row in known])
    return Gate(
        bhattacharyya=_overlap(*device, *unit),
        sigma_ratio=_ratio(math.hypot(*device), math.hypot(*unit)),
        max_ratio=max(row.max_ratio or 0.0 for row in known),
        rms_ratio=max(row.rms_ratio or 0.0 for row in known),
        inputs=len(known),
    )


def _moments(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation of all errors together, from RMS and mean of each input's."""
    mean = sum(bias for _, bias in errors) / len(errors)
    square = sum(rms * rms for rms, _ in errors) / len(errors)
    return mean, math.sqrt(max(0.0, square - mean * mean))


def _overlap(m: float, s: float, n: float, t: float) -> float:
    if s == t and m == n:
        return 1.0
    if not s or not t:
        return 0.0
    both = s * s + t * t
    return math.sqrt(2 * s * t / both) * math.exp(-((m - n) ** 2) / (4 * both))


def _ratio(a: float, b: float) -> float:
    return a / b if b else (1.0 if not a else math.inf)
