"""Facts about this machine and installation: what stands in run.json and what `doctor` prints. Imports no torch."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from harness.records import Machine

PACKAGES = (
    "torch", "torchvision", "transformers", "timm", "ray", "jax", "jaxlib", "torch_tpu", "libtpu", "openvino",
    "onnxruntime", "numpy", "pyarrow",
)  # fmt: skip
"""Packages whose versions can change a result."""

VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "XLA_FLAGS", "LIBTPU_INIT_ARGS",
    "TORCH_DEVICE_BACKEND_AUTOLOAD", "TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH", "TPU_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES", "OPENBLAS_CORETYPE",
)  # fmt: skip
"""Environment variables that change numbers or routes."""

_ISA = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
        "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")  # fmt: skip


def package_version(name: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Installed versions of `PACKAGES`."""
    return {name: found for name in PACKAGES if (found := package_version(name))}


def calipers_version() -> str:
    """Version of this harness."""
    return package_version("calipers") or "unknown"


def environment() -> dict[str, str]:
    """Those of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def machine(cpu_capability: str = "") -> Machine:
    """The machine we are on; `cpu_capability` is what PyTorch says that its kernels were dispatched to."""
    import cpuinfo
    import psutil

    info = cpuinfo.get_cpu_info()
    flags = set(info.get("flags", ()))
    return Machine(
        processor=info.get("brand_raw") or platform.processor() or platform.machine(),
        isa=tuple(name for name in _ISA if name in flags),
        cpu_capability=cpu_capability,
        cores=cores(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )
