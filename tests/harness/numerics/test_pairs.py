"""Each kind of value: the right answer passes, a wrong one does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.tree import Leaf
from harness.numerics import References, Verdict, judge
from harness.records import NumericClass, Status


def verdict(device: Any, reference: Any, control: Any = None) -> Verdict:
    return judge(
        [Leaf("", device)], References([Leaf("", reference)], None if control is None else [Leaf("", control)])
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_integers_and_bools_are_exact(dtype: torch.dtype) -> None:
    right = torch.tensor([[0, 1, 1], [0, 1, 0]]).to(dtype)
    wrong = right.clone()
    wrong[0, 2], wrong[1, 1] = 0, 0
    found = verdict(wrong, right)
    assert (found.status, found.metrics.index, found.metrics.elements_over) == (Status.DIVERGENT, (0, 2), 2)
    assert verdict(right.clone(), right).numeric_class is NumericClass.IDENTICAL


def test_large_integers_are_not_compared_through_floats() -> None:
    right = torch.tensor([2**60])
    assert verdict(right + 1, right).status is Status.DIVERGENT


@pytest.mark.parametrize(
    "wrong", [lambda z: z.conj(), lambda z: z * 1.01, lambda z: torch.complex(z.real, z.imag + 1e-3)]
)
def test_complex_is_judged_in_both_parts(wrong: Any) -> None:
    right = torch.randn(64, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert verdict(wrong(right), right, right.to(torch.complex128)).status is Status.DIVERGENT
    assert verdict(right.clone(), right, right.to(torch.complex128)).numeric_class is NumericClass.IDENTICAL


def test_complex_index_is_that_of_the_complex_element() -> None:
    right = torch.zeros(4, 4, dtype=torch.complex64) + 1
    wrong = right.clone()
    wrong[2, 3] += 1j
    found = verdict(wrong, right)
    assert (found.metrics.index, found.metrics.elements) == ((2, 3), 16)


@pytest.mark.parametrize(("right", "wrong"), [("a", "b"), (1, 2), (True, False), (1.0, 1.001), (1 + 2j, 1 - 2j)])
def test_objects_and_numbers(right: Any, wrong: Any) -> None:
    assert verdict(wrong, right).status is Status.DIVERGENT
    assert verdict(right, right).status is Status.PASS


def test_type_of_an_object_counts() -> None:
    assert verdict(1, 1.0).status is Status.CONTRACT
    assert verdict("1", 1).status is Status.CONTRACT


def test_objects_without_equality_are_compared_by_type() -> None:
    class Plain:
        pass

    @dataclass(frozen=True)
    class Valued:
        number: int

    assert verdict(Plain(), Plain()).status is Status.PASS
    assert verdict(Plain(), Valued(1)).status is Status.CONTRACT
    assert verdict(Valued(1), Valued(2)).status is Status.DIVERGENT


def test_arrays_are_compared_element_by_element() -> None:
    right = torch.arange(3).numpy()
    assert verdict(right.copy(), right).status is Status.PASS
    assert verdict(right + 1, right).status is Status.DIVERGENT


def test_float8_is_judged() -> None:
    right = torch.linspace(0.1, 2, 16).to(torch.float8_e4m3fn)
    assert verdict(right.clone(), right).numeric_class is NumericClass.IDENTICAL
    assert verdict((-right.float()).to(right.dtype), right).status is Status.DIVERGENT


def test_empty_tensors_pass_and_their_shape_counts() -> None:
    assert verdict(torch.ones(0, 3), torch.ones(0, 3), torch.ones(0, 3).double()).status is Status.PASS
    assert verdict(torch.ones(0, 4), torch.ones(0, 3)).status is Status.CONTRACT


def test_zero_dimensional_tensors() -> None:
    right = torch.tensor(2.5)
    found = verdict(torch.tensor(2.501), right, right.double())
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, ())
    assert verdict(torch.tensor(2.5000005), right, right.double()).status is Status.PASS


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "expanded"])
def test_memory_layout_is_no_difference_and_hides_none(layout: str) -> None:
    base = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    laid: Tensor = {
        "transposed": base.transpose(2, 3),
        "strided": base[..., ::2],
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "expanded": base[:1].expand(4, 3, 8, 8),
    }[layout]
    plain = laid.clone(memory_format=torch.contiguous_format)
    assert verdict(laid, plain, plain.double()).numeric_class is NumericClass.IDENTICAL
    plain[0, 1, 2, 3] += 1
    found = verdict(laid, plain)
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (0, 1, 2, 3))


def test_transposed_values_of_the_same_shape_are_found() -> None:
    right = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    assert verdict(right.T, right, right.double()).status is Status.DIVERGENT


def test_sign_of_zero_is_not_identical_but_passes() -> None:
    zeros = torch.zeros(8)
    assert verdict(-zeros, zeros, zeros.double()).numeric_class is NumericClass.WITHIN_BUDGET
    assert verdict(zeros.clone(), zeros, zeros.double()).numeric_class is NumericClass.IDENTICAL


def test_subnormals_may_be_flushed_and_normal_numbers_not() -> None:
    subnormal, normal = torch.full((8,), 1e-40), torch.full((8,), 1e-30)
    assert verdict(subnormal * 0, subnormal, subnormal.double()).status is Status.PASS
    assert verdict(normal * 0, normal, normal.double()).status is Status.DIVERGENT


@pytest.mark.parametrize("size", [8, 1000])
def test_another_sign_of_an_exact_subnormal_is_found(size: int) -> None:
    subnormal = torch.full((size,), 1e-40)
    device = subnormal.clone()
    device[3] = -1e-40
    found = verdict(device, subnormal, subnormal.double())
    assert (found.status, found.metrics.index) == (Status.DIVERGENT, (3,))
    assert verdict(torch.zeros(size), subnormal, subnormal.double()).status is Status.PASS


def test_noise_about_zero_may_have_any_sign() -> None:
    noise = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * 1e-40
    assert verdict(noise[0], noise[1], noise[2].double()).status is Status.PASS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_the_reference_only_moves_the_device_may_round_in_its_last_place(dtype: torch.dtype) -> None:
    table = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    eps = torch.finfo(dtype).eps
    signs = torch.ones(64, 32).index_fill_(1, torch.arange(0, 32, 2), -1)
    last = (table.double() + signs * table.double().abs().frexp().exponent.sub(1).double().exp2() * eps).to(dtype)
    assert verdict(last, table, table.double()).status is Status.PASS
    for factor in (1 + 4 * eps, 1 + 1.3 * eps):
        wrong = (table.double() * factor).to(dtype)
        assert verdict(wrong, table, table.double()).status is Status.DIVERGENT
    row = table.clone()
    row[5] = table[6]
    assert verdict(row, table, table.double()).status is Status.DIVERGENT
    zeros = torch.zeros(64, 32, dtype=dtype)
    assert verdict(zeros + 1e-6, zeros, zeros.double()).status is Status.DIVERGENT
