"""Greedy decoding as text: tokens that differ, and near-ties that do not count."""

from __future__ import annotations

import torch

from harness.backends.tree import Leaf
from harness.numerics.decoding import Decoding, agreement


def logits(steps: int = 4, batch: int = 2, vocabulary: int = 400) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, vocabulary, generator=generator, dtype=torch.float64) for _ in range(steps)]


def leaves(values: list[torch.Tensor], dtype: torch.dtype = torch.float32) -> list[Leaf]:
    return [Leaf(f"['step'][{i}]", value.to(dtype)) for i, value in enumerate(values)]


def swapped(value: torch.Tensor, row: int, gap: float) -> torch.Tensor:
    """The logits with the second best token of a row put `gap` above the best."""
    value = value.clone()
    best, second = value[row].topk(2).indices.tolist()
    value[row, second] = value[row, best] + gap
    return value


def test_a_token_that_differs_is_a_difference_at_its_step() -> None:
    truth = logits()
    device = [*truth[:2], swapped(truth[2], 1, 0.5), truth[3]]
    assert agreement(leaves(device), leaves(truth), truth_of(truth)) == Decoding(2, 7 / 8, 0)


def test_a_near_tie_is_told_apart_from_it() -> None:
    truth = logits()
    truth[1] = swapped(truth[1], 0, 1e-6)
    reference, device = leaves(truth), leaves([truth[0], swapped(truth[1], 0, 1e-6), *truth[2:]])
    assert agreement(device, reference, truth_of(truth)) == Decoding(None, 1.0, 1)
    assert agreement(device, reference) == Decoding(None, 1.0, 1), "also without a control"


def test_in_bfloat16_a_tie_is_wider() -> None:
    truth = logits()
    best, second = truth[0][0].topk(2).indices.tolist()
    truth[0][0, second] = truth[0][0, best] * (1 - 2**-9)
    device = [truth[0].clone(), *truth[1:]]
    device[0][0, second] *= 1 + 2**-7
    narrow = agreement(leaves(device, torch.bfloat16), leaves(truth, torch.bfloat16), truth_of(truth))
    assert narrow == Decoding(None, 1.0, 1)
    assert agreement(leaves(device), leaves(truth), truth_of(truth)).first_difference == 0


def test_masked_logits_nan_and_a_missing_step_are_differences() -> None:
    truth = logits()
    truth[0][:, 5:9] = -torch.inf
    chosen_masked = truth[0].clone()
    chosen_masked[0, 6] = 99.0
    assert agreement(leaves([chosen_masked, *truth[1:]]), leaves(truth), truth_of(truth)).first_difference == 0
    broken = [truth[0], torch.full_like(truth[1], torch.nan), *truth[2:]]
    assert agreement(leaves(broken), leaves(truth), truth_of(truth)).first_difference == 1
    assert agreement(leaves(truth[:3]), leaves(truth)).first_difference == 3


def truth_of(values: list[torch.Tensor]) -> list[Leaf]:
    return leaves(values, torch.float64)
