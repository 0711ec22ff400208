"""What rounding moves as far is no fault; what it does not move is, however far other elements move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.backends.tree import Leaf, walk
from harness.numerics import References, Verdict, judge
from harness.records import NumericClass, Status

RUNS = 8


def looked(device: Tensor, reference: Tensor, control: Tensor | None, jittered: list[Tensor]) -> Verdict:
    trees = [walk(run) for run in jittered]
    truth = None if control is None else walk(control)
    return judge(walk(device), References(walk(reference), truth, jittered=tuple(trees), looked=True))


def rerounded(x: Tensor, seed: int) -> Tensor:
    """Each element as it is, or one of its neighbours."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(-1, 2, x.shape, generator=generator)
    return (x.double() * (1 + step * torch.finfo(x.dtype).eps / 2 * 1.01)).to(x.dtype)


def floor_of_cos(x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Reference, control and jittered runs of floor(cos(x)) in half precision (pytorch#145466)."""
    runs = [torch.floor(rerounded(torch.cos(x), seed)) for seed in range(RUNS)]
    return torch.floor(torch.cos(x)), torch.floor(torch.cos(x.double())), runs


@pytest.fixture(scope="module")
def half() -> Tensor:
    return torch.randn(4096, generator=torch.Generator().manual_seed(0)).half() * 50


def test_a_floor_that_rounding_decides_is_ill_conditioned(half: Tensor) -> None:
    reference, control, runs = floor_of_cos(half)
    assert bool((reference != control).any())
    assert judge(walk(reference), References(walk(reference), walk(control))).needs_second_look
    for device in (control.half(), torch.floor(rerounded(torch.cos(half), 99))):
        assert looked(device, reference, control, runs).status is Status.ILL_CONDITIONED


@pytest.mark.parametrize("wrong", [lambda c: c + 1, lambda c: -c, lambda c: torch.zeros_like(c)])
def test_a_floor_that_is_wrong_where_rounding_does_not_decide_is_divergent(
    half: Tensor, wrong: Callable[[Tensor], Tensor]
) -> None:
    reference, control, runs = floor_of_cos(half)
    assert looked(wrong(reference), reference, control, runs).status is Status.DIVERGENT
    calm = torch.stack([run == reference for run in (*runs, control)]).all(0).nonzero().flatten()[10:30]
    device = reference.clone()
    device[calm] = wrong(reference)[calm]
    assert looked(device, reference, control, runs).status is Status.DIVERGENT


def test_a_quotient_of_exact_numbers_is_moved_by_nothing() -> None:
    a, b = torch.tensor([1.0, 0.5, 6.0] * 9), torch.tensor([0.1, 0.1, 0.2] * 9)
    reference, control = a // b, a.double() // b.double()
    assert looked(torch.round(a / b), reference, control, [reference] * RUNS).status is Status.DIVERGENT
    assert looked(reference, reference, control, [reference] * RUNS).status is Status.PASS


def amplifying(x: Tensor, seed: int = 0) -> Tensor:
    """A sum of few terms that cancels: the reference may be lucky in all elements."""
    return rerounded(rerounded(x, seed) + 1000, seed + 50) - 1000


def test_an_amplification_that_jitter_shows_passes_and_a_fault_beyond_it_does_not() -> None:
    x = torch.linspace(1, 2, 16)
    control = x.double()
    reference, runs = control.float(), [amplifying(x, seed) for seed in range(RUNS)]
    device = amplifying(x, 77)
    assert judge(walk(device), References(walk(reference), walk(control))).status is Status.DIVERGENT
    assert looked(device, reference, control, runs).status is Status.PASS
    for fault in (reference * 1.01, reference + 0.01, reference * 3):
        assert looked(fault, reference, control, runs).status is Status.DIVERGENT


def deep(x: Tensor, seed: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    for layer in range(4):
        x = torch.nn.functional.gelu(x @ (torch.randn(128, 128, generator=generator) / 8).to(x.dtype))
        x = x if seed is None else rerounded(x, 10 * seed + layer)
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_jitter_excuses_no_fault_in_an_ordinary_network(dtype: torch.dtype) -> None:
    x = torch.randn(512, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    reference, control, runs = deep(x), deep(x.double()), [deep(x, seed) for seed in range(RUNS)]
    assert looked(deep(x, 20), reference, control, runs).status is Status.PASS
    row = reference.clone()
    row[100] = row[100] * 1.05
    element = reference.clone()
    element[7, 7] += float(control.abs().max())
    bias = reference + 0.02 * control.square().mean().sqrt().to(dtype)
    for fault in (reference * 1.015, bias, row, element):
        assert looked(fault, reference, control, runs).status is Status.DIVERGENT


@pytest.fixture(scope="module")
def scores() -> Tensor:
    scores = torch.rand(64, 10, generator=torch.Generator().manual_seed(0)) * 0.8
    scores[:, 3] = 1.0
    scores[:8, 7] = 1.0  # near ties in eight rows
    return scores


def test_an_argmax_near_tie_passes_and_another_index_does_not(scores: Tensor) -> None:
    reference, control = scores.argmax(1), scores.double().argmax(1)
    runs = [rerounded(scores, seed).argmax(1) for seed in range(RUNS)]
    device = reference.clone()
    device[:8] = 7
    assert judge(walk(device), References(walk(reference), walk(control))).status is Status.DIVERGENT
    found = looked(device, reference, control, runs)
    assert (found.status, found.numeric_class) == (Status.PASS, NumericClass.WITHIN_BUDGET)
    assert found.metrics.elements_explained == 8
    device[4] = 5  # moved, but to one other value, and never there
    found = looked(device, reference, control, runs)
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (4,))
    many = [run.clone() for run in runs]
    for seed, run in enumerate(many):
        run[4] = (3, 7, 8)[seed % 3]  # rounding chooses among many
    assert looked(device, reference, control, many).status is Status.ILL_CONDITIONED
    device[4] = 7
    device[40:50] = 7  # never moved
    found = looked(device, reference, control, runs)
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (40,))


def test_indices_that_nothing_moves_have_no_excuse(scores: Tensor) -> None:
    reference = scores[8:].argmax(1)
    device = reference.clone()
    device[0] = 7
    assert looked(device, reference, reference, [reference] * RUNS).status is Status.DIVERGENT


def test_a_gradient_that_cancels_is_judged_by_what_rounding_makes_of_it() -> None:
    generator = torch.Generator().manual_seed(0)

    def noise(size: float) -> Tensor:
        return torch.randn(64, generator=generator) * size

    weight = torch.randn(64, 64, generator=generator)
    runs = [[Leaf("['w']", weight), Leaf("['b']", noise(1e-9))] for _ in range(RUNS)]
    references = References(
        [Leaf("['w']", weight), Leaf("['b']", noise(1e-9))],
        [Leaf("['w']", weight.double()), Leaf("['b']", noise(1e-18).double())],
    )
    again = References(references.reference, references.control, jittered=tuple(runs), looked=True)
    lucky = References([Leaf("['w']", weight), Leaf("['b']", torch.zeros(64))], again.control, None, again.jittered)
    honest, wrong = ([Leaf("['w']", weight), Leaf("['b']", noise(size))] for size in (2e-9, 1e-3))
    for by in (references, again, lucky):
        assert judge(honest, by).status is Status.PASS
        assert judge(wrong, by).status is Status.DIVERGENT


def test_an_overflow_that_jitter_reaches_too_is_ill_conditioned() -> None:
    x = torch.full((64,), 3.4e38)
    device, run = x.clone(), x.clone()
    device[3], run[3] = float("inf"), float("inf")
    assert looked(device, x, x.double(), [x, run]).status is Status.ILL_CONDITIONED
    assert looked(device, x, x.double(), [x, x]).status is Status.NON_FINITE
