"""The last word: who is at fault where reference, fp64, other kernels and the device do not agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.double import run_control
from harness.backends.reference import run_reference, run_second_path
from harness.backends.tree import walk
from harness.numerics.second_look import second_look
from harness.numerics.verdict import Raised, References, Verdict
from harness.records import Status
from tests.harness.numerics.planted import built, total, twice

INF = float("inf")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def look(function: Callable[..., Any], inputs: tuple[Any, ...], device: Callable[[Any], Any]) -> Verdict:
    """The verdict on a device that computes `device` of the reference's output."""
    model = built(function, *inputs)
    references = References(run_reference(model).leaves, run_control(model))
    output = model.module(*(x.clone() for x in inputs))
    return second_look(model, references, walk(device(output)))


@pytest.fixture
def with_inf() -> Tensor:
    x = draw(64)
    x[5] = INF
    return x


def test_a_device_that_is_right_where_the_reference_is_wrong_is_not_at_fault(with_inf: Tensor) -> None:
    found = look(lambda x: twice(x) * 0.3, (with_inf,), lambda _: (2 * with_inf) * 0.3)
    assert (found.status, found.op) == (Status.REFERENCE_SUSPECT, "calipers_planted::twice")
    assert "fp64 inf" in found.message


def test_a_device_that_shares_the_error_of_the_reference_is_not_at_fault(with_inf: Tensor) -> None:
    found = look(lambda x: twice(x) * 0.3, (with_inf,), lambda y: y)
    assert (found.status, found.op) == (Status.REFERENCE_SUSPECT, "calipers_planted::twice")


def test_a_device_with_a_fault_of_its_own_is_not_excused_by_a_suspect(with_inf: Tensor) -> None:
    def faulty(_: Tensor) -> Tensor:
        right = (2 * with_inf) * 0.3
        right[9] *= 1.5
        return right

    assert look(lambda x: twice(x) * 0.3, (with_inf,), faulty).status is Status.DIVERGENT


def test_a_suspect_that_changes_no_output_excuses_nothing(with_inf: Tensor) -> None:
    found = look(lambda x: twice(x).nan_to_num(posinf=0.0)[:5] * 0.3, (with_inf,), lambda y: y * 1.01)
    assert (found.status, found.op) == (Status.DIVERGENT, None)


def test_finite_errors_of_the_reference_are_its_own() -> None:
    x = draw(512, 32)
    assert look(total, (x,), lambda _: x.sum(-1)).status is Status.REFERENCE_SUSPECT
    assert look(lambda x: x.sum(-1), (x,), lambda y: y * 1.01).status is Status.DIVERGENT


def test_what_rounding_moves_is_ill_conditioned_and_no_more_than_that() -> None:
    x = (draw(4096) * 50).half()

    def otherwise_rounded(_: Tensor) -> Tensor:
        return x.double().cos().floor().half()

    def far(y: Tensor) -> Tensor:
        return otherwise_rounded(y).index_add(0, torch.tensor([7]), torch.tensor([9.0]).half())

    assert look(lambda x: x.cos().floor(), (x,), otherwise_rounded).status is Status.ILL_CONDITIONED
    assert look(lambda x: x.cos().floor(), (x,), far).status is Status.DIVERGENT


def test_an_exact_op_of_exact_inputs_is_not_excused() -> None:
    a, b = torch.tensor([1.0, 0.5, 6.0] * 9), torch.tensor([0.1, 0.1, 0.2] * 9)
    assert look(lambda a, b: a // b, (a, b), lambda _: (a / b).floor()).status is Status.DIVERGENT


@pytest.mark.parametrize("fault", [lambda y: y * 1.01, lambda y: y + 0.01 * y.abs().mean(), lambda y: y.roll(1, -1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fault_of_a_chaotic_model_is_not_excused(fault: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.nn.functional.layer_norm(x @ x.T @ x, (32,)) + x
        return x

    x = draw(64, 32).to(dtype)
    model = built(chain, x)
    second = run_second_path(model)[0].value
    assert look(chain, (x,), lambda _: second).status.is_pass
    assert look(chain, (x,), fault).status is Status.DIVERGENT


def test_a_reference_that_raises_for_an_op_of_its_own_is_the_suspect() -> None:
    def careful(x: Tensor) -> Tensor:
        y = twice(x)
        if y.isnan().any():
            raise ValueError("NaN")
        return y

    x = torch.full((64,), INF)
    references = References(Raised("ValueError: NaN"))
    found = second_look(built(careful, x), references, walk(2 * x))
    assert (found.status, found.op) == (Status.REFERENCE_SUSPECT, "calipers_planted::twice")
    found = second_look(built(careful, x), references, walk(3 * x[:1]))
    assert found.status is Status.CONTRACT
