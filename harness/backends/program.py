"""Program: a model exported to an ATen graph, in a form that travels between processes quickly.

`torch.export.save` takes seconds for what a sweep sends a thousand times, so the graph is pickled by PyTorch's own
`GraphPickler` without its metadata, and the tensors beside it. `GraphPickler` and the table of custom ops are private
to torch 2.14.1; both are touched in this file only.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.reference import second_path_settings
from harness.backends.tree import Leaf, Opaque, walk
from harness.backends.workloads.training import Training


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
    op_modules: tuple[str, ...] = ()
    """Modules that define the graph's custom ops; imported before the graph is unpickled."""

    @classmethod
    def capture(cls, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
        """Exports `module(*args, **kwargs)`; whatever torch.export raises passes through.

        The graph is as torch.export gives it, composite and in-place ops kept: closer to what a backend sees in eager
        mode than `run_decompositions`, which would also double the time. torch.export knows no backward, so a training
        step is recorded below autograd, where composite ops are taken apart.
        """
        flat = _FlatOutputs(module)
        if isinstance(module, Training):
            captured = _recorded(flat, args, dict(kwargs))
        else:
            captured = _exported(flat, args, dict(kwargs))
        _drop_detached_outputs(captured.graph)
        return cls(
            graph=_pickled(captured.graph),
            values=tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in captured.values),
            inputs=captured.inputs,
            outputs=captured.outputs,
            returns=flat.seen.returns,
            op_counts=op_counts(captured.graph),
            op_modules=_op_modules(captured.graph),
        )

    def graph_module(self) -> torch.fx.GraphModule:
        """A fresh copy of the graph, without metadata, free to be changed."""
        from torch._subclasses import FakeTensorMode
        from torch.fx._graph_pickler import GraphPickler
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        for name in self.op_modules:
            importlib.import_module(name)
        loaded = GraphPickler.loads(self.graph, FakeTensorMode(shape_env=ShapeEnv()))
        assert isinstance(loaded, torch.fx.GraphModule)
        for owner in loaded.modules():
            if isinstance(owner, torch.fx.GraphModule):
                owner.recompile()  # the pickle holds the graph without its code
        return loaded

    def with_inputs(self, inputs: Sequence[Any] | None) -> Program:
        """The program called with these flat input leaves in place of its own; itself for None."""
        if inputs is None:
            return self
        values = list(self.values)
        for place, value in zip(self.inputs, inputs, strict=True):
            values[place] = value
        return replace(self, values=tuple(values))

    def returned(self, flat: Sequence[Any]) -> tuple[Leaf, ...]:
        """The leaves of the model's output, from the graph's flat outputs: what `walk` gives for the eager output."""
        given = iter([flat[i] for i in self.outputs])
        return tuple(Leaf(leaf.path, next(given)) if leaf.value is OUTPUT else leaf for leaf in self.returns)


@dataclass(frozen=True)
class _Captured:
    """A graph and what it is called with; the fields are those of `Program`."""

    graph: torch.fx.GraphModule
    values: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Captured:
    with torch.no_grad():
        exported = torch.export.export(module, args, kwargs, strict=False)
    signature = exported.graph_signature
    flat_inputs = iter(pytree.tree_leaves((args, kwargs)))
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
    outputs = tuple(i for i, spec in enumerate(signature.output_specs) if spec.kind is OutputKind.USER_OUTPUT)
    return _Captured(exported.graph_module, tuple(values), tuple(inputs), outputs)


def _recorded(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Captured:
    """A forward that differentiates, op by op as it ran. Attention takes its MATH form and oneDNN is off: the fused
    forms for the CPU are ops of the CPU alone.

    Not by `make_fx`, which refuses a forward that reads a value (transformers look whether a mask is full), and takes
    ten times as long.
    """
    recorder = _Recorder()
    flat, structure = pytree.tree_flatten((args, kwargs))
    flat = [recorder.argument(x) for x in flat]
    args, kwargs = pytree.tree_unflatten(flat, structure)
    with torch.no_grad(), second_path_settings(), sdpa_kernel(SDPBackend.MATH), recorder:
        outputs = module(*args, **kwargs)
    recorder.graph.output(tuple(recorder.node_of(x) for x in outputs))
    recorder.graph.eliminate_dead_code()
    graph_module = torch.fx.GraphModule({}, recorder.graph)
    return _Captured(graph_module, tuple(recorder.values), tuple(range(len(flat))), tuple(range(len(outputs))))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every op that is dispatched, below autograd. A tensor from elsewhere becomes an argument."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = torch.fx.Graph()
        self.values: list[Any] = []
        self._body = self.graph.create_node("call_function", torch.ops.aten.empty.memory_format, ([0],))  # dead
        self._nodes: dict[int, tuple[torch.fx.Node, torch.Tensor]] = {}  # with the tensor, so that no id comes twice

    def argument(self, value: Any) -> Any:
        """A further argument of the graph; gives back the value, a tensor as a copy that ops may write to."""
        with self.graph.inserting_before(self._body):
            node = self.graph.placeholder(f"value_{len(self.values)}")
        self.values.append(value)
        if not isinstance(value, torch.Tensor):
            return value
        value = value.clone()
        self._nodes[id(value)] = node, value
        return value

    def node_of(self, value: Any) -> Any:
        """The node that gives a tensor; any other value itself."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            with self.graph.inserting_before(self._body):
                node = self.graph.placeholder(f"value_{len(self.values)}")
            self.values.append(value.detach().clone())
            self._nodes[id(value)] = node, value
        return self._nodes[id(value)][0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, named = pytree.tree_map(self.node_of, (tuple(args), dict(kwargs)))
        result = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:  # autograd's bookkeeping
            self._nodes[id(result)] = given[0], result
            return result
        node = self.graph.call_function(func, given, named)
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = node, result
        elif isinstance(result, list | tuple):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self._nodes[id(item)] = self.graph.call_function(operator.getitem, (node, index)), item
        return result


class Place(enum.Enum):
    """What stands for a value that only a run can give."""

    OUTPUT = "output"


OUTPUT = Place.OUTPUT


class _Seen:
    """What a traced forward leaves behind; not a container, whose changes torch.export would undo."""

    returns: tuple[Leaf, ...] = ()


class _FlatOutputs(torch.nn.Module):
    """A model that returns its output's tensors as a tuple, so that any structure can be exported.

    torch.export refuses outputs that are no pytree, such as a transformers cache or a dataclass; `walk` takes them
    apart and names the leaves as it does for the reference.
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
    """What a program keeps of a leaf: a constant as it is; of an object that cannot travel, the name of its type."""
    if isinstance(value, torch.Tensor):
        return OUTPUT
    return value if isinstance(value, int | float | complex | str | bytes | Opaque) else Opaque(type(value).__name__)


def _drop_detached_outputs(graph_module: torch.fx.GraphModule) -> None:
    """Removes the `detach` that `walk` put before each output: it is no op of the model."""
    (end,) = graph_module.graph.find_nodes(op="output")
    for node in list(end.all_input_nodes):
        if node.target is torch.ops.aten.detach.default and len(node.users) == 1:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)


def op_counts(graph_module: torch.fx.GraphModule) -> dict[str, int]:
    """ATen overloads that a graph calls, subgraphs included: `{"aten::add.Tensor": 3}`."""
    return dict(Counter(overload_name(overload) for overload in _overloads(graph_module)))


def _overloads(graph_module: torch.fx.GraphModule) -> Iterator[torch._ops.OpOverload]:
    for owner in graph_module.modules():
        if isinstance(owner, torch.fx.GraphModule):
            for node in owner.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    yield node.target


def _op_modules(graph_module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Where the graph's ops come from, if not from PyTorch: a custom op's own module, else the package so named."""
    from torch._library.custom_ops import OPDEFS

    found: set[str] = set()
    for overload in _overloads(graph_module):
        name = overload_name(overload)
        definition = OPDEFS.get(name.partition(".")[0])
        if definition is not None:
            found.add(definition._init_fn.__module__)
        elif overload.namespace not in ("aten", "prim", "prims") and importlib.util.find_spec(overload.namespace):
            found.add(overload.namespace)
    return tuple(sorted(found))


def overload_name(overload: torch._ops.OpOverload) -> str:
    """The dispatcher's name of an overload, e.g. `aten::add.Tensor`; the default overload has no suffix.

    >>> overload_name(torch.ops.aten.relu.default)
    'aten::relu'
    """
    name: str = overload.name()  # type: ignore[no-untyped-call]
    return name


def _pickled(graph_module: torch.fx.GraphModule) -> bytes:
    from torch.fx._graph_pickler import GraphPickler, Options

    for owner in graph_module.modules():
        if isinstance(owner, torch.fx.GraphModule):
            for node in owner.graph.nodes:
                node.meta = {}
    return GraphPickler.dumps(graph_module, Options(ops_filter=None))  # no filter: custom ops travel too
