"""An op of the table as a module."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from model_zoo.sources.op.draws import Draw, tree_drawn
from model_zoo.sources.op.table import Op


def call_of(op: Op, change: str | None, generator: torch.Generator) -> tuple[OpCall, dict[str, Any]]:
    """The module, and the inputs that are not its own; everything drawn from `generator`."""
    values = {name: tree_drawn(draw, generator) for name, draw in op.inputs.items()}
    held = {name: values.pop(name) for name, draw in op.inputs.items() if isinstance(draw, Draw) and draw.is_held}
    changed = None if change is None else {change: tree_drawn(op.changes[change], generator)}
    return OpCall(op.function, held, dict(op.call), changed), values


class OpCall(torch.nn.Module):
    """Calls a function with its inputs, what is held, and plain arguments; with `changed`, once more with that."""

    def __init__(
        self, function: str, held: dict[str, torch.Tensor], call: dict[str, Any], changed: dict[str, Any] | None
    ) -> None:
        super().__init__()
        self.function, self.call, self.changed = function, call, changed
        self.held = tuple(held)
        self.changed_tensor = ""
        for name, tensor in held.items():
            self.register_buffer(f"held_{name}", tensor)
        for name, value in (changed or {}).items():
            if isinstance(value, torch.Tensor):
                self.register_buffer("changed_to", value)
                self.changed, self.changed_tensor = {}, name

    def forward(self, **inputs: Any) -> Any:
        """The op's output, or `{"default": ..., "changed": ...}`."""
        function: Any = reduce(getattr, self.function.split("."), torch)
        held = {name: getattr(self, f"held_{name}") for name in self.held}
        arguments = {**inputs, **held, **self.call}
        if self.changed is None:
            return function(**arguments)
        changed = {self.changed_tensor: self.changed_to} if self.changed_tensor else self.changed
        return {"default": function(**arguments), "changed": function(**{**arguments, **changed})}
