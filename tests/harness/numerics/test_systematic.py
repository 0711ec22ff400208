"""Errors that elements share: found where each alone hides in its budget, and no alarm where they are white."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics import References, Verdict, judge
from harness.numerics.systematic import row_length
from harness.records import Status

HALVES = [torch.bfloat16, torch.float16]
WIDTH = 128


def verdict(device: Tensor, reference: Tensor, control: Tensor) -> Verdict:
    return judge([Leaf("", device)], References([Leaf("", reference)], [Leaf("", control)]))


def network(x: Tensor) -> Tensor:
    """A network with a norm, whose reciprocal root is a factor that a row shares."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        weight = torch.randn(WIDTH, WIDTH, generator=generator) / 9
        x = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ weight.to(x.dtype)), (WIDTH,))
    return x


def norm_in_steps(x: Tensor) -> Tensor:
    """The same, each step of the norm rounded to the dtype, as a device without a fused kernel has it."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        weight = torch.randn(WIDTH, WIDTH, generator=generator) / 9
        x = torch.nn.functional.gelu(x @ weight.to(x.dtype))
        x = x - x.mean(-1, keepdim=True)
        x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return x


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(0))


def one_row(x: Tensor, row: Tensor) -> Tensor:
    x = x.clone()
    x[777] = row
    return x


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (lambda x: x * 1.01, "systematic"),
        (lambda x: x + 0.01, "systematic"),
        (lambda x: one_row(x, x[777] * 1.01), "row"),
        (lambda x: one_row(x, x[777] + 0.015), "row"),
        (lambda x: one_row(x, x[778]), "element"),
    ],
    ids=["scale", "offset", "scale of a row", "offset of a row", "row of a neighbour"],
)
def test_a_shared_error_is_found_in_low_precision(inputs: Tensor, dtype: torch.dtype, fault: object, rule: str) -> None:
    low = inputs.to(dtype)
    reference, control = network(low), network(low.double())
    found = verdict(fault(reference.double()).to(dtype), reference, control)  # type: ignore[operator]
    assert found.status is Status.DIVERGENT
    if rule == "systematic":
        assert (found.metrics.systematic_in_limits or 0) > 1
        assert "all values are off" in found.message
    if rule == "row":
        assert (found.metrics.rule, found.metrics.row) == ("row", (777, 0))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_roundings_that_a_row_shares_are_no_fault(inputs: Tensor, dtype: torch.dtype) -> None:
    low = inputs.to(dtype)
    reference, control = network(low), network(low.double())
    for honest in (norm_in_steps(low), network(low.double()).to(dtype), network(low.float()).to(dtype)):
        found = verdict(honest, reference, control)
        assert found.status is Status.PASS
        assert (found.metrics.row_in_limits or 0) < 0.8
        assert (found.metrics.systematic_in_limits or 0) < 0.8


def test_scale_and_offset_of_the_error_are_measured(inputs: Tensor) -> None:
    reference, control = network(inputs), network(inputs.double())
    scaled, shifted = (verdict(x, reference, control).metrics for x in (reference * 1.001, reference + 0.001))
    assert scaled.scale_error == pytest.approx(1e-3, rel=0.01)
    assert shifted.offset_error == pytest.approx(1e-3, rel=0.01)


def test_sharper_than_the_rms_in_fp32(inputs: Tensor) -> None:
    reference, control = network(inputs), network(inputs.double())
    sigma = float((reference - control).square().mean().sqrt())
    white = torch.randn(reference.shape, generator=torch.Generator().manual_seed(2)) * 2 * sigma
    assert verdict(reference + white, reference, control).status is Status.PASS
    found = verdict((reference.double() + 2 * sigma).float(), reference, control)
    assert found.status is Status.DIVERGENT
    assert (found.metrics.systematic_in_limits or 0) > 1
    assert (found.metrics.rms_ratio or 9) < 4


@pytest.mark.parametrize(("shape", "length"), [((8, 1000), 1000), ((2, 64, 7, 7), 49), ((5,), 5), ((4, 1, 1), 4)])
def test_short_dims_are_merged_into_rows(shape: tuple[int, ...], length: int) -> None:
    assert row_length(shape) == length
