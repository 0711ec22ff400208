"""Models with flat ends, tensors in and a tuple of tensors out: the form that converters to another runtime take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from harness.backends.base import BackendError
from harness.backends.double import DRAWS
from harness.backends.program import Program
from harness.backends.tree import Leaf, walk
from harness.records import Status
from model_zoo.spec import BuiltModel


class _Seen:
    """What a traced forward leaves behind; not a container, whose changes torch.export would undo."""

    returns: tuple[Leaf, ...] = ()


class FlatModel(torch.nn.Module):
    """A built model that takes the tensors among its input leaves; what is no tensor keeps its value."""

    def __init__(self, built: BuiltModel) -> None:
        super().__init__()
        self.module = built.module
        self._leaves, self._structure = pytree.tree_flatten((built.args, built.kwargs))
        self._seen = _Seen()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Copies of the inputs, to call it with: forward may write to them."""
        return tensors_of(self._leaves)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors that the model returns, in the order of `walk`."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        returned = walk(self.module(*args, **kwargs))
        self._seen.returns = returned
        return tuple(leaf.value for leaf in returned if isinstance(leaf.value, torch.Tensor))

    @property
    def detached(self) -> int:
        """How many `detach` calls in the trace are `walk`'s and no op of the model: one per tensor returned."""
        return sum(isinstance(leaf.value, torch.Tensor) for leaf in self._seen.returns)

    def returned(self, tensors: Sequence[torch.Tensor]) -> tuple[Leaf, ...]:
        """The leaves of the output tree, from another run's tensors; forward has been traced before."""
        given = iter(tensors)
        return tuple(
            Leaf(leaf.path, next(given)) if isinstance(leaf.value, torch.Tensor) else leaf
            for leaf in self._seen.returns
        )


class FlatProgram(torch.nn.Module):
    """A program that takes the tensors among its inputs and holds all other values, and gives all its outputs."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.graph = program.graph_module()
        self._values: list[Any] = list(program.values)
        self._places = [i for i in program.inputs if isinstance(program.values[i], torch.Tensor)]
        self._wanted = program.outputs
        self._outputs = len(self.graph.graph.output_node().args[0])  # type: ignore[arg-type]
        for index, value in enumerate(self._values):
            if isinstance(value, torch.Tensor) and index not in self._places:
                self.register_buffer(f"value_{index}", value)
                self._values[index] = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs that the model returned."""
        values = list(self._values)
        for index, value in enumerate(values):
            if value is None:
                values[index] = getattr(self, f"value_{index}", None)
        for index, tensor in zip(self._places, tensors, strict=True):
            values[index] = tensor
        flat = self.graph(*values)
        return tuple(flat[i] for i in self._wanted)

    def spread(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The model's outputs at their places among the graph's, for `Program.returned`."""
        flat: list[Any] = [None] * self._outputs
        for index, tensor in zip(self._wanted, tensors, strict=True):
            flat[index] = tensor
        return flat


def tensors_of(leaves: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """Detached, contiguous copies of the tensors among input leaves."""
    return tuple(
        leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves if isinstance(leaf, torch.Tensor)
    )


def refuse_draws(ops: Iterable[str], runtime: str) -> None:
    """Raises `skipped` if an op draws random numbers: another runtime's generator cannot be seeded to give the same."""
    drawing = sorted(set(_drawing(ops)))
    if drawing:
        message = f"limit of the route: {', '.join(drawing)} draws numbers, and {runtime} draws others than PyTorch"
        raise BackendError(Status.SKIPPED, message, op=drawing[0])


def _drawing(ops: Iterable[str]) -> Iterator[str]:
    for op in ops:
        if op.partition("::")[2].partition(".")[0].rstrip("_") in DRAWS:
            yield op
