"""Inductor: one model compiled, state kept between its calls, and its errors as statuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from harness.backends import load_backend
from harness.backends.base import Backend, BackendError, Work
from harness.backends.inductor import named_op
from harness.records import RowKey, Stage, Status
from model_zoo.spec import BuiltModel, ModelSpec

CXX = "harness.backends.inductor.shutil.which"


@pytest.fixture(scope="module")
def inductor() -> Iterator[Backend]:
    backend = load_backend("inductor")
    found = backend.availability()
    if not found.ok:
        pytest.skip(found.route)
    backend.activate("compile", threads=1)
    yield backend
    torch._dynamo.reset()


def work(module: nn.Module, *args: object) -> Work:
    built = BuiltModel(ModelSpec("python", "m:f"), module.eval().requires_grad_(False), args)
    return Work(RowKey(model="python:m:f", backend="inductor", mode="compile"), 0, lambda: built)


class Stateful(nn.Module):
    """Counts its calls in a buffer, draws noise, and breaks the graph once."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = x.relu() + self.calls + torch.rand(3)
        torch._dynamo.graph_break()
        return x * 2


def test_it_compiles_runs_and_keeps_state_and_draws(inductor: Backend) -> None:
    from harness.backends.reference import run_reference

    task = work(Stateful(), torch.tensor([-1.0, 0.0, 2.0]))
    compiled = inductor.compile(inductor.lower(task))
    first, second = inductor.run(compiled), inductor.run(compiled)
    truth = run_reference(task.build()).leaves[0].value
    torch.testing.assert_close(first.leaves[0].value, truth)
    torch.testing.assert_close(second.leaves[0].value, truth)
    assert first.executed["aten::relu"] == 1, "the count is of the compiled graphs, not of the calls"
    assert len(first.substituted) == 1, "the graph break is noticed"
    assert "graph break" in first.substituted[0]
    assert next(task.build().module.buffers()).item() == 0


def test_a_model_that_fails_to_compile_is_a_compile_error_with_its_op(
    inductor: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import lowering

    def no(*_: object, **__: object) -> None:
        raise NotImplementedError("no loop for it")

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.hypot.default, no)

    class Hypot(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.hypot(x, x)

    with pytest.raises(BackendError) as failed:
        inductor.compile(inductor.lower(work(Hypot(), torch.ones(2))))
    assert failed.value.status is Status.COMPILE_ERROR
    assert failed.value.op == "aten::hypot"
    assert "no loop for it" in failed.value.message


def test_a_model_without_ops_did_not_run(inductor: Backend) -> None:
    with pytest.raises(BackendError) as failed:
        inductor.run(inductor.compile(inductor.lower(work(nn.Identity(), torch.ones(2)))))
    assert failed.value.status is Status.NOT_EXECUTED


def test_without_a_compiler_it_is_unavailable_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CXX, lambda _: None)
    found = load_backend("inductor").availability("compile")
    assert not found.ok
    assert "g++" in found.hint


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("LoweringException: E\n  target: aten.hypot.default\n", "aten::hypot"),
        ("could not run aten::add.Tensor on it", "aten::add.Tensor"),
        ("no op here, only at ten past", None),
    ],
)
def test_the_op_is_read_from_the_message(text: str, op: str | None) -> None:
    assert named_op(text) == op


def test_an_error_of_the_models_own_keeps_its_stage() -> None:
    failed = load_backend("inductor").classify(Stage.RUN, ValueError("bad"))
    assert (failed.status, failed.message) == (Status.RUNTIME_ERROR, "ValueError: bad")


@pytest.mark.slow
def test_a_training_step_is_compiled_forward_and_backward(inductor: Backend) -> None:
    from harness.backends.reference import run_control, run_reference
    from harness.backends.workloads import as_workload
    from harness.numerics import References, judge

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    built = BuiltModel(ModelSpec("python", "m:f"), module.eval().requires_grad_(False), (torch.randn(4, 3, 12, 12),))
    step = as_workload(built, "training")
    task = Work(RowKey(model="python:m:f", backend="inductor", mode="compile"), 0, lambda: step)
    compiled = inductor.compile(inductor.lower(task))
    seen = inductor.run(compiled)
    assert seen.executed["aten::convolution_backward"] == 1
    references = References(run_reference(step).leaves, run_control(step))
    assert judge(seen.leaves, references).status is Status.PASS
    assert judge(inductor.run(compiled).leaves, references).status is Status.PASS, "the state is as before"
