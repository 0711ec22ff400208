"""Comparison pairs, error budget, verdict: how far a device's outputs are from fp64, and what that means."""

from harness.backends.tree import aliases
from harness.numerics.gates import Gate, gate
from harness.numerics.inputs import collapse, unmoved
from harness.numerics.pairs import LeafVerdict
from harness.numerics.verdict import Raised, References, Suspect, Verdict, judge

__all__ = [
    "Gate",
    "LeafVerdict",
    "Raised",
    "References",
    "Suspect",
    "Verdict",
    "aliases",
    "collapse",
    "gate",
    "judge",
    "unmoved",
]
