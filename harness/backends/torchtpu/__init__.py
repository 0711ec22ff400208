"""TorchTPU, Google's PyTorch backend for TPUs (package torch_tpu), on a TPU or without one.

Mode `device` runs the model on a TPU. Mode `lowering` needs none: TorchTPU's own lowering turns the exported ATen graph
into StableHLO, and XLA:CPU executes that. It exercises TorchTPU's kernels, decompositions and shape rules up to the
point where libtpu would take over; missing ops and wrong lowerings show themselves, TPU arithmetic does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from harness.backends.base import Availability, Backend, BackendError, Observation, Work, one_line, traceback_tail
from harness.backends.torchtpu import presence
from harness.records import Stage, Status

if TYPE_CHECKING:
    from harness.backends.program import Program
    from harness.backends.torchtpu.lowering import Lowered
    from harness.backends.torchtpu.xla_cpu import XlaCpu


@dataclass(frozen=True)
class _Job:
    """One model on its way through the stages."""

    program: Program
    lowered: Lowered
    module: Any
    """The MLIR module, until it is compiled; then the executable."""


class TorchTPU(Backend):
    """See the package's docstring."""

    name: ClassVar[str] = "torchtpu"
    modes: ClassVar[tuple[str, ...]] = ("device", "lowering")
    restart_after_error: ClassVar[bool] = False

    _xla: XlaCpu
    """Set in mode `lowering`."""
    _plugin: bool
    """Set in mode `device`: whether a PJRT plugin stands in for the TPU."""

    def availability_impl(self, mode: str | None) -> Availability:
        """Looks at installed packages, PCI devices and the environment; imports nothing."""
        return presence.availability(mode)

    def activate_impl(self) -> None:
        """Loads torch_tpu, and for mode `lowering` XLA:CPU. Cannot be undone in this process."""
        import torch

        from harness.backends.torchtpu import device, lowering
        from harness.backends.torchtpu.xla_cpu import XlaCpu

        torch.set_num_threads(self.threads)
        if self.mode == "device":
            self._plugin = presence.tpu_count() == 0
            device.load(self._plugin)
        else:
            self._xla = XlaCpu.start(self.threads)
            lowering.load_without_tpu()

    def lower_impl(self, work: Work) -> Program | _Job:
        """Lowers through TorchTPU, then makes the result runnable on XLA:CPU. On the device there is nothing to do."""
        from harness.backends.torchtpu import lowering, stablehlo

        assert work.program is not None  # Backend.lower has checked
        if self.mode == "device":
            return work.program
        lowered = lowering.lower(work.program)
        module = self._xla.parse(lowered.stablehlo)
        rewritten = stablehlo.make_runnable(module)
        lowered = replace(lowered, stablehlo="", substituted=(*lowered.substituted, *rewritten))
        return _Job(work.program, lowered, module)

    def compile_impl(self, lowered: object) -> object:
        """Compiles with XLA:CPU. On the device each op is compiled as it runs."""
        if not isinstance(lowered, _Job):
            return lowered
        return replace(lowered, module=self._xla.compile(lowered.module))

    def run_impl(self, compiled: Any, inputs: Sequence[Any] | None = None) -> Observation:
        """Executes once, on the device or on XLA:CPU."""
        from harness.backends.torchtpu import device, lowering
        from harness.backends.torchtpu.lowering import Result

        if self.mode == "device":
            return device.run(compiled.with_inputs(inputs), self._plugin)
        job: _Job = compiled
        arguments = lowering.arguments_of(job.program.with_inputs(inputs)) if inputs else job.lowered.arguments
        results = self._xla.execute(job.module, arguments)
        flat = [results[slot.index] if isinstance(slot, Result) else slot for slot in job.lowered.outputs]
        return Observation(
            leaves=job.program.returned(flat),
            executed=job.lowered.executed,
            substituted=job.lowered.substituted,
        )

    def classify_impl(self, stage: Stage, error: BaseException) -> BackendError:
        """In mode `lowering` what XLA:CPU does not implement is a limit of the route."""
        if self.mode == "lowering" and _is_unimplemented(stage, error):
            reason = f"limit of the route, not of TorchTPU: XLA:CPU refuses the StableHLO ({one_line(error)})"
            return BackendError(Status.SKIPPED, reason, detail=traceback_tail(error))
        return super().classify_impl(stage, error)


def _is_unimplemented(stage: Stage, error: BaseException) -> bool:
    if stage is Stage.LOWER:  # TorchTPU has verified the module, so that this jaxlib cannot read it is not its fault
        return type(error).__name__ == "UnreadableModule"
    signs = ("UNIMPLEMENTED", "NOT_FOUND", "No FFI handler", "not supported by XLA:CPU")
    return any(sign in str(error) for sign in signs)
