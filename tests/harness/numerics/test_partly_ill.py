"""A leaf of which the reference loses a part: no verdict on that part, and a verdict on the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.tree import walk
from harness.numerics import References, judge
from harness.records import Status


def status(device: Tensor, reference: Tensor, control: Tensor) -> Status:
    return judge(walk(device), References(walk(reference), walk(control))).status


@pytest.fixture(scope="module")
def normed() -> tuple[Tensor, Tensor]:
    """A layer norm, one of whose rows is nearly constant; and the same in fp64."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    x[3] = 1000 + 1e-4 * x[3]
    norm = torch.nn.functional.layer_norm
    return norm(x, (64,)), norm(x.double(), (64,))


@pytest.fixture(scope="module")
def overflown() -> tuple[Tensor, Tensor]:
    """A root mean square norm in fp16 that overflows in one row; and the same in fp64."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).half()
    x[4] *= 300
    return x / (x * x).mean(-1, keepdim=True).sqrt(), x.double() / (x.double() ** 2).mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("factor", [1.1, 3.0, -1.0])
def test_another_row_is_judged(normed: tuple[Tensor, Tensor], overflown: tuple[Tensor, Tensor], factor: float) -> None:
    for reference, control in (normed, overflown):
        device = reference.clone()
        device[9] *= factor
        assert status(device, reference, control) is Status.DIVERGENT
        assert status(reference * factor, reference, control) is Status.DIVERGENT


def test_the_lost_row_is_not(normed: tuple[Tensor, Tensor]) -> None:
    reference, control = normed
    device = reference.clone()
    device[3] *= 1.01
    found = judge(walk(device), References(walk(reference), walk(control)))
    assert found.status in (Status.PASS, Status.ILL_CONDITIONED)
    assert found.needs_second_look
