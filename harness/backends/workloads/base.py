"""What every workload is made of: a module around the model, and the exception that says that a model has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class WorkloadUnfit(Exception):
    """The model cannot do that workload; the message is one line that says why."""


class Workload(nn.Module):
    """A module whose forward is more than one call of `model`. It leaves `model` as it was."""

    dynamic: bool | None = False
    """Whether one shape of the inner model is compiled (False), or a second one when shapes change (None)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._compiled: list[Any] = []  # in a list, so that it is no submodule

    def compile_inner(self, compile_: Callable[[nn.Module], Any]) -> None:
        """Has forward call `compile_(model)` from now on: what a user compiles is the model, not the loop around it."""
        self._compiled[:] = [compile_(self.model)]

    @property
    def callee(self) -> Any:
        """What forward calls: the model, or what it was compiled to."""
        return self._compiled[0] if self._compiled else self.model
