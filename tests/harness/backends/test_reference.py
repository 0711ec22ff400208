"""The reference: what it counts, and that no run sees what another left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from harness.backends import load_backend
from harness.backends.base import Needs, Work
from harness.backends.reference import cast, run_reference, run_second_path
from harness.records import RowKey
from model_zoo.spec import BuiltModel, ModelSpec


def built(module: nn.Module, *args: object, **kwargs: object) -> BuiltModel:
    return BuiltModel(ModelSpec("python", "m:f"), module.eval().requires_grad_(False), args, kwargs)


class Function(nn.Module):
    """A module without state that computes a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object) -> object:
        return self.function(*args)


def test_it_counts_the_overloads_that_ran() -> None:
    run = run_reference(built(Function(lambda x: x.relu() + x.relu() * 2), torch.ones(3)))
    assert run.op_counts == {"aten::relu": 2, "aten::mul.Tensor": 1, "aten::add.Tensor": 1}


def test_a_higher_order_op_runs_and_counts_as_one() -> None:
    run = run_reference(built(Function(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), torch.ones(1)))
    assert run.op_counts["cond"] == 1
    assert run.leaves[0].value.item() == pytest.approx(0.8414710)


def test_counting_changes_no_bit() -> None:
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = built(attention, torch.randn(2, 7, 32))
    with torch.no_grad():
        plain = attention(*model.args)
    (leaf,) = run_reference(model).leaves
    assert torch.equal(leaf.value, plain)
    assert not torch.equal(leaf.value, plain.nextafter(plain + 1))


def test_a_model_that_writes_to_its_input_leaves_it_as_it_was() -> None:
    model = built(Function(lambda x: x.add_(1)), torch.zeros(2))
    first, second = run_reference(model).leaves, run_reference(model).leaves
    assert model.args[0].tolist() == [0, 0]
    assert first[0].value.tolist() == second[0].value.tolist() == [1, 1]


class Counting(nn.Module):
    """Writes to a parameter, to a buffer and to a plain attribute in every forward."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.mul_(2)
        self.seen.add_(1)
        self.cache["sum"] = self.cache.get("sum", torch.zeros(1)) + 1
        return x * self.weight + self.seen + self.cache["sum"]


def test_state_that_forward_writes_is_the_same_for_every_run() -> None:
    model = built(Counting(), torch.ones(1))
    values = [run_reference(model).leaves[0].value.item(), run_second_path(model)[0].value.item()]
    assert values == [4.0, 4.0]
    with torch.no_grad():
        again = [model.module(*model.args).item() for _ in range(2)]
    assert again == [4.0, 8.0], "without a copy per run the second run is another"


def test_draws_in_forward_are_the_same_in_every_run() -> None:
    model = built(Function(lambda x: x + torch.rand(3)), torch.zeros(3))
    state = torch.get_rng_state()
    assert torch.equal(run_reference(model).leaves[0].value, run_reference(model).leaves[0].value)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_second_path_takes_another_layout_one_thread_and_no_onednn(threads: int) -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append((x.is_contiguous(), torch.get_num_threads(), torch._C._get_mkldnn_enabled()))
        return x

    model = built(Function(look), torch.randn(2, 3, 4, 4))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run_reference(model)
        run_second_path(model)
        assert seen == [(True, threads, True), (False, 1, False)]
        assert (torch.get_num_threads(), torch._C._get_mkldnn_enabled()) == (threads, True)
    finally:
        torch.set_num_threads(before)


def test_the_second_path_agrees_up_to_rounding_and_is_not_the_same_run() -> None:
    torch.manual_seed(0)
    model = built(nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3)), torch.randn(2, 16, 24, 24))
    first, second = run_reference(model).leaves[0].value, run_second_path(model)[0].value
    torch.testing.assert_close(second, first)
    assert not torch.equal(second, first)


def test_the_second_path_keeps_the_layout_of_a_model_that_needs_it() -> None:
    model = built(Function(lambda x: x.view(-1) * 2), torch.randn(2, 3, 4, 4))
    assert torch.equal(run_second_path(model)[0].value, run_reference(model).leaves[0].value)


def test_cast_changes_floats_and_nothing_else() -> None:
    model = built(nn.Embedding(5, 3), torch.tensor([1, 2]))
    half = cast(model, torch.bfloat16)
    assert half.args[0].dtype is torch.int64
    assert run_reference(half).leaves[0].value.dtype is torch.bfloat16
    assert next(model.module.parameters()).dtype is torch.float32


def test_the_backend_runs_each_of_its_modes() -> None:
    backend = load_backend("reference")
    assert backend.needs is Needs.MODULE
    assert backend.default_mode() == "eager"
    dtypes = {}
    for mode in backend.modes:
        backend.activate(mode, threads=1)
        key = RowKey(model="python:m:f", backend="reference", mode=mode)
        work = Work(key, 0, lambda: built(nn.Linear(3, 2), torch.ones(1, 3)))
        seen = backend.run(backend.compile(backend.lower(work)))
        assert seen.executed["aten::addmm"] == 1
        dtypes[mode] = seen.leaves[0].value.dtype
    single = dict.fromkeys(("eager", "threads", "second-path"), torch.float32)
    assert dtypes == {**single, "double": torch.float64}
