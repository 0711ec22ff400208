"""What is installed and attached: packages, TPUs, a PJRT plugin. Imports none of them.

>>> tpu_count(pci=Path("/nonexistent"))
0
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.backends.base import Availability

TORCH_TPU = "0.2.0"
JAXLIB = "0.10.2"
"""The versions whose private functions `lowering` and `xla_cpu` call."""

GOOGLE_PCI_VENDOR = "0x1ae0"
TPU_PCI_DEVICES = frozenset({"0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
"""v4, v5p, v5e, v6e, v7: as in torch_tpu 0.2.0, `_internal/utils/hardware.py`."""

PLUGIN = "TPU_LIBRARY_PATH"
"""Environment variable of torch_tpu: the PJRT plugin to load in place of libtpu."""


def availability(mode: str | None) -> Availability:
    """Whether TorchTPU can run here in that mode, or in any."""
    versions = {name: found for name in ("torch_tpu", "libtpu", "jaxlib") if (found := installed(name))}
    if "torch_tpu" not in versions:
        return Availability(False, "torch_tpu is not installed", "pip install 'calipers[tpu]'", versions)
    wrong = mismatch("torch_tpu", TORCH_TPU, versions)
    if wrong:
        return Availability(False, wrong, "pip install 'calipers[tpu]'", versions)
    tpus = tpu_count()
    plugin = foreign_plugin(os.environ)
    if mode != "lowering" and (tpus or plugin):
        route = f"eager on {tpus} TPU" if tpus else f"eager on the PJRT plugin {Path(plugin).name} named by {PLUGIN}"
        return Availability(True, route, versions=versions)
    if mode == "device":
        return Availability(False, "no TPU found", "use mode lowering, which needs none", versions)
    wrong = mismatch("jaxlib", JAXLIB, versions)
    if wrong:
        return Availability(False, wrong, f"pip install jax=={JAXLIB}", versions)
    found = f"{tpus} TPU not used" if tpus else "no TPU found"
    return Availability(True, f"lowering to StableHLO, run on XLA:CPU (jaxlib {JAXLIB}); {found}", versions=versions)


def installed(package: str) -> str:
    """Version of an installed package, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def mismatch(package: str, expected: str, versions: Mapping[str, str]) -> str:
    """What is wrong with a package's version, or nothing."""
    found = versions.get(package)
    if found == expected:
        return ""
    return f"expected {package} {expected}, found {found or 'none'}: this route calls its private functions"


def foreign_plugin(environment: Mapping[str, str]) -> str:
    """Path of a PJRT plugin that the user put in libtpu's place, or nothing.

    libtpu names itself in that variable when it is imported, which makes it no plugin of the user's.
    """
    path = environment.get(PLUGIN, "")
    return path if path and Path(path).name != "libtpu.so" else ""


def tpu_count(pci: Path = Path("/sys/bus/pci/devices"), vfio: Path = Path("/dev/vfio")) -> int:
    """Number of TPUs that this system exposes to user space; counts as torch_tpu 0.2.0 does."""
    return sum(_is_exposed_tpu(device, vfio) for device in pci.iterdir()) if pci.is_dir() else 0


def _is_exposed_tpu(device: Path, vfio: Path) -> bool:
    try:
        if (device / "vendor").read_text().strip() != GOOGLE_PCI_VENDOR:
            return False
        if (device / "device").read_text().strip() not in TPU_PCI_DEVICES:
            return False
        return (vfio / (device / "iommu_group").readlink().name).exists()
    except OSError:
        return False
