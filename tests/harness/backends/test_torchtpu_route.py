"""What the lowering route finds, rewrites and refuses, and what it needs installed. Loads no torch_tpu."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.backends import load_backend
from harness.backends.base import BackendError, Unavailable
from harness.backends.torchtpu import presence
from harness.backends.torchtpu.stablehlo import make_runnable
from harness.records import Stage, Status

REVERSE_SCAN = """
func.func @main(%arg0: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3xf32>) {
  %cst = stablehlo.constant dense<0.0> : tensor<3xf32>
  %0:2 = chlo.scan(%arg0) inits (%cst) dimension=1
      attributes {is_associative = true, is_reverse = true, scan_dim_size = 4 : i64} {
    ^bb0(%input: tensor<3xf32>, %carry: tensor<3xf32>):
      %1 = stablehlo.add %input, %carry : tensor<3xf32>
      stablehlo.return %1, %1 : tensor<3xf32>, tensor<3xf32>
  } : (tensor<3x4xf32>, tensor<3xf32>) -> (tensor<3x4xf32>, tensor<3xf32>)
  return %0#0, %0#1 : tensor<3x4xf32>, tensor<3xf32>
}
"""
CUSTOM_CALL = """
func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @TARGET(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
RAGGED_BY_CONTRACTION = """
func.func @main(%a: tensor<4x16xf32>, %b: tensor<16x5xf32>, %g: tensor<3xi32>) -> tensor<3x4x5xf32> {
  %0 = "chlo.ragged_dot"(%a, %b, %g) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<
    lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [1]>}>
    : (tensor<4x16xf32>, tensor<16x5xf32>, tensor<3xi32>) -> tensor<3x4x5xf32>
  return %0 : tensor<3x4x5xf32>
}
"""


def parse(text: str) -> Any:
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    return ir.Module.parse(text, make_ir_context())


def test_a_reversed_scan_runs_from_the_end() -> None:
    import jax
    from jax._src.lib import xla_client

    module = parse(REVERSE_SCAN)
    assert make_runnable(module) == ("chlo.scan (add) -> stablehlo.while: XLA:CPU cannot run it",)
    device = jax.devices("cpu")[0]
    executable = device.client.compile_and_load(module, xla_client.DeviceList((device,)), xla_client.CompileOptions())
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    results = executable.execute_sharded([jax.device_put(x, device)]).disassemble_into_single_device_arrays()
    running, total = (np.asarray(r[0]) for r in results)
    assert np.array_equal(running, x[:, ::-1].cumsum(1)[:, ::-1])
    assert not np.array_equal(running, x.cumsum(1))
    assert np.array_equal(total, x.sum(1))


@pytest.mark.parametrize("target", ["tpu_custom_call", "LuDecomposition", "PadRealToStatic"])
def test_a_call_without_a_handler_is_a_limit_of_the_route(target: str) -> None:
    with pytest.raises(BackendError, match="limit of the route, not of TorchTPU.*" + target) as caught:
        make_runnable(parse(CUSTOM_CALL.replace("TARGET", target)))
    assert caught.value.status is Status.SKIPPED


def test_a_call_with_a_handler_is_left_alone() -> None:
    assert make_runnable(parse(CUSTOM_CALL.replace("TARGET", "Qr"))) == ()


def test_a_ragged_dot_without_an_equal_form_is_a_limit_of_the_route() -> None:
    with pytest.raises(BackendError, match=r"XLA:CPU cannot run ragged-dot in the form") as caught:
        make_runnable(parse(RAGGED_BY_CONTRACTION))
    assert caught.value.status is Status.SKIPPED


@pytest.mark.parametrize(
    ("stage", "text", "status"),
    [
        (Stage.COMPILE, "UNIMPLEMENTED: HLO opcode not supported by XLA:CPU", Status.SKIPPED),
        (Stage.RUN, "NOT_FOUND: No FFI handler registered for Lu", Status.SKIPPED),
        (Stage.COMPILE, "INTERNAL: something else", Status.COMPILE_ERROR),
        (Stage.LOWER, "UNIMPLEMENTED: said by TorchTPU", Status.LOWERING_ERROR),
    ],
)
def test_only_what_xla_cpu_refuses_is_a_limit_of_the_route(stage: Stage, text: str, status: Status) -> None:
    backend = load_backend("torchtpu")
    backend.mode = "lowering"
    assert backend.classify(stage, RuntimeError(text)).status is status


def pretend_installed(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str]) -> None:
    monkeypatch.setattr(presence, "installed", lambda package: versions.get(package, ""))
    monkeypatch.delenv(presence.PLUGIN, raising=False)
    monkeypatch.setattr(presence, "tpu_count", lambda: 0)


def test_without_the_package_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"jaxlib": presence.JAXLIB})
    found = load_backend("torchtpu").availability()
    assert (found.ok, found.route, found.hint) == (False, "torch_tpu is not installed", "pip install 'calipers[tpu]'")
    with pytest.raises(Unavailable, match="torch_tpu is not installed"):
        load_backend("torchtpu").activate("lowering", 1)


def test_another_version_is_named_with_the_expected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"torch_tpu": "0.3.0", "jaxlib": presence.JAXLIB})
    assert "expected torch_tpu 0.2.0, found 0.3.0" in load_backend("torchtpu").availability().route


def test_without_a_tpu_the_route_is_the_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"torch_tpu": "0.2.0", "libtpu": "0.0.52", "jaxlib": "0.10.2"})
    backend = load_backend("torchtpu")
    found = backend.availability()
    assert found.route == "lowering to StableHLO, run on XLA:CPU (jaxlib 0.10.2); no TPU found"
    assert found.versions == {"torch_tpu": "0.2.0", "libtpu": "0.0.52", "jaxlib": "0.10.2"}
    assert backend.default_mode() == "lowering"
    assert not backend.availability("device").ok


def test_with_a_tpu_the_default_is_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"torch_tpu": "0.2.0", "jaxlib": "0.10.2"})
    monkeypatch.setattr(presence, "tpu_count", lambda: 4)
    assert load_backend("torchtpu").default_mode() == "device"


def test_a_tpu_is_counted_only_if_vfio_exposes_it(tmp_path: Path) -> None:
    pci, vfio = tmp_path / "pci", tmp_path / "vfio"
    for index, (vendor, device) in enumerate([("0x1ae0", "0x0063"), ("0x1ae0", "0x0063"), ("0x10de", "0x0063")]):
        folder = pci / f"0000:00:0{index}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
        (folder / "iommu_group").symlink_to(f"/groups/{index}")
    vfio.mkdir()
    (vfio / "0").touch()
    (vfio / "2").touch()
    assert presence.tpu_count(pci, vfio) == 1


def test_the_versions_whose_private_functions_are_called_are_installed() -> None:
    assert importlib.metadata.version("jaxlib") == presence.JAXLIB
    assert importlib.metadata.version("torch_tpu") == presence.TORCH_TPU
