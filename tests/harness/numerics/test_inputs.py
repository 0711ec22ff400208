"""Outputs that no longer depend on the input, and outputs that are one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.tree import Leaf, walk
from harness.numerics import References, aliases, collapse, judge, unmoved
from harness.records import Status


@pytest.fixture
def two() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 8, generator=generator)


def test_a_constant_output_is_found_by_a_second_input(two: tuple[Tensor, Tensor]) -> None:
    first, second = two
    assert judge(walk(first), References(walk(first), walk(first.double()))).status is Status.PASS
    assert unmoved(walk(first), walk(first)) == ("",)
    found = collapse(walk(first), walk(first), walk(first), walk(second))
    assert found.status is Status.DIVERGENT
    assert "does not depend on the input" in found.message
    nearly = first + 1e-4 * (second - first)
    assert unmoved(walk(first), walk(nearly)) == ("",)
    assert collapse(walk(first), walk(nearly), walk(first), walk(second)).status is Status.DIVERGENT


def test_an_output_that_moves_or_that_the_reference_keeps_is_no_collapse(two: tuple[Tensor, Tensor]) -> None:
    first, second = two
    assert not unmoved(walk(first), walk(second))
    assert collapse(walk(first), walk(second), walk(first), walk(second)).status is Status.PASS
    assert collapse(walk(first), walk(first), walk(first), walk(first)).status is Status.PASS
    assert collapse(walk(first), walk(first), walk(first), walk(first + 1e-6)).status is Status.PASS


def test_one_output_of_several_that_stands_still_is_named(two: tuple[Tensor, Tensor]) -> None:
    device = [walk({"a": x, "b": two[0]}) for x in two]
    reference = [walk({"a": x, "b": x}) for x in two]
    assert unmoved(*device) == ("['b']",)
    assert collapse(*device, *reference).message.startswith("['b']")


def test_an_output_that_shares_memory_with_an_input_must_do_so_on_both_sides(two: tuple[Tensor, Tensor]) -> None:
    x, other = two
    view, copy = walk((x.view(-1), x + 1)), walk((x.flatten().clone(), x + 1))
    assert aliases(view, [other, x]) == {("[0]", 1)}
    assert aliases(copy, [other, x]) == frozenset()
    references = References(view, aliases=aliases(view, [other, x]))
    found = judge(copy, references, aliases(copy, [other, x]))
    assert found.status is Status.CONTRACT
    assert "[0] shares no memory with input 1" in found.message
    assert judge(view, references, aliases(view, [other, x])).status is Status.PASS
    assert judge(copy, references).status is Status.PASS
    assert judge([Leaf("[0]", x), *copy[1:]], references, frozenset()).status is Status.CONTRACT
