"""TorchTPU on a TPU: the exported graph, op by op, in eager mode on the device `tpu`.

Not yet run on hardware. It has run on an XLA:CPU PJRT plugin in libtpu's place (`TPU_LIBRARY_PATH`).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from harness.backends.base import Observation
from harness.backends.torchtpu import lowering
from harness.records import Status

if TYPE_CHECKING:
    from harness.backends.program import Program


def load(plugin: bool) -> None:
    """Loads torch_tpu with its device. `plugin`: a PJRT plugin stands in for the TPU that is not attached."""
    if plugin:
        lowering.load_without_tpu()
    else:
        lowering.load_package()
    # By default a TPU multiplies fp32 matrices in one bfloat16 pass: a fair comparison with fp32 needs all six.
    torch.set_float32_matmul_precision("highest")


def run(program: Program, plugin: bool) -> Observation:
    """Runs a program on the device; `BackendError` with TorchTPU's own message and the op that raised."""
    graph_module = lowering.for_device(program.graph_module())
    # Copies: the graph may write to its inputs, and the program's are not its own.
    values = [v.to("tpu") if isinstance(v, torch.Tensor) else v for v in program.values]
    # A stand-in is no TPU: it cannot run the Pallas kernel of the fused attention.
    attention = sdpa_kernel([SDPBackend.MATH]) if plugin else nullcontext()
    with torch.no_grad(), attention, lowering.Recorder() as recorder:
        try:
            outputs = recorder.heard(torch.fx.Interpreter)(graph_module).run(*values)
            torch.accelerator.synchronize()
        except Exception as error:
            raise lowering.classified(error, recorder.failed, Status.RUNTIME_ERROR) from error
    flat = [_on_cpu(value) for value in pytree.tree_leaves(outputs)]
    has_attention = any("scaled_dot_product" in name for name in program.op_counts)
    return Observation(
        leaves=program.returned(flat),
        executed=dict(recorder.counts),
        substituted=(lowering.MATH_ATTENTION,) if plugin and has_attention else (),
    )


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
