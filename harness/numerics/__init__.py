"""Comparison pairs, error budget, verdict: how far a device's outputs are from fp64, and what that means."""

from harness.numerics.pairs import LeafVerdict
from harness.numerics.verdict import References, Verdict, judge

__all__ = ["LeafVerdict", "References", "Verdict", "judge"]
