"""XLA:CPU: compiles and executes a StableHLO module.

Everything private to jax 0.10.2 and its jaxlib that this route needs is called in this file, and nowhere else;
`presence` holds the versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_TOP_K_STABILITY = re.compile(r"(?<=[\d]), is_stable = (true|false)(?=\) : )")
"""An attribute of chlo.top_k that this jaxlib does not know yet; its top_k always puts the lower index first."""


class UnreadableModule(Exception):
    """The module is written in a newer StableHLO than this jaxlib reads."""


@dataclass(frozen=True)
class XlaCpu:
    """The XLA:CPU client of this process."""

    client: Any
    device: Any

    @classmethod
    def start(cls, threads: int) -> XlaCpu:
        """Starts the client with about `threads` threads. Once per process, before jax is imported by anyone."""
        os.environ["NPROC"] = str(threads)  # XLA sizes its thread pools by it
        if threads == 1:
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)  # else 64-bit arguments are silently narrowed
        device = jax.devices("cpu")[0]
        return cls(device.client, device)

    def parse(self, stablehlo: str) -> Any:
        """A module from its text; `UnreadableModule` if this jaxlib cannot read it."""
        from jax._src.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir

        try:
            return ir.Module.parse(_TOP_K_STABILITY.sub("", stablehlo), make_ir_context())
        except ir.MLIRError as error:
            raise UnreadableModule(" ".join(str(error).split())) from error

    def compile(self, module: Any) -> Any:
        """An executable for one CPU device.

        Not optimised: a model runs once, and compiling costs several times the run. That also leaves the arithmetic
        as the module states it.
        """
        from jax._src.lib import xla_client

        options = xla_client.CompileOptions()
        debug = options.executable_build_options.debug_options
        debug.xla_backend_optimization_level = 0
        debug.xla_llvm_disable_expensive_passes = True
        devices = xla_client.DeviceList((self.device,))
        return self.client.compile_and_load(module, devices, options)

    def execute(self, executable: Any, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs an executable once; the results are copies, so nothing of the run stays alive with them."""
        import jax

        buffers = [jax.device_put(to_numpy(value), self.device) for value in arguments]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [to_torch(np.asarray(shards[0])) for shards in results]


_CARRIED_AS = {
    torch.bfloat16: (torch.int16, "bfloat16"),
    torch.float8_e4m3fn: (torch.uint8, "float8_e4m3fn"),
    torch.float8_e5m2: (torch.uint8, "float8_e5m2"),
}
"""dtypes that numpy does not have: the integers that carry their bits, and the name that ml_dtypes gives them."""


def to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array of the same dtype, ml_dtypes' where numpy has none."""
    import ml_dtypes

    value = value.detach().resolve_conj().resolve_neg().contiguous()
    if value.dtype in _CARRIED_AS:
        carrier, name = _CARRIED_AS[value.dtype]
        return value.view(carrier).numpy().view(getattr(ml_dtypes, name))
    return value.numpy()


def to_torch(value: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array as a tensor of the same dtype, in memory of its own."""
    value = np.array(value)  # a copy: the array is a view of XLA's buffer
    for dtype, (carrier, name) in _CARRIED_AS.items():
        if value.dtype.name == name:
            return torch.from_numpy(value.view(str(carrier).removeprefix("torch."))).view(dtype)
    return torch.from_numpy(value)
