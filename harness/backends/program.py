"""Program: a model exported to an ATen graph, in a form that travels between processes quickly.

`torch.export.save` takes seconds for what a sweep sends a thousand times, so the graph is pickled by PyTorch's own
`GraphPickler` (private to torch 2.14.1; touched in this file only) without its metadata, and the tensors beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree


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
    output_spec: pytree.TreeSpec
    """How those outputs are put together again."""
    op_counts: Mapping[str, int]
    """ATen overloads in the graph, and how often each is called."""

    @classmethod
    def capture(cls, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
        """Exports `module(*args, **kwargs)`; whatever torch.export raises passes through."""
        with torch.no_grad():
            exported = torch.export.export(module, args, dict(kwargs), strict=False).run_decompositions({})
        return cls.from_exported(exported, args, kwargs)

    @classmethod
    def from_exported(
        cls, exported: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Program:
        """Takes an exported program apart; `args` and `kwargs` are what it is to be called with."""
        flat_inputs = iter(pytree.tree_leaves((args, dict(kwargs))))
        signature = exported.graph_signature
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
        outputs = [i for i, spec in enumerate(signature.output_specs) if spec.kind is OutputKind.USER_OUTPUT]
        return cls(
            graph=_pickled(exported.graph_module),
            values=tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in values),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            output_spec=exported.call_spec.out_spec,
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

    def returned(self, flat: Sequence[Any]) -> Any:
        """Puts the graph's flat outputs together as the model returned them."""
        return pytree.tree_unflatten([flat[i] for i in self.outputs], self.output_spec)


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
    from torch.fx._graph_pickler import GraphPickler

    for owner in graph_module.modules():
        if isinstance(owner, torch.fx.GraphModule):
            for node in owner.graph.nodes:
                node.meta = {}
    return GraphPickler.dumps(graph_module)
