"""The OpenVINO backend: a converted model, or `torch.compile(backend="openvino")`, on the CPU.

Mode `convert` is what `openvino.convert_model(module, example_input=...)` does, by a TorchScript trace; `export`
converts the exported program instead; both refuse a model with an op that they do not know. `compile` never refuses:
what OpenVINO cannot take runs in eager PyTorch, unsaid. It is read from the compiled graphs and listed as fallback.

Uses the decoder and the torch.compile backend of openvino 2026.4.1, which are private in part; touched here only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import torch

from harness.backends.base import (
    Availability,
    Backend,
    BackendError,
    Needs,
    Observation,
    Work,
    is_out_of_memory,
    one_line,
    text_of,
    traceback_tail,
)
from harness.backends.copies import cast, copied_inputs, private_copy, with_inputs
from harness.backends.double import FORWARD_SEED
from harness.backends.flat import FlatModel, refuse_draws, tensors_of
from harness.backends.inductor import named_op
from harness.backends.program import op_counts
from harness.backends.tree import walk
from harness.records import Stage, Status
from model_zoo.spec import BuiltModel

_NO_RULE = re.compile(r"No conversion rule found for operations?: (.+)")
_FAILED = re.compile(r"^-- (\S+) with a message:\s*\n(.*)$", re.MULTILINE)
_DYNAMIC = ("to_shape was called on a dynamic shape", "get_shape was called on a descriptor", "dynamic rank")


@dataclass(frozen=True)
class _Converted:
    flat: FlatModel
    model: Any
    """An `openvino.Model`, after compilation an `openvino.CompiledModel`."""
    ops: Counter[str]
    """ATen overloads in the graph that was converted, every one of them."""


@dataclass(frozen=True)
class _Compiled:
    built: BuiltModel
    call: Callable[..., Any]


class OpenVINO(Backend):
    """See the module's docstring."""

    name: ClassVar[str] = "openvino"
    modes: ClassVar[tuple[str, ...]] = ("convert", "export", "compile")
    needs: ClassVar[Needs] = Needs.MODULE
    restart_after_error: ClassVar[bool] = False

    def availability_impl(self, mode: str | None) -> Availability:
        """Needs the package."""
        try:
            found = version("openvino")
        except PackageNotFoundError:
            return Availability(False, "openvino is not installed", "pip install 'calipers[openvino]'")
        how = {
            "export": "converted from the exported program",
            "compile": "torch.compile(backend='openvino')",
        }.get(mode or "", "converted from a trace of the module")
        return Availability(True, f"{how}, OpenVINO's CPU plugin, fp32 kept", versions={"openvino": found})

    def activate_impl(self) -> None:
        """Loads OpenVINO. Precision is set: left alone, the CPU plugin computes in bf16 where the processor can."""
        import openvino

        torch.set_num_threads(self.threads)
        self._config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1}
        self._core = openvino.Core()
        if self.mode == "compile":
            from openvino.frontend.pytorch.torchdynamo import backend

            backend.compile_fx = _no_inductor

    def lower_impl(self, work: Work) -> BuiltModel | _Converted:
        """Builds the module in the row's dtype and converts it; for mode `compile` there is nothing to convert."""
        built = work.build()
        dtype = getattr(torch, work.key.dtype)
        built = private_copy(built) if dtype is torch.float32 else cast(built, dtype)
        if self.mode == "compile":
            return built
        flat = FlatModel(built).eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(FORWARD_SEED)
            return _traced(flat) if self.mode == "convert" else _exported(flat)

    def compile_impl(self, lowered: object) -> _Converted | _Compiled:
        """Compiles for the CPU; in mode `compile` by a first call, on a copy of the inputs."""
        if isinstance(lowered, _Converted):
            model = self._core.compile_model(lowered.model, "CPU", self._config)
            return _Converted(lowered.flat, model, lowered.ops)
        assert isinstance(lowered, BuiltModel)
        from openvino.frontend.pytorch.torchdynamo import execute

        torch._dynamo.reset()
        execute.clear_caches()
        execute.req_cache.clear()
        options: dict[str, Any] = {"config": self._config}
        call = torch.compile(lowered.module, backend="openvino", dynamic=False, options=options)
        _call(call, private_copy(lowered))
        refuse_draws(_partitions()[0], "OpenVINO")
        return _Compiled(lowered, call)

    def run_impl(self, compiled: _Converted | _Compiled, inputs: Sequence[Any] | None = None) -> Observation:
        """Infers once; in mode `compile` makes a further call and then reads which parts ran where."""
        if isinstance(compiled, _Compiled):
            leaves = walk(_call(compiled.call, with_inputs(compiled.built, inputs)))
            # OpenVINO's results are views of a request's memory, which the next call overwrites.
            leaves = tuple(
                type(leaf)(leaf.path, leaf.value.clone() if isinstance(leaf.value, torch.Tensor) else leaf.value)
                for leaf in leaves
            )
            executed, fallback = _partitions()
            return Observation(leaves, dict(executed), fallback=tuple(sorted(fallback)))
        tensors = compiled.flat.tensors if inputs is None else tensors_of(inputs)
        request = compiled.model.create_infer_request()
        request.infer([_to_openvino(tensor) for tensor in tensors])
        outputs = [_to_torch(request.get_output_tensor(i)) for i in range(len(compiled.model.outputs))]
        return Observation(compiled.flat.returned(outputs), dict(compiled.ops))

    def classify_impl(self, stage: Stage, error: BaseException) -> BackendError:
        """Tells an op without a rule from one whose rule failed, and a shape that must be known from either."""
        text, detail = text_of(error), traceback_tail(error)
        missing = [op.strip() for found in _NO_RULE.findall(text) for op in found.split(",")]
        missing = [named_op(op) or op for op in missing if op]
        if missing:
            message = f"OpenVINO has no conversion rule for {', '.join(missing)}"
            return BackendError(Status.UNSUPPORTED_OP, message, op=missing[0], detail=text[:3000])
        if any(sign in text for sign in _DYNAMIC):
            return BackendError(Status.DYNAMIC_SHAPE, one_line(error), op=named_op(text), detail=detail)
        failed = next(((op, why) for op, why in _FAILED.findall(text) if named_op(op)), None)
        if failed:
            message = f"conversion of {named_op(failed[0])} failed: {_reason(text)}"
            return BackendError(Status.LOWERING_ERROR, message, op=named_op(failed[0]), detail=text[:3000])
        plain = super().classify_impl(stage, error)
        if type(error).__module__.startswith("openvino") or "Exception from src/" in text:
            return BackendError(
                plain.status, f"{type(error).__name__}: {_reason(text)}", op=named_op(text), detail=detail
            )
        return plain


def _traced(flat: FlatModel) -> _Converted:
    """As `openvino.convert_model(module, example_input=...)`, which keeps its decoder, and so the graph, to itself."""
    import openvino
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    tensors = flat.tensors
    if not tensors:
        raise BackendError(Status.SKIPPED, "limit of the route: a model without an input tensor cannot be traced")
    try:
        decoder = TorchScriptPythonDecoder(flat, example_input=tensors, trace_kwargs={"check_trace": False})
    except Exception as error:
        if is_out_of_memory(error):
            raise
        inner = error.__cause__ or error
        message = f"limit of the route: torch.jit.trace cannot trace the model ({one_line(inner)})"
        raise BackendError(Status.SKIPPED, message, detail=traceback_tail(inner)) from error
    ops = _model_ops(Counter(_torchscript_ops(decoder.graph_element)), flat)
    return _Converted(flat, openvino.convert_model(decoder, example_input=tensors), ops)


def _torchscript_ops(block: Any) -> list[str]:
    """Overloads that a TorchScript graph calls, blocks included. `prim` ones pass lists and constants about."""
    found = []
    for node in block.nodes():
        if not node.kind().startswith("prim::"):
            found.append(node.schema().partition("(")[0])
        for inner in node.blocks():
            found += _torchscript_ops(inner)
    return found


def _exported(flat: FlatModel) -> _Converted:
    import openvino

    try:
        exported = torch.export.export(flat, flat.tensors, strict=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        message = f"limit of the route: torch.export cannot export the model ({one_line(error)})"
        raise BackendError(Status.SKIPPED, message, detail=traceback_tail(error)) from error
    ops = _model_ops(Counter(op_counts(exported.graph_module)), flat)
    return _Converted(flat, openvino.convert_model(exported), ops)


def _model_ops(ops: Counter[str], flat: FlatModel) -> Counter[str]:
    ops["aten::detach"] -= flat.detached
    refuse_draws(ops, "OpenVINO")
    return +ops


def _call(call: Callable[..., Any], built: BuiltModel) -> Any:
    args, kwargs = copied_inputs(built)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(FORWARD_SEED)
        return call(*args, **kwargs)


def _no_inductor(*_: Any, **__: Any) -> Any:
    """Stands where OpenVINO's torch.compile backend would hand a graph that it failed on to Inductor, unsaid."""
    import sys

    error = sys.exception()
    assert error is not None
    raise error


def _partitions() -> tuple[Counter[str], Counter[str]]:
    """Overloads in the parts that OpenVINO ran, and in those that stayed with, or went back to, eager PyTorch."""
    from openvino.frontend.pytorch.torchdynamo import execute

    executed: Counter[str] = Counter()
    fallback: Counter[str] = Counter()
    for graph in execute.partitioned_modules.values():
        for part in graph.children():
            if isinstance(part, execute.OpenVINOGraphModule):
                (fallback if part.perm_fallback else executed).update(op_counts(part.gm))
        for node in graph.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                fallback[node.target.name()] += 1  # type: ignore[no-untyped-call]
    return executed, fallback


def _to_openvino(tensor: torch.Tensor) -> Any:
    import openvino

    if tensor.dtype is torch.bfloat16:  # numpy has none
        return openvino.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy())


def _to_torch(tensor: Any) -> torch.Tensor:
    import openvino

    value = torch.from_numpy(tensor.data.copy())
    return value.view(torch.bfloat16) if tensor.element_type == openvino.Type.bf16 else value


def _reason(text: str) -> str:
    """The line of an OpenVINO message that says why, not where: what stands last before the summary."""
    lines = [line.strip() for line in text.partition("\nSummary:")[0].splitlines() if line.strip()]
    return lines[-1][:240] if lines else ""
