"""The backend `faulty`: one mode per recipe, and `none`, which has no fault and must pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils._mode_utils import no_dispatch  # private; torch 2.14.1

from harness.backends.base import Availability, Backend, Needs, Observation, Work
from harness.backends.copies import cast, with_inputs
from harness.backends.reference import run_second_path
from harness.faulty.recipe import FaultyDevice, Memory
from harness.faulty.recipes import RECIPES
from model_zoo.spec import BuiltModel

NONE = "none"
"""The mode without a fault."""


class Faulty(Backend):
    """The reference's second path with one fault planted: honest rounding of its own, and the fault."""

    name: ClassVar[str] = "faulty"
    modes: ClassVar[tuple[str, ...]] = (NONE, *RECIPES)
    needs: ClassVar[Needs] = Needs.MODULE
    off_cpu: ClassVar[bool] = True

    def availability_impl(self, mode: str | None) -> Availability:
        """Always."""
        return Availability(True, "PyTorch on the CPU with a fault planted on purpose, for calipers selftest")

    def activate_impl(self) -> None:
        """Sets the thread count and forgets what earlier runs left."""
        torch.set_num_threads(self.threads)
        self._recipe = RECIPES.get(self.mode)
        self._memory = Memory()
        self.hit: Mapping[str, int] = {}
        """Overloads that the recipe changed in the last run, and how often."""

    def lower_impl(self, work: Work) -> BuiltModel:
        """Builds the module, in the row's dtype."""
        built = work.build()
        dtype = getattr(torch, work.key.dtype)
        return built if dtype is torch.float32 else cast(built, dtype)

    def run_impl(self, compiled: BuiltModel, inputs: Sequence[Any] | None = None) -> Observation:
        """Runs the model on the faulty device."""
        device = FaultyDevice(self._recipe, self._memory)
        self.hit = device.hit
        leaves = run_second_path(with_inputs(compiled, inputs), device)
        seen = Observation(leaves, dict(device.counts))
        if self._recipe is None or self._recipe.after is None:
            return seen
        with no_dispatch():
            return self._recipe.after(seen, self._memory)
