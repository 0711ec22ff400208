"""Program: a model exported to an ATen graph, in a form that travels between processes quickly.

`torch.export.save` takes seconds for what a sweep sends a thousand times, so the graph is pickled by PyTorch's own
`GraphPickler` (private to torch 2.14.1; touched in this file only) without its metadata, and the tensors beside it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from harness.backends.tree import Leaf, walk


@dataclass(frozen=True)
class Program:
    """An exported model. The graph takes `values` in order and gives a flat list of outputs."""

    graph: bytes
    """The pickled graph; see `graph_module`."""
    values: tuple[Any, ...]
    """What the graph is called with: parameters, buffers, constants and the flat inputs, in placeholder order."""
    inputs: tuple[int, ...]
    """Which of `values` are inputs of the model, as indices."""
    outputs: tuple[int, ...]
    """Which of the graph's outputs the model returned, as indices; the others are mutated buffers."""
    returns: tuple[Leaf, ...]
    """The leaves that the model returned, as `walk` names them; a tensor's place holds `OUTPUT`."""
    op_counts: Mapping[str, int]
    """ATen overloads in the graph, and how often each is called."""

    @classmethod
    def capture(cls, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
        """Exports `module(*args, **kwargs)`; whatever torch.export raises passes through.

        The graph is as torch.export gives it, composite and in-place ops kept: closer to what a backend sees in eager
        mode than `run_decompositions`, which would also double the time.
        """
        flat = _FlatOutputs(module)
        with torch.no_grad():
            exported = torch.export.export(flat, args, dict(kwargs), strict=False)
        signature = exported.graph_signature
        flat_inputs = iter(pytree.tree_leaves((args, dict(kwargs))))
        values: list[Any] = []
        inputs: list[int] = []
        for index, spec in enumerate(signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(index)
                values.append(next(flat_inputs))
            elif spec.target in exported.state_dict:
                values.append(exported.state_dict[spec.target])
            else:
                values.append(exported.constants[str(spec.target)])
        _drop_detached_outputs(exported.graph_module)
        return cls(
            graph=_pickled(exported.graph_module),
            values=tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in values),
            inputs=tuple(inputs),
            outputs=tuple(i for i, spec in enumerate(signature.output_specs) if spec.kind is OutputKind.USER_OUTPUT),
            returns=flat.seen.returns,
            op_counts=op_counts(exported.graph_module),
        )

    def graph_module(self) -> torch.fx.GraphModule:
        """A fresh copy of the graph, without metadata, free to be changed."""
        from torch._subclasses import FakeTensorMode
        from torch.fx._graph_pickler import GraphPickler
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        loaded = GraphPickler.loads(self.graph, FakeTensorMode(shape_env=ShapeEnv()))
        assert isinstance(loaded, torch.fx.GraphModule)
        return loaded

    def returned(self, flat: Sequence[Any]) -> tuple[Leaf, ...]:
        """The leaves of the model's output, from the graph's flat outputs: what `walk` gives for the eager output."""
        given = iter([flat[i] for i in self.outputs])
        return tuple(Leaf(leaf.path, next(given)) if leaf.value is OUTPUT else leaf for leaf in self.returns)


class Place(enum.Enum):
    """What stands for a value that only a run can give."""

    OUTPUT = "output"


OUTPUT = Place.OUTPUT


class _Seen:
    """What a traced forward leaves behind; not a container, whose changes torch.export would undo."""

    returns: tuple[Leaf, ...] = ()


class _FlatOutputs(torch.nn.Module):
    """A model that returns its output's tensors as a tuple, so that any structure can be exported.

    torch.export refuses outputs that are no pytree, such as a transformers cache or a dataclass; `walk` takes them apart
    and names the leaves as it does for the reference.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.seen = _Seen()

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        leaves = walk(self.module(*args, **kwargs))
        self.seen.returns = tuple(Leaf(leaf.path, _kept(leaf.value)) for leaf in leaves)
        return tuple(leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor))


def _kept(value: Any) -> Any:
    """What a program keeps of an output's leaf: a constant as it is, of an object that cannot travel its type's name."""
    if isinstance(value, torch.Tensor):
        return OUTPUT
    return value if isinstance(value, bool | int | float | complex | str) else type(value).__name__


def _drop_detached_outputs(graph_module: torch.fx.GraphModule) -> None:
    """Removes the `detach` that `walk` put before each output: it is no op of the model."""
    (end,) = graph_module.graph.find_nodes(op="output")
    for node in list(end.all_input_nodes):
        if node.target is torch.ops.aten.detach.default and len(node.users) == 1:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)


def op_counts(graph_module: torch.fx.GraphModule) -> dict[str, int]:
    """ATen overloads that a graph calls, subgraphs included: `{"aten::add.Tensor": 3}`."""
    counts: Counter[str] = Counter()
    for owner in graph_module.modules():
        if isinstance(owner, torch.fx.GraphModule):
            for node in owner.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                    counts[overload_name(node.target)] += 1
    return dict(counts)


def overload_name(overload: torch._ops.OpOverload) -> str:
    """The dispatcher's name of an overload, e.g. `aten::add.Tensor`; the default overload has no suffix.

    >>> overload_name(torch.ops.aten.relu.default)
    'aten::relu'
    """
    return overload.name()


def _pickled(graph_module: torch.fx.GraphModule) -> bytes:
    from torch.fx._graph_pickler import GraphPickler, Options

    for owner in graph_module.modules():
        if isinstance(owner, torch.fx.GraphModule):
            for node in owner.graph.nodes:
                node.meta = {}
    return GraphPickler.dumps(graph_module, Options(ops_filter=None))  # no filter: custom ops travel too
