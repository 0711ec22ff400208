"""Comparison pairs, error budget, verdict: how far a device's outputs are from fp64, and what that means."""

from harness.numerics.pairs import LeafVerdict
from harness.numerics.verdict import Raised, References, Suspect, Verdict, judge

__all__ = ["LeafVerdict", "Raised", "References", "Suspect", "Verdict", "judge"]
