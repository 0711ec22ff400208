"""The ONNX Runtime backend: the program exported by `torch.onnx.export(dynamo=True)`, run by the CPU provider.

Whether ATen has an ONNX form is the exporter's matter, whether that form runs the runtime's; a row's stage tells them
apart: `lower` is the exporter, `compile` and `run` are the runtime. Uses error types and node metadata that are private
to torch 2.14.1's exporter; touched here only.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import torch

from harness.backends.base import Availability, Backend, BackendError, Observation, Work, text_of, traceback_tail
from harness.backends.flat import FlatProgram, refuse_draws, tensors_of
from harness.backends.inductor import named_op
from harness.backends.program import Program
from harness.records import Stage, Status

_FX_NODE = "pkg.torch.onnx.fx_node"
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")
_NODE = re.compile(r"[Nn]ode(?: with name '|:? ?\(|\. Name:'| name: |:)\s*'?([\w./]+)")
_BFLOAT16 = 16
"""The number of that type in ONNX."""


@dataclass(frozen=True)
class _Exported:
    program: Program
    flat: FlatProgram
    model: Any
    """An `onnx.ModelProto`, after compilation an `onnxruntime.InferenceSession`."""
    origin: dict[str, str]
    """Which ATen overload each ONNX node came from, by the node's name."""
    executed: Counter[str]
    """ATen overloads that have a node in the graph, and how many calls of them."""


class OnnxRuntime(Backend):
    """See the module's docstring."""

    name: ClassVar[str] = "onnxruntime"
    modes: ClassVar[tuple[str, ...]] = ("export",)
    restart_after_error: ClassVar[bool] = False

    _origin: dict[str, str]
    """Of the model at hand: what an ONNX node named by the runtime was made from."""

    def availability_impl(self, mode: str | None) -> Availability:
        """Needs the runtime, and onnxscript for the exporter."""
        versions, missing = {}, []
        for package in ("onnxruntime", "onnxscript", "onnx"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                missing.append(package)
        if missing:
            return Availability(False, f"not installed: {', '.join(missing)}", "pip install 'calipers[onnx]'", versions)
        return Availability(True, "torch.onnx.export(dynamo=True), ONNX Runtime's CPU provider", versions=versions)

    def activate_impl(self) -> None:
        """Loads the runtime."""
        import onnxruntime

        torch.set_num_threads(self.threads)
        onnxruntime.set_default_logger_severity(3)  # errors; a warning per unused initializer is no help
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        self._origin = {}

    def lower_impl(self, work: Work) -> _Exported:
        """Exports to ONNX, as a user's `torch.onnx.export(module, args, dynamo=True)` does from the same graph."""
        assert work.program is not None  # Backend.lower has checked
        self._origin = {}
        refuse_draws(work.program.op_counts, "ONNX Runtime")
        flat = FlatProgram(work.program).eval()
        inputs = tensors_of(work.program.values[i] for i in work.program.inputs)
        with torch.no_grad():
            exported = torch.export.export(flat, inputs, strict=False)
            onnx = torch.onnx.export(exported, (), dynamo=True, verbose=False)
        assert onnx is not None
        model = onnx.model_proto
        origin, executed = _provenance(model)
        self._origin = origin
        return _Exported(work.program, flat, model, origin, executed)

    def compile_impl(self, lowered: object) -> _Exported:
        """Makes a session; the runtime optimises the graph as it does for everybody."""
        import onnxruntime

        assert isinstance(lowered, _Exported)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            lowered.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return _Exported(lowered.program, lowered.flat, session, lowered.origin, lowered.executed)

    def run_impl(self, compiled: _Exported, inputs: Sequence[Any] | None = None) -> Observation:
        """Runs once."""
        program, session = compiled.program.with_inputs(inputs), compiled.model
        self._origin = compiled.origin
        tensors = tensors_of(program.values[i] for i in program.inputs)
        names = [put.name for put in session.get_inputs()]
        if len(names) != len(tensors):
            raise BackendError(Status.CONTRACT, f"the ONNX model takes {len(names)} inputs, the program {len(tensors)}")
        feed = {name: _to_ort(tensor) for name, tensor in zip(names, tensors, strict=True)}
        given = session.run_with_ort_values([put.name for put in session.get_outputs()], feed)
        outputs = [_to_torch(value) for value in given]
        return Observation(program.returned(compiled.flat.spread(outputs)), dict(compiled.executed))

    def classify_impl(self, stage: Stage, error: BaseException) -> BackendError:
        """Names the ATen op: of the node that the exporter could not translate, or that the runtime refused."""
        chain = list(_chain(error))
        text = "\n".join(text_of(e) for e in chain)
        detail = traceback_tail(chain[-1])
        target = _TARGET.search(text)
        op = named_op(target.group(1)) if target else None
        if any(type(e).__name__ == "DispatchError" for e in chain):
            message = f"the ONNX exporter has no translation of {op or 'an op'}: {_line(chain[-1])}"
            return BackendError(Status.UNSUPPORTED_OP, message, op=op, detail=detail)
        kinds = {type(e).__name__ for e in chain}
        if any(name.startswith(("GuardOnDataDependent", "DataDependent", "Unbacked")) for name in kinds):
            return BackendError(Status.DYNAMIC_SHAPE, _line(chain[-1]), op=op, detail=detail)
        if stage is Stage.LOWER:
            said = f"the ONNX exporter failed{f' at {op}' if op else ''}: {_line(chain[-1])}"
            return BackendError(Status.LOWERING_ERROR, said, op=op, detail=detail)
        op = next((self._origin[name] for name in _NODE.findall(text) if name in self._origin), None)
        unsupported = type(error).__name__ == "NotImplemented"
        plain = super().classify_impl(stage, error)
        status = Status.UNSUPPORTED_OP if unsupported else plain.status
        return BackendError(status, f"ONNX Runtime: {plain.message}", op=op, detail=detail)


def _provenance(model: Any) -> tuple[dict[str, str], Counter[str]]:
    """ATen overloads behind the nodes of an ONNX graph: by the node's name, and counted by calls in the program."""
    origin: dict[str, str] = {}
    calls: dict[str, str] = {}
    for node in model.graph.node:
        for entry in node.metadata_props:
            target = _TARGET.search(entry.value) if entry.key == _FX_NODE else None
            op = named_op(target.group(1)) if target else None
            if op:
                origin[node.name] = calls[entry.value] = op
    return origin, Counter(calls.values())


def _to_ort(tensor: torch.Tensor) -> Any:
    """A value of the runtime, which copies nothing: the tensor must live as long."""
    import onnxruntime

    if tensor.dtype is torch.bfloat16:
        bits = tensor.view(torch.int16).numpy()  # numpy has no bfloat16
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def _to_torch(value: Any) -> torch.Tensor:
    if value.data_type() == "tensor(bfloat16)":
        return torch.utils.dlpack.from_dlpack(value._get_c_value()).clone()
    return torch.from_numpy(value.numpy().copy())


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _line(error: BaseException) -> str:
    """The first line of what an exception says, without the exporter's colours."""
    text = re.sub(r"\x1b\[\d+m", "", text_of(error)).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:240] if text else ''}"
