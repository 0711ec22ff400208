"""The gate over several inputs, fed by verdicts on rows that compute in a lower precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.tree import walk
from harness.numerics import References, Verdict, gate, judge
from harness.records import Metrics, Status


def network(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.nn.functional.gelu(x @ (torch.randn(64, 64, generator=generator) / 6).to(x.dtype))
    return x


def other_order(x: Tensor) -> Tensor:
    """The same, each sum of products cut in two and rounded between."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        weight = (torch.randn(64, 64, generator=generator) / 6).to(x.dtype)
        x = torch.nn.functional.gelu(x[:, :23] @ weight[:23] + x[:, 23:] @ weight[23:])
    return x


def lower(device: Tensor, x: Tensor) -> Verdict:
    """The verdict on an fp32 row whose device computes in bf16."""
    unit = walk(network(x.bfloat16()))
    return judge(walk(device.float()), References(walk(network(x)), walk(network(x.double())), lower=unit))


@pytest.fixture(scope="module")
def inputs() -> list[Tensor]:
    return [torch.randn(256, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(10)]


def test_a_device_in_bf16_is_judged_by_the_cpu_in_bf16(inputs: list[Tensor]) -> None:
    x = inputs[0]
    device = other_order(x.bfloat16())
    found = lower(device, x)
    assert found.status is Status.PASS
    assert found.metrics.equivalence == pytest.approx(1.2, abs=0.3)
    plain = References(walk(network(x)), walk(network(x.double())))
    assert judge(walk(device.float()), plain).status is Status.DIVERGENT


def test_a_fault_beyond_bf16_is_found(inputs: list[Tensor]) -> None:
    x = inputs[0]
    for fault in (network(x) * 1.1, network(x) + 0.05, -network(x), network(x.bfloat16()).roll(1, 0)):
        assert lower(fault, x).status is Status.DIVERGENT


def test_the_gate_passes_rounding_and_stops_what_is_worse(inputs: list[Tensor]) -> None:
    honest = gate([lower(other_order(x.bfloat16()), x).metrics for x in inputs])
    assert honest is not None
    assert (honest.passes, honest.inputs) == (True, 10)
    worse = gate([lower(network(x) + 3 * (network(x.bfloat16()) - network(x)), x).metrics for x in inputs])
    assert worse is not None
    assert not worse.passes
    assert worse.sigma_ratio == pytest.approx(3, rel=0.05)


def row(**changes: float) -> Metrics:
    same = {
        "device_rms": 0.01,
        "unit_rms": 0.01,
        "rms_ratio": 1.0,
        "max_ratio": 1.0,
        "device_bias": 0.0,
        "unit_bias": 0.0,
    }
    return Metrics.model_validate(same | changes)


@pytest.mark.parametrize(
    ("worst", "passes"),
    [
        ({}, True),
        ({"max_ratio": 4.9, "rms_ratio": 2.9}, True),
        ({"max_ratio": 5.0}, False),
        ({"rms_ratio": 3.0}, False),
    ],
)
def test_one_bad_input_of_ten_closes_the_gate(worst: dict[str, float], passes: bool) -> None:
    found = gate([row()] * 9 + [row(**worst)])
    assert found is not None
    assert found.passes is passes


def test_a_bias_or_a_wider_spread_parts_the_distributions() -> None:
    for changes in ({"device_rms": 0.015}, {"device_rms": 0.0101, "device_bias": 0.01}):
        found = gate([row(**changes)] * 10)
        assert found is not None
        assert found.bhattacharyya < 0.99
        assert not found.passes
    more_precise = gate([row(device_rms=0.001)] * 10)
    assert more_precise is not None
    assert more_precise.passes


def test_rows_without_numbers_have_no_gate() -> None:
    assert gate([]) is None
    assert gate([Metrics()]) is None
