"""What became of planted faults, and what a judge is worth by that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.records import Status

CAUGHT, RIGHT = 0.99, 0.97
"""Least share of the visible faults that must be caught, and caught under a status that names them."""
UNDER_FLOOR = 0.1
"""Greatest share of the faults that may be under the floor, which a budget too wide would raise."""
FAULTS, OPS, ARCHITECTURES = 150, 40, 20
"""Least numbers of visible faults, of overloads and of architectures that a full selftest plants them in."""


@dataclass(frozen=True)
class Planted:
    """A fault, or a run without one, and what the judge said."""

    recipe: str
    kind: str
    """One of `Kind`; `none` for a run as it should be."""
    model: str
    dtype: str
    family: str
    ops: tuple[str, ...]
    """Overloads that had the fault; empty if the device as a whole had it."""
    status: Status
    right: bool
    """Whether the status names the fault."""
    movement: float | None
    """How far the outputs moved from those without the fault, in units of the floor; None where that has no number."""
    message: str

    @property
    def is_caught(self) -> bool:
        """Whether the row would have been anything but a pass."""
        return self.status is not Status.PASS

    @property
    def is_under_floor(self) -> bool:
        """Whether it passed and moved the outputs by no more than the floor."""
        return not self.is_caught and self.movement is not None and self.movement <= 1


@dataclass(frozen=True)
class Score:
    """All faults that were planted, and the runs without one."""

    planted: tuple[Planted, ...]
    honest: tuple[Planted, ...]
    quick: bool = False
    """Whether it was a sample, of which no numbers of ops and architectures are asked."""

    @property
    def visible(self) -> tuple[Planted, ...]:
        """The faults that a judge can see."""
        return tuple(p for p in self.planted if not p.is_under_floor)

    @property
    def survivors(self) -> tuple[Planted, ...]:
        """Visible faults that passed."""
        return tuple(p for p in self.visible if not p.is_caught)

    @property
    def misnamed(self) -> tuple[Planted, ...]:
        """Faults that were caught under a status that does not name them."""
        return tuple(p for p in self.visible if p.is_caught and not p.right)

    @property
    def false_alarms(self) -> tuple[Planted, ...]:
        """Runs without a fault that did not pass."""
        return tuple(p for p in self.honest if not p.status.is_pass)

    @property
    def caught_share(self) -> float:
        """Share of the visible faults that were caught."""
        return 1 - len(self.survivors) / max(1, len(self.visible))

    @property
    def right_share(self) -> float:
        """Share of the visible faults whose status names them."""
        return sum(p.right for p in self.visible) / max(1, len(self.visible))

    @property
    def ops(self) -> frozenset[str]:
        """Overloads that a visible fault was planted in."""
        return frozenset(op for p in self.visible for op in p.ops)

    @property
    def architectures(self) -> frozenset[str]:
        """Families of real models that a visible fault was planted in."""
        return frozenset(p.family for p in self.visible if not p.model.startswith("python:"))

    @property
    def under_floor(self) -> tuple[Planted, ...]:
        """Faults that no judge of these outputs can see."""
        return tuple(p for p in self.planted if p.is_under_floor)

    @property
    def least_caught(self) -> float | None:
        """The least movement that was caught, in units of the floor; None if none has a number."""
        return min((p.movement for p in self.planted if p.is_caught and p.movement), default=None)

    @property
    def ok(self) -> bool:
        """Whether enough was planted and caught, under the right status, without a false alarm."""
        enough = self.quick or (
            len(self.visible) >= FAULTS and len(self.ops) >= OPS and len(self.architectures) >= ARCHITECTURES
        )
        enough = enough and len(self.under_floor) <= UNDER_FLOOR * len(self.planted)
        return enough and self.caught_share >= CAUGHT and self.right_share >= RIGHT and not self.false_alarms

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "ok": self.ok,
            "planted": len(self.planted),
            "visible": len(self.visible),
            "under_floor": len(self.under_floor),
            "least_caught_in_floors": self.least_caught,
            "caught": self.caught_share,
            "right_status": self.right_share,
            "ops": sorted(self.ops),
            "architectures": sorted(self.architectures),
            "false_alarms": [asdict(p) for p in self.false_alarms],
            "survivors": [asdict(p) for p in self.survivors],
            "misnamed": [asdict(p) for p in self.misnamed],
            "faults": [asdict(p) for p in self.planted],
            "honest": [asdict(p) for p in self.honest],
        }
