"""TorchTPU's own lowering of an exported ATen graph to StableHLO, without a TPU.

The graph is interpreted op by op with placeholders on the device `tpu`: each op goes through PyTorch's dispatcher to
the kernel that TorchTPU registered for it, in the mode in which TorchTPU traces an FX graph for torch.compile. No
client and no device is asked for. A missing op, a refused layout or dtype shows itself as it would on the device.

Everything private to torch_tpu 0.2.0 that this route needs is called in this file, and nowhere else.
"""

from __future__ import annotations

import operator
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.backends.base import BackendError, one_line, traceback_tail
from harness.backends.program import overload_name
from harness.records import Status

if TYPE_CHECKING:
    from harness.backends.program import Program

MATH_ATTENTION = "scaled_dot_product_attention -> its MATH form: XLA:CPU cannot run the fused Pallas kernel"
ASSERTIONS = "assertions about values -> dropped: the exported model met them, and lowering has no values"
RUNNING = "running statistics -> written by ops of their own: TorchTPU's batch norm does not write to them in a trace"
GROUPED_MM = "transformers::grouped_mm_fallback -> aten::_grouped_mm: what transformers calls on a TPU"

_NOT_IMPLEMENTED = re.compile(r"operator '(?P<op>[\w:.]+)' is not implemented for TPU")
_NEEDS_CLIENT = re.compile("failed to retrieve the PjRt client|failed to initialize the PjRt plugin")
_NEEDS_VALUES = "cannot record EventSnapshot during an FX trace"


_SCALAR_ASSERTIONS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)


@dataclass(frozen=True)
class Result:
    """A place in the graph's flat outputs that the lowered module fills: its result of that number."""

    index: int


@dataclass(frozen=True)
class Lowered:
    """A program as TorchTPU lowered it."""

    stablehlo: str
    """The module as text; its `main` takes `arguments` and gives the results that `outputs` refers to."""
    arguments: tuple[torch.Tensor, ...]
    outputs: tuple[Any, ...]
    """The graph's flat outputs: `Result`, or the value itself where the graph returns a constant."""
    executed: Mapping[str, int]
    """ATen overloads that went through TorchTPU's kernels, and how often."""
    substituted: tuple[str, ...]


def load_without_tpu() -> None:
    """Loads torch_tpu and registers the device `tpu` although there is none. Once per process; cannot be undone."""
    from torch_tpu._internal.utils import hardware

    hardware.get_tpu_device_count = lambda: 1  # the loader registers the device only if it counts one
    load_package()


def load_package() -> None:
    """Loads torch_tpu, which registers the device `tpu` if it finds one."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else minutes of waiting for a metadata server
    from torch_tpu import _loader

    _loader.load()


def lower(program: Program) -> Lowered:
    """Lowers a program; `BackendError` with TorchTPU's own message and the op it could not lower."""
    graph_module = for_device(program.graph_module())
    _write_running_statistics(graph_module.graph)
    arguments = [_Argument.of(value) for value in program.values if isinstance(value, torch.Tensor)]
    with _tracing():
        given = iter([argument.on_device() for argument in arguments])
        inputs = [next(given) if isinstance(value, torch.Tensor) else value for value in program.values]
        with Recorder() as recorder:
            try:
                outputs = _interpret(graph_module, inputs, recorder)
            except Exception as error:
                raise classified(error, recorder.failed) from error
        return _built(program, arguments, outputs, recorder.counts)


@dataclass(frozen=True)
class _Argument:
    """An argument of the lowered module. Its memory is dense there; the graph sees it in the tensor's own strides."""

    dense: torch.Tensor
    """The tensor, its dimensions in the order in which they lie in memory."""
    placeholder: torch.Tensor
    """What stands for it on the device."""
    order: tuple[int, ...]
    """Dimension of the tensor -> dimension of `dense`."""

    @classmethod
    def of(cls, value: torch.Tensor) -> _Argument:
        from torch_tpu._internal.compile import tpu_torch_compile

        dense, in_memory = _dense(value)
        placeholder = tpu_torch_compile.placeholder(list(dense.shape), dense.dtype, False)
        return cls(dense, placeholder, tuple(in_memory.index(d) for d in range(value.dim())))

    def on_device(self) -> torch.Tensor:
        """The tensor on the device, in its own strides.

        A clone, as in TorchTPU's own fx_to_mlir: an op that writes to its input must not write to the placeholder.
        """
        return self.placeholder.clone().permute(self.order)


def _dense(value: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """A tensor with its dimensions in the order in which they lie in memory, and that order."""
    strides = value.stride()
    in_memory = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
    dense = value.permute(in_memory)
    if dense.is_contiguous():
        return dense, in_memory
    return value.contiguous(), list(range(value.dim()))  # overlapping or with holes: it would lie contiguous, too


def arguments_of(program: Program) -> tuple[torch.Tensor, ...]:
    """What the lowered module is called with: the program's tensors, dense, in the order of the module's arguments."""
    return tuple(_dense(value)[0] for value in program.values if isinstance(value, torch.Tensor))


def _built(program: Program, arguments: list[_Argument], outputs: Any, counts: Counter[str]) -> Lowered:
    from torch_tpu._internal.compile import tpu_torch_compile

    results: list[torch.Tensor] = []
    slots: list[Any] = []
    for value in pytree.tree_leaves(outputs):
        on_device = _on_device(value)
        slots.append(Result(len(results)) if on_device else value)
        results += [value] if on_device else []
    module = tpu_torch_compile.build_mlir(results, [argument.placeholder for argument in arguments])
    substitutes = {
        "scaled_dot_product": MATH_ATTENTION,
        "grouped_mm_fallback": GROUPED_MM,
        "_assert_scalar": ASSERTIONS,
        "native_batch_norm_backward": RUNNING,
    }
    return Lowered(
        stablehlo=tpu_torch_compile.serialize_mlir_text(module),
        arguments=tuple(argument.dense for argument in arguments),
        outputs=tuple(slots),
        executed=dict(counts),
        substituted=tuple(s for op, s in substitutes.items() if any(op in name for name in program.op_counts)),
    )


def _interpret(graph_module: torch.fx.GraphModule, inputs: Sequence[Any], recorder: Recorder) -> Any:
    from torch_tpu._internal.export.export import EagerLikeFxInterpreter

    return recorder.heard(EagerLikeFxInterpreter)(graph_module).run(*inputs)


@contextmanager
def _tracing() -> Iterator[None]:
    from torch_tpu._internal.execution_mode import execution_mode_impl

    execution_mode_impl._push_eager_mode(execution_mode_impl._EagerMode.INTERNAL_COMPILE_FX_GRAPH)
    try:
        # MATH: TorchTPU's fused attention becomes a Pallas custom call, which only a TPU can execute.
        with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
            yield
    finally:
        execution_mode_impl._pop_eager_mode()


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the overloads that reach TorchTPU's kernels, and knows which one raised."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.failed: torch._ops.OpOverload | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self.failed = func
            raise
        self.counts[overload_name(func)] += 1
        return result

    def heard(self, base: type[torch.fx.Interpreter]) -> type[torch.fx.Interpreter]:
        """The interpreter, which also reports what runs out of the mode's hearing.

        TorchTPU has kernels for whole composite ops (nll_loss_nd, rms_norm, repeat_interleave), which no mode sees.
        """
        recorder = self

        class Heard(base):  # type: ignore[misc, valid-type]
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                before = recorder.counts.total()
                result = super().call_function(target, args, kwargs)
                silent = isinstance(target, torch._ops.OpOverload) and recorder.counts.total() == before
                if silent and any(_on_device(leaf) for leaf in pytree.tree_leaves(result)):
                    recorder.counts[overload_name(target)] += 1
                return result

        return Heard


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def for_device(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Makes the graph, subgraphs included, what it would be if the model had been exported on a TPU."""
    tpu = torch.device("tpu")

    def moved(value: Any) -> Any:
        return tpu if isinstance(value, torch.device) else value

    for owner in graph_module.modules():
        if not isinstance(owner, torch.fx.GraphModule):
            continue
        for node in owner.graph.nodes:
            if node.op == "call_function":
                if str(node.target) == "transformers.grouped_mm_fallback.default":
                    node.target = torch.ops.aten._grouped_mm.default
                node.args = pytree.tree_map(moved, node.args)
                node.kwargs = pytree.tree_map(moved, node.kwargs)
        _drop_scalar_assertions(owner.graph)
        owner.recompile()  # a subgraph is called as code
    return graph_module


def _write_running_statistics(graph: torch.fx.Graph) -> None:
    """Writes the running mean and variance of every batch norm in training by ops of their own, after the norm."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.native_batch_norm.default):
        batch, _, _, mean, variance, training, momentum, _ = node.args
        if not training or mean is None:
            continue
        after = node.next
        with graph.inserting_before(after):
            channels_first = graph.call_function(aten.transpose.int, (batch, 0, 1))
            rows = graph.call_function(aten.flatten.using_ints, (channels_first, 1))
            found = graph.call_function(aten.var_mean.correction, (rows, [1]), {"correction": 1})
            for index, running in enumerate((variance, mean)):
                new = graph.call_function(operator.getitem, (found, index))
                graph.call_function(aten.mul_.Tensor, (running, 1 - momentum))
                graph.call_function(aten.add_.Tensor, (running, new), {"alpha": momentum})


def _drop_scalar_assertions(graph: torch.fx.Graph) -> None:
    """Removes assertions about numbers read from a tensor, and what only they need.

    They held when the model was exported with the same inputs, and would wait for values of the device.
    """
    doomed = [n for n in graph.nodes if n.op == "call_function" and n.target in _SCALAR_ASSERTIONS]
    while doomed:
        node = doomed.pop()
        if node.users or (node.target not in _SCALAR_ASSERTIONS and node.is_impure()):
            continue
        needed = [n for n in node.all_input_nodes if n.op == "call_function"]
        graph.erase_node(node)
        doomed += [n for n in needed if n not in doomed]


def classified(
    error: Exception, failed: torch._ops.OpOverload | None, otherwise: Status = Status.LOWERING_ERROR
) -> BackendError:
    """What an exception of a TorchTPU kernel says: a missing op, a shape that depends on data, or `otherwise`."""
    op = overload_name(failed) if failed is not None else None
    message, detail = one_line(error), traceback_tail(error)
    missing = _NOT_IMPLEMENTED.search(message)
    if missing:
        return BackendError(Status.UNSUPPORTED_OP, message, op=missing["op"], detail=detail)
    if _NEEDS_CLIENT.search(message):
        reason = f"limit of the route, not of TorchTPU: {op} asks for a device while it is lowered"
        return BackendError(Status.SKIPPED, reason, op=op, detail=detail)
    if _NEEDS_VALUES in message:
        # A device would run it: eagerly, or between two graphs of torch.compile.
        reason = f"limit of the route, not of TorchTPU: {op} waits for values of the device while it is lowered"
        return BackendError(Status.SKIPPED, reason, op=op, detail=detail)
    if failed is not None and _depends_on_data(failed):
        return BackendError(Status.DYNAMIC_SHAPE, message, op=op, detail=detail)
    return BackendError(otherwise, message, op=op, detail=detail)


def _depends_on_data(overload: torch._ops.OpOverload) -> bool:
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return any(tag in overload.tags for tag in tags)
