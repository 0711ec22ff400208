"""The order of judgement over a whole output tree, and the reference as a suspect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.tree import walk
from harness.numerics import Raised, References, Suspect, Verdict, judge
from harness.records import NumericClass, Status

NAN, INF = float("nan"), float("inf")


def verdict(device: Any, reference: Any, control: Any = None, second: Any = None) -> Verdict:
    truth, other = (None if tree is None else walk(tree) for tree in (control, second))
    return judge(walk(device), References(walk(reference), truth, other))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(0))


def test_missing_and_unexpected_leaves_are_named(x: Tensor) -> None:
    found = verdict({"a": x, "c": x}, {"a": x, "b": x})
    assert found.status is Status.CONTRACT
    assert "missing ['b']" in found.message
    assert "unexpected ['c']" in found.message
    assert verdict({"a": x, "b": x}, {"a": x, "b": x}).status is Status.PASS


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (torch.ones(1, 32), "shape (1, 32), expected (8, 32)"),
        (torch.ones(8, 32, dtype=torch.float64), "dtype torch.float64, expected torch.float32"),
        (1.0, "is a float, expected a tensor"),
    ],
)
def test_contract_says_what_was_expected(device: Any, words: str) -> None:
    found = verdict(device, torch.ones(8, 32))
    assert (found.status, found.numeric_class) == (Status.CONTRACT, None)
    assert words in found.message


def test_contract_in_one_leaf_outweighs_garbage_in_another(x: Tensor) -> None:
    assert verdict((x + 5, x.double()), (x, x)).status is Status.CONTRACT
    assert verdict((x + 5, x), (x, x)).status is Status.DIVERGENT


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("garbage", [0.0, 100.0])
def test_one_non_finite_element_is_found_whatever_the_rest_is(x: Tensor, value: float, garbage: float) -> None:
    device = x + garbage
    device[3, 5] = value
    found = verdict(device, x, x.double())
    assert (found.status, found.metrics.index, found.metrics.elements_over) == (Status.NON_FINITE, (3, 5), 1)


def test_nan_lost_by_the_device_is_found(x: Tensor) -> None:
    reference = x.clone()
    reference[3, 5] = NAN
    assert verdict(x, reference).status is Status.NON_FINITE
    assert verdict(reference, reference).status is Status.PASS


def test_sign_of_infinity_counts(x: Tensor) -> None:
    plus, minus = x.clone(), x.clone()
    plus[0, 0], minus[0, 0] = INF, -INF
    assert verdict(minus, plus, plus.double()).status is Status.NON_FINITE
    assert verdict(plus, plus, plus.double()).status is Status.PASS


def test_nan_shared_with_the_reference_needs_the_controls_consent(x: Tensor) -> None:
    both = x.clone()
    both[1, 1] = NAN
    assert verdict(both, both, x.double()).status is Status.REFERENCE_SUSPECT
    assert verdict(both, both, both.double()).status is Status.PASS
    assert verdict(both, both).status is Status.PASS


def test_beside_a_shared_nan_the_rest_is_still_judged(x: Tensor) -> None:
    reference = x.clone()
    reference[0, 0] = NAN
    device = reference.clone()
    device[4, 4] += 1
    found = verdict(device, reference, reference.double())
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (4, 4))


def test_overflow_of_the_dtype_is_no_disagreement_with_fp64() -> None:
    truth = torch.tensor([1.0, 1e39, -1e39], dtype=torch.float64)
    reference = truth.float()
    assert verdict(reference, reference, truth).status is Status.PASS
    saturated = torch.tensor([1.0, torch.finfo(torch.float32).max, torch.finfo(torch.float32).min])
    assert verdict(saturated, saturated, truth).status is Status.PASS
    assert verdict(saturated, reference, truth).status is Status.NON_FINITE


def test_message_names_leaf_index_values_and_budgets(x: Tensor) -> None:
    device = x.clone()
    device[2, 7] += 1
    found = verdict({"logits": device, "other": x}, {"logits": x, "other": x})
    assert found.message.startswith("['logits'][2, 7] is ")
    assert "budgets off, 1 of 256 elements over" in found.message
    assert "\n" not in found.message
    assert verdict(x, x).message == ""


def test_metrics_are_of_the_worst_leaf_and_counts_of_all(x: Tensor) -> None:
    slightly, badly = x.clone(), x.clone()
    slightly[0, 0] += 0.1
    badly[5, 6] += 10
    found = verdict((slightly, badly, x), (x, x, x), (x.double(),) * 3)
    assert (found.metrics.leaf, found.metrics.index) == ("[1]", (5, 6))
    assert (found.metrics.elements_over, found.metrics.elements) == (2, 3 * 256)
    assert found.metrics.reference_value == pytest.approx(float(x[5, 6]))
    assert [leaf.status for leaf in found.leaves] == [Status.DIVERGENT, Status.DIVERGENT, Status.PASS]


def test_reference_alone_against_all_others_is_suspect(x: Tensor) -> None:
    wrong, truth = x * 1.5, x.double()
    assert verdict(x, wrong, truth, second=x).status is Status.REFERENCE_SUSPECT
    assert verdict(x, wrong, second=x).status is Status.REFERENCE_SUSPECT
    assert verdict(wrong, x, truth, second=x).status is Status.DIVERGENT
    assert verdict(wrong, x, second=x).status is Status.DIVERGENT


def test_reference_with_another_mask_than_the_second_path_is_suspect() -> None:
    inf, nan = torch.full((64,), INF), torch.full((64,), NAN)  # pytorch#185770: vectorised gelu of inf
    assert verdict(inf, nan, inf.double(), second=inf).status is Status.REFERENCE_SUSPECT
    assert verdict(nan, inf, inf.double(), second=inf).status is Status.NON_FINITE


def test_reference_far_from_fp64_while_the_device_is_right_is_suspect(x: Tensor) -> None:
    found = verdict(x, x + torch.randn(8, 32), x.double())
    assert (found.status, found.numeric_class) == (Status.REFERENCE_SUSPECT, NumericClass.MORE_PRECISE)


def test_both_as_far_from_fp64_is_ill_conditioned_and_the_device_alone_is_not(x: Tensor) -> None:
    noise = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    assert verdict(x + noise[0], x + noise[1], x.double()).status is Status.ILL_CONDITIONED
    assert verdict(x + noise[0], x, x.double()).status is Status.DIVERGENT


def test_a_control_that_lacks_the_leaf_or_has_another_shape_has_no_say(x: Tensor) -> None:
    assert verdict({"a": x}, {"a": x}, {"b": x.double()}).status is Status.PASS
    assert verdict({"a": x}, {"a": x}, {"a": x.double()[:3]}).metrics.control_value is None
    assert verdict({"a": x * 1.01}, {"a": x}, {"b": x.double()}).status is Status.DIVERGENT


def test_an_empty_tree_passes_only_against_an_empty_tree(x: Tensor) -> None:
    assert verdict((), ()).status is Status.PASS
    assert verdict((), (x,)).status is Status.CONTRACT


@pytest.mark.parametrize("device", [NAN, 1.0, INF], ids=["as the reference", "as fp64", "as neither"])
def test_a_reference_with_another_mask_than_fp64_is_in_doubt_whatever_the_device_has(device: float) -> None:
    ours, reference = torch.ones(64), torch.ones(64)
    ours[3], reference[3] = device, NAN
    found = verdict(ours, reference, torch.ones(64).double())
    assert found.status is Status.REFERENCE_SUSPECT
    assert found.needs_second_look


def looked(device: Any, reference: Any, control: Any, **known: Any) -> Verdict:
    return judge(walk(device), References(walk(reference), walk(control), looked=True, **known))


def test_the_suspect_op_is_named() -> None:
    inf, nan = torch.full((64,), INF), torch.full((64,), NAN)
    suspect = Suspect("aten::gelu", "aten::gelu gives nan, fp64 inf, one element alone inf")
    for device in (inf, nan):
        found = looked(device, nan, inf.double(), suspect=suspect)
        assert (found.status, found.op) == (Status.REFERENCE_SUSPECT, "aten::gelu")
        assert "one element alone" in found.message
    assert looked(inf, inf, inf.double(), suspect=suspect).status is Status.PASS


def test_a_suspect_that_both_sides_share_is_still_the_finding(x: Tensor) -> None:
    wrong = x.clone()
    wrong[3, 5] += 2
    assert verdict(wrong, wrong, x.double()).needs_second_look
    found = looked(wrong, wrong, x.double(), suspect=Suspect("aten::conv", "far from fp64"))
    assert (found.status, found.op) == (Status.REFERENCE_SUSPECT, "aten::conv")
    assert looked(wrong, wrong, x.double()).status is not Status.REFERENCE_SUSPECT


@pytest.mark.parametrize("device", [INF, NAN, 1.0])
def test_an_overflow_inside_the_model_that_no_op_is_guilty_of_is_ill_conditioned(device: float) -> None:
    ours, reference = torch.ones(64), torch.ones(64)
    ours[3], reference[3] = device, INF
    found = looked(ours, reference, torch.ones(64).double())
    assert found.status is Status.ILL_CONDITIONED
    assert "overflows in float32" in found.message
    ours[9] = 1.5
    found = looked(ours, reference, torch.ones(64).double())
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (9,))
    ours[9] = NAN
    assert looked(ours, reference, torch.ones(64).double()).status is Status.NON_FINITE


def test_a_pass_beside_a_sound_reference_needs_no_second_look(x: Tensor) -> None:
    noise = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1)) * 1e-6
    found = verdict(x + noise[0], x + noise[1], x.double())
    assert (found.status, found.needs_second_look) == (Status.PASS, False)
    assert verdict(x + 1, x + noise[1], x.double()).needs_second_look


def test_rejections_must_be_shared(x: Tensor) -> None:
    raised, accepted = Raised("ValueError: no"), walk(x)
    assert judge(raised, References(raised)).status is Status.PASS
    assert "both reject" in judge(raised, References(raised)).message
    assert judge(accepted, References(raised)).status is Status.CONTRACT
    assert judge(raised, References(accepted)).status is Status.RUNTIME_ERROR
    assert judge(accepted, References(raised, control=accepted)).status is Status.REFERENCE_SUSPECT
