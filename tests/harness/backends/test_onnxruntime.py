"""ONNX Runtime: values that agree, and whose gap it is when something is missing, with the op."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from torch import nn

from harness.backends import load_backend
from harness.backends.base import Backend, BackendError, Observation, Work
from harness.backends.program import Program
from harness.records import RowKey, Status
from model_zoo.spec import BuiltModel, ModelSpec


@pytest.fixture(scope="module")
def backend() -> Backend:
    backend = load_backend("onnxruntime")
    if not backend.availability().ok:
        pytest.skip(backend.availability().route)
    backend.activate("export", threads=1)
    return backend


class Function(nn.Module):
    """A function with a buffer that its forward writes to."""

    calls: torch.Tensor

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, *args: object, **kwargs: object) -> object:
        self.calls.add_(1)
        return self.function(*args, **kwargs)


def work(function: Callable[..., object], *args: object, **kwargs: object) -> Work:
    built = BuiltModel(ModelSpec("python", "m:f"), Function(function).eval(), args, kwargs)
    program = Program.capture(built.module, args, kwargs)
    return Work(RowKey(model="python:m:f", backend="onnxruntime", mode="export"), 0, lambda: built, program)


def run(backend: Backend, task: Work, inputs: list[torch.Tensor] | None = None) -> Observation:
    return backend.run(backend.compile(backend.lower(task)), inputs)


def test_values_agree_and_other_inputs_give_other_values(backend: Backend) -> None:
    task = work(lambda x, y: (x * 2 + y).exp(), torch.ones(2, 3), torch.zeros(3))
    model = backend.compile(backend.lower(task))
    first, second = backend.run(model), backend.run(model, [torch.zeros(2, 3), torch.ones(3)])
    torch.testing.assert_close(first.leaves[0].value, torch.full((2, 3), 2.0).exp())
    torch.testing.assert_close(second.leaves[0].value, torch.full((2, 3), 1.0).exp())
    assert first.executed == {"aten::mul.Tensor": 1, "aten::add.Tensor": 1, "aten::exp": 1}


def test_structure_and_dtypes_are_the_models(backend: Backend) -> None:
    def model(x: torch.Tensor, *, flag: bool, mask: torch.Tensor) -> object:
        whole = x.sum() if flag else x.prod()
        return {"sum": whole, "mask": ~mask, "same": [x, x], "none": None, "empty": x[:0] + 1, "seven": 7}

    x, mask = torch.arange(4), torch.tensor([True, False])
    found = {leaf.path: leaf.value for leaf in run(backend, work(model, x, flag=True, mask=mask)).leaves}
    assert list(found) == ["['sum']", "['mask']", "['same'][0]", "['same'][1]", "['empty']", "['seven']"]
    assert found["['sum']"].equal(torch.tensor(6))
    assert found["['mask']"].equal(torch.tensor([False, True]))
    assert found["['same'][1]"].equal(x)
    assert found["['empty']"].shape == (0,)
    assert found["['seven']"] == 7


def test_bfloat16_goes_in_and_comes_out(backend: Backend) -> None:
    x = torch.tensor([1.5, -2.0]).bfloat16()
    (leaf,) = run(backend, work(lambda x: x.reshape(2, 1), x)).leaves
    assert leaf.value.equal(x.reshape(2, 1))
    assert leaf.value.dtype is torch.bfloat16


def test_an_op_that_the_exporter_does_not_know_is_unsupported_and_named(backend: Backend) -> None:
    with pytest.raises(BackendError) as raised:
        backend.lower(work(lambda x: torch.kthvalue(x + 1, 2)[0], torch.ones(3)))
    assert (raised.value.status, raised.value.op) == (Status.UNSUPPORTED_OP, "aten::kthvalue")


def test_a_translation_that_fails_is_a_lowering_error_and_names_the_op(backend: Backend) -> None:
    with pytest.raises(BackendError) as raised:
        backend.lower(work(lambda x: torch.amax(x + 1), torch.ones(2, 3)))
    assert (raised.value.status, raised.value.op) == (Status.LOWERING_ERROR, "aten::amax")


def test_a_node_that_the_runtime_refuses_leads_back_to_its_op(backend: Backend) -> None:
    lowered = backend.lower(work(lambda x, w: torch.conv1d(x + 1, w), *[torch.ones(1, 1, 4).bfloat16()] * 2))
    with pytest.raises(BackendError) as raised:
        backend.run(backend.compile(lowered))
    assert raised.value.status in (Status.COMPILE_ERROR, Status.UNSUPPORTED_OP)
    assert raised.value.op == "aten::conv1d"


def test_random_draws_are_a_limit_of_the_route(backend: Backend) -> None:
    with pytest.raises(BackendError) as raised:
        backend.lower(work(lambda x: x + torch.rand(3), torch.ones(3)))
    assert (raised.value.status, raised.value.op) == (Status.SKIPPED, "aten::rand")


def test_without_a_package_it_says_which_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("harness.backends.onnxruntime.version", missing)
    found = load_backend("onnxruntime").availability("export")
    assert not found.ok
    assert "onnxscript" in found.route
    assert found.hint == "pip install 'calipers[onnx]'"
