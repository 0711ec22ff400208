"""Jitter moves what rounding moves, as far as rounding moves it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.backends.double import run_control
from harness.backends.reference import run_reference
from harness.numerics.jitter import amplification, record, run_jittered, spread
from tests.harness.numerics.planted import built


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def outputs(function: Callable[..., object], *inputs: Tensor, runs: int = 8) -> tuple[Tensor, list[Tensor]]:
    """The reference's output and those of jittered runs."""
    model = built(function, *inputs)
    recording = record(model)
    return run_reference(model).leaves[0].value, [run_jittered(model, seed, recording)[0].value for seed in range(runs)]


def test_floor_of_a_rounded_cosine_jumps_by_one() -> None:
    reference, jittered = outputs(lambda x: x.cos().floor(), (draw(4096) * 50).half())
    moved = [(run - reference).abs() for run in jittered]
    assert sum(int((m > 0).sum()) for m in moved) > 0
    assert max(float(m.max()) for m in moved) == 1


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda a, b: a // b, (torch.tensor([1.0, 0.5, 6.0] * 9), torch.tensor([0.1, 0.1, 0.2] * 9))),
        (lambda x: torch.cos(x), (draw(99),)),
        (lambda x: (x > 0).float().sum(-1).floor(), (draw(9, 99),)),
        (lambda x: torch.cat([x.relu(), -x]).sort().values * 2 - x.sign().repeat(2), (draw(99).round(),)),
        (lambda x: x.unsqueeze(0).expand(3, -1).contiguous().clone() + 0, (draw(99),)),
        (lambda x: torch.rand_like(x), (draw(99),)),
    ],
)
def test_what_is_exact_and_what_nothing_follows_stays(function: Callable[..., object], inputs: tuple[Tensor]) -> None:
    reference, jittered = outputs(function, *inputs)
    assert all(torch.equal(run, reference) for run in jittered)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mul(0.3).exp().clone().add(1),
        lambda x: x.clone().mul_(0.3).add_(0.1).neg(),
        lambda x: torch.mul(x, 0.3, out=torch.empty_like(x)).neg(),
        lambda x: torch._foreach_mul([x, x], 0.3)[1].neg(),
        lambda x: torch.var_mean(x.mul(0.3), -1, keepdim=True)[0].sqrt().neg(),
        lambda x: (x @ x.T * 0.1).softmax(-1) @ x + x,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_movement_is_of_the_size_of_rounding(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    model = built(function, draw(64, 64).to(dtype))
    reference, control = run_reference(model).leaves, run_control(model)
    own = spread(control, reference)[""] * torch.finfo(torch.float64).eps / torch.finfo(dtype).eps
    moved = spread(reference, run_jittered(model, 1))[""]
    assert 0.2 * own < moved < 4 * own


def test_a_seed_gives_the_same_run_and_another_seed_another() -> None:
    model = built(lambda x: (x @ x.T).exp().sum(-1), draw(64, 64) * 0.1)
    one, same, other = (run_jittered(model, seed)[0].value for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_zeros_and_what_is_not_finite_stay() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 3.4e38, 1e-45] * 9)
    reference, jittered = outputs(lambda x: x.mul(0.9).neg(), x)
    for run in jittered:
        assert torch.equal(run.isfinite(), reference.isfinite())
        assert torch.equal(run[:2], reference[:2])


def test_amplification_is_the_condition_seen_from_the_inputs() -> None:
    x = draw(4096)
    identity, cancelling = built(lambda x: x * 1, x), built(lambda x: (x + 1000) - 1000 + x * 100, x)
    assert amplification(identity) == pytest.approx(1, rel=0.1)
    assert amplification(built(lambda x: (x.double().add(1).pow(50)).float(), x.abs())) > 20  # type: ignore[operator]
    assert amplification(cancelling) == pytest.approx(1, rel=0.5)
    assert amplification(built(lambda i: i * 2, torch.arange(9))) is None
