"""The error budget: what rounding explains passes, planted faults do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics import References, Verdict, judge
from harness.records import NumericClass, Status

Fault = Callable[[Tensor, float], Tensor]


def verdict(device: Tensor, reference: Tensor, control: Tensor | None = None) -> Verdict:
    return judge(
        [Leaf("", device)], References([Leaf("", reference)], None if control is None else [Leaf("", control)])
    )


def network(x: Tensor, depth: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    for _ in range(depth):
        weight = torch.randn(64, 64, generator=generator) / 6
        x = torch.nn.functional.gelu(x @ weight.to(x.dtype))
    return x


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return torch.randn(16384, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reference(inputs: Tensor) -> Tensor:
    return network(inputs)


@pytest.fixture(scope="module")
def control(inputs: Tensor) -> Tensor:
    return network(inputs.double())


def other_order(inputs: Tensor) -> Tensor:
    """The same network in fp32 with each sum cut in two."""
    generator, x = torch.Generator().manual_seed(1), inputs
    for _ in range(4):
        weight = torch.randn(64, 64, generator=generator) / 6
        x = torch.nn.functional.gelu(x[:, :23] @ weight[:23] + x[:, 23:] @ weight[23:])
    return x


def put(x: Tensor, at: object, value: Tensor | float) -> Tensor:
    x = x.clone()
    x[at] = value  # type: ignore[index]
    return x


FAULTS: dict[str, Fault] = {
    "times 1.01": lambda x, s: x * 1.01,
    "times 3": lambda x, s: x * 3,
    "plus a constant": lambda x, s: x + 0.01 * s,
    "bias of 1e-4": lambda x, s: x + 1e-4 * s,
    "one element in a million by 1 %": lambda x, s: put(x, (777, 33), x[777, 33] + 0.01 * s),
    "one row by 1 %": lambda x, s: put(x, 777, x[777] * 1.01),
    "one row is its neighbour": lambda x, s: put(x, 777, x[778]),
    "rows rolled": lambda x, s: x.roll(1, 0),
    "sign": lambda x, s: -x,
    "rounded to fp16": lambda x, s: x.half().float(),
    "rounded to bf16": lambda x, s: x.bfloat16().float(),
    "zeros": lambda x, s: torch.zeros_like(x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_divergent_with_and_without_a_control(fault: str, reference: Tensor, control: Tensor) -> None:
    if "million" not in fault:
        reference, control = reference[:1024], control[:1024]
    device = FAULTS[fault](reference, float(control.square().mean().sqrt()))
    assert verdict(device, reference, control).status is Status.DIVERGENT
    assert verdict(device, reference).status is Status.DIVERGENT


def test_another_order_of_summation_is_far_inside_the_budget(
    inputs: Tensor, reference: Tensor, control: Tensor
) -> None:
    device = other_order(inputs)
    found = verdict(device, reference, control)
    assert not torch.equal(device, reference)
    assert found.numeric_class is NumericClass.WITHIN_BUDGET
    assert found.metrics.worst_in_budgets is not None
    assert found.metrics.worst_in_budgets < 0.3
    assert found.metrics.rms_ratio == pytest.approx(1.0, abs=0.5)
    assert verdict(device, reference).status is Status.PASS


def test_the_rounded_truth_is_more_precise_than_the_reference(reference: Tensor, control: Tensor) -> None:
    assert verdict(control.float(), reference, control).numeric_class is NumericClass.MORE_PRECISE
    assert verdict(reference.clone(), reference, control).numeric_class is NumericClass.IDENTICAL


def test_worst_element_is_named_with_its_values(reference: Tensor, control: Tensor) -> None:
    found = verdict(put(reference, (777, 33), 5.0), reference, control)
    assert (found.metrics.index, found.metrics.elements_over) == ((777, 33), 1)
    assert found.metrics.device_value == 5.0
    assert found.metrics.control_value == float(control[777, 33])


def test_cosine_is_blind_where_the_verdict_is_not(reference: Tensor, control: Tensor) -> None:
    found = verdict(reference * 3, reference, control)
    assert found.metrics.cosine == pytest.approx(1.0)
    assert found.status is Status.DIVERGENT


def test_a_reference_that_is_exact_leaves_room_for_the_last_place_and_no_more(inputs: Tensor) -> None:
    table = inputs[:1024]  # an embedding look-up: no rounding at all
    alternating = torch.ones_like(table).index_fill_(1, torch.arange(0, 64, 2), -1)
    last_place = table.abs().frexp().exponent.sub(24).float().exp2() * alternating
    assert verdict(table + last_place, table, table.double()).status is Status.PASS
    assert verdict(table + 3 * last_place, table, table.double()).status is Status.DIVERGENT
    assert verdict(table + last_place.abs(), table, table.double()).metrics.rule == "systematic"
    assert verdict(table.half().float(), table, table.double()).status is Status.DIVERGENT
    assert verdict(put(table, (3, 3), 0.0), table, table.double()).status is Status.DIVERGENT


def test_a_masked_logit_lends_its_error_to_no_other(reference: Tensor, control: Tensor) -> None:
    masked, truth = put(reference, (slice(None), 0), -1e9 + 32), put(control, (slice(None), 0), -1e9)
    assert verdict(masked, masked, truth).status is Status.PASS
    device = put(masked, (5, 5), masked[5, 5] + 0.01)
    assert verdict(device, masked, truth).metrics.index == (5, 5)
    assert verdict(device, masked, truth).status is Status.DIVERGENT


def test_a_scalar_whose_reference_was_lucky_is_judged_by_its_sibling(reference: Tensor, control: Tensor) -> None:
    def both(loss: float) -> Verdict:
        trees = ((reference, torch.tensor(loss)), (reference, torch.tensor(2.0)), (control, torch.tensor(2.0).double()))
        device, expected, truth = ([Leaf(f"[{i}]", v) for i, v in enumerate(tree)] for tree in trees)
        return judge(device, References(expected, truth))

    assert both(2.000002).status is Status.PASS
    assert both(2.001).status is Status.DIVERGENT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_judged_in_its_own_unit(inputs: Tensor, dtype: torch.dtype) -> None:
    low = inputs[:1024].to(dtype)
    reference, truth, upcast = network(low), network(low.double()), network(low.float()).to(dtype)
    assert verdict(upcast, reference, truth).status is Status.PASS
    for wrong in (reference * 1.1, -reference, reference.roll(1, 0), put(reference, 777, reference[778])):
        assert verdict(wrong, reference, truth).status is Status.DIVERGENT
