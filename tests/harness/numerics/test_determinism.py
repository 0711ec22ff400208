"""Determinism: two runs are compared by their bits."""

from __future__ import annotations

import pytest
import torch

from harness.backends.tree import Leaf
from harness.numerics.determinism import deterministic, first_difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([NAN, INF, -0.0, 1e-45]),
        torch.tensor([1 + 2j, complex(NAN, 1)]),
        torch.tensor([True, False]),
        torch.tensor([]),
        torch.tensor(3),
        torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
        torch.ones(2, 3).t(),
        NAN,
        "text",
    ],
    ids=repr,
)
def test_a_run_equals_itself(value: object) -> None:
    assert deterministic(lambda: [Leaf("", value)]) == ""


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), "[0] is 0.0 in one run and -0.0 in the next; 1 of 2"),
        (torch.tensor([[1.0, NAN]]), torch.tensor([[1.0, 2.0]]), "[0, 1] is nan in one run and 2.0 in the next"),
        (torch.tensor(1.0), torch.tensor(1.0 + 2**-23), "is 1.0 in one run"),
        (torch.tensor([1j]), torch.tensor([complex(-0.0, 1)]), "1 of 1 elements differ"),
        (torch.tensor([1], dtype=torch.bfloat16), torch.tensor([1], dtype=torch.float16), "torch.float16 of shape"),
        (torch.tensor([True, True]), torch.tensor([True, False]), "[1] is True in one run and False in the next"),
        (2, 3, "is 2 in one run and 3 in the next"),
        (1, True, "is 1 in one run and True in the next"),
    ],
)
def test_a_bit_that_differs_is_found_and_its_place_said(one: object, other: object, said: str) -> None:
    assert said in first_difference([Leaf("", one)], [Leaf("", other)])


def test_the_first_run_that_differs_is_found_and_a_missing_leaf_too() -> None:
    runs = iter([1.0, 1.0, 2.0])
    assert "is 1.0 in one run and 2.0" in deterministic(lambda: [Leaf("", torch.tensor(next(runs)))], times=3)
    assert first_difference([Leaf("['a']", 1)], []) == "one run gave ['a'], the next nothing"
