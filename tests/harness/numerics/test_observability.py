"""Observability: what the perturbation of an op shows, which ops count, and the fingerprint that saves measuring."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness.backends.hidden import with_hidden_states
from harness.backends.reference import run_control, run_reference
from harness.numerics.observability import LEAST, Observability, fingerprint, measure
from model_zoo.sources import build
from model_zoo.spec import BuiltModel, ModelSpec


class Calls(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def made(module: nn.Module, *shape: int) -> BuiltModel:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return BuiltModel(ModelSpec.parse("python:a:b"), module.eval().requires_grad_(False), (x,))


def of(function: Callable[[Tensor], Tensor], *shape: int) -> BuiltModel:
    return made(Calls(function), *(shape or (16, 32)))


def measured(built: BuiltModel, calls: int = 24, seconds: float | None = None) -> Observability:
    return measure(built, run_reference(built).leaves, run_control(built), calls, seconds)


def test_a_branch_that_is_switched_off_is_not_seen_and_one_that_is_on_is() -> None:
    off, on = (measured(of(lambda x, scale=scale: x.exp() * scale + x)) for scale in (1e-9, 1.0))
    assert (off.share, off.calls_total) == (pytest.approx(1 / 3), 3)
    assert off.unseen == ("aten::exp", "aten::mul.Tensor")
    assert (on.share, on.unseen) == (1.0, ())


def test_our_weights_show_what_stock_weights_hide() -> None:
    stock, ours = (measured(build("timm:resnet18", weights=w), calls=12) for w in ("stock", "observable"))
    assert stock.share < LEAST
    assert ours.share >= 0.9


def test_views_copies_and_integers_do_not_count() -> None:
    found = measured(of(lambda x: (x.view(-1).clone().to(torch.float32)[: x.argmax() + 1].sum() + x.t()).contiguous()))
    assert found.calls_total == 2


def test_what_is_written_in_place_counts_and_the_model_stays_as_it_was() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32))
            self.register_buffer("total", torch.zeros(32))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(1)
            self.weight.mul_(1.0)
            return x.mul_(self.weight) + self.total

    built = made(InPlace(), 16, 32)
    before = [t.clone() for t in (built.args[0], built.module.weight, built.module.total)]
    found = measured(built)
    assert (found.share, found.calls_total) == (1.0, 4)
    after = (built.args[0], built.module.weight, built.module.total)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_mask_of_zeros_is_perturbed_too() -> None:
    lowest = torch.finfo(torch.float32).min
    found = measured(of(lambda x: (x + torch.full((32, 32), lowest).triu(1)[:16]).softmax(-1)))
    assert "aten::triu" not in found.unseen
    assert found.unseen == ("aten::full",)  # a thousandth of the least number is as good as the whole


def test_time_cuts_the_sample_short_but_never_to_nothing() -> None:
    found = measured(of(lambda x: x.exp().sin().cos().tanh()), seconds=0)
    assert (found.calls_sampled, found.calls_total) == (1, 4)


def test_a_model_without_floating_ops_hides_nothing() -> None:
    assert measured(of(lambda x: x > 0)).share == 1.0


def test_hidden_states_show_what_the_output_hides() -> None:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.mean(0).argmax(-1)

    torch.manual_seed(0)
    built = made(Choice(), 16, 32)
    assert measured(built).share < LEAST
    assert measured(with_hidden_states(built)).share > LEAST


def test_the_fingerprint_is_that_of_the_graph() -> None:
    bert, other_seed, stock = build("transformers:bert"), build("transformers:bert", 1), build("transformers:bert")
    assert fingerprint(bert) == fingerprint(other_seed) == fingerprint(stock)
    assert fingerprint(of(torch.relu)) != fingerprint(of(torch.relu, 16, 33))
    assert fingerprint(of(lambda x: x.sum(0))) != fingerprint(of(lambda x: x.sum(1)))
