"""OpenVINO: values that agree, wrong ones that show, gaps that are loud in every mode."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from torch import nn

from harness.backends import load_backend
from harness.backends.base import Backend, BackendError, Work
from harness.records import RowKey, Status
from model_zoo.spec import BuiltModel, ModelSpec

MODES = ("convert", "export", "compile")


@pytest.fixture(scope="module", params=MODES)
def any_mode(request: pytest.FixtureRequest) -> Backend:
    return activated(request.param)


@pytest.fixture(scope="module", params=MODES[:2])
def converting(request: pytest.FixtureRequest) -> Backend:
    return activated(request.param)


def activated(mode: str) -> Backend:
    backend = load_backend("openvino")
    if not backend.availability(mode).ok:
        pytest.skip(backend.availability(mode).route)
    backend.activate(mode, threads=1)
    return backend


class Function(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


def work(function: Callable[..., object], *args: object, **kwargs: object) -> Work:
    built = BuiltModel(ModelSpec("python", "m:f"), Function(function).eval(), args, kwargs)
    return Work(RowKey(model="python:m:f", backend="openvino", mode="convert"), 0, lambda: built)


def compiled(backend: Backend, task: Work) -> object:
    return backend.compile(backend.lower(task))


def test_values_agree_and_other_inputs_give_other_values(any_mode: Backend) -> None:
    model = compiled(any_mode, work(lambda x, y: (x * 2 + y).exp(), torch.ones(2, 3), torch.zeros(3)))
    first = any_mode.run(model)
    second = any_mode.run(model, [torch.zeros(2, 3), torch.ones(3)])
    torch.testing.assert_close(first.leaves[0].value, torch.full((2, 3), 2.0).exp())
    torch.testing.assert_close(second.leaves[0].value, torch.full((2, 3), 1.0).exp())
    assert first.executed == {"aten::mul.Tensor": 1, "aten::add.Tensor": 1, "aten::exp": 1}
    assert first.fallback == ()


def test_structure_and_dtypes_are_the_models(converting: Backend) -> None:
    def model(x: torch.Tensor, *, flag: bool, mask: torch.Tensor) -> object:
        whole = x.sum() if flag else x.prod()
        return {"sum": whole, "mask": ~mask, "same": [x, x], "none": None, "empty": x[:0] + 1, "seven": 7}

    x, mask = torch.arange(4), torch.tensor([True, False])
    leaves = converting.run(compiled(converting, work(model, x, flag=True, mask=mask))).leaves
    found = {leaf.path: leaf.value for leaf in leaves}
    assert list(found) == ["['sum']", "['mask']", "['same'][0]", "['same'][1]", "['empty']", "['seven']"]
    assert found["['sum']"].equal(torch.tensor(6))
    assert found["['mask']"].equal(torch.tensor([False, True]))
    assert found["['same'][1]"].equal(x)
    assert found["['empty']"].shape == (0,)
    assert found["['seven']"] == 7


def test_bfloat16_goes_in_and_comes_out(converting: Backend) -> None:
    x = torch.tensor([1.5, -2.0]).bfloat16()
    (leaf,) = converting.run(compiled(converting, work(lambda x: x * 2, x))).leaves
    assert leaf.value.equal(x * 2)
    assert leaf.value.dtype is torch.bfloat16


def test_an_op_without_a_rule_is_unsupported_and_named(converting: Backend) -> None:
    with pytest.raises(BackendError) as raised:
        converting.lower(work(lambda x: torch.hypot(x, x) + 1, torch.ones(3)))
    assert raised.value.status is Status.UNSUPPORTED_OP
    assert raised.value.op == "aten::hypot"


def test_a_rule_that_refuses_an_argument_is_a_lowering_error_and_names_the_op() -> None:
    backend = activated("export")
    with pytest.raises(BackendError) as raised:
        backend.lower(work(lambda x: x.var(1, correction=2), torch.ones(3, 4)))
    assert (raised.value.status, raised.value.op) == (Status.LOWERING_ERROR, "aten::var.correction")
    assert "correction" in raised.value.message


def test_what_compile_leaves_to_eager_is_listed() -> None:
    backend = activated("compile")
    seen = backend.run(compiled(backend, work(lambda x: torch.hypot(x.exp() + 1, x), torch.ones(3))))
    assert seen.fallback == ("aten::hypot",)
    assert "aten::exp" in seen.executed


def test_a_graph_that_openvino_gives_up_on_was_not_executed() -> None:
    backend = activated("compile")
    model = compiled(backend, work(lambda x: (x + 1).var(1, correction=2), torch.ones(3, 4)))
    with pytest.raises(BackendError) as raised:
        backend.run(model)
    assert raised.value.status is Status.NOT_EXECUTED


def test_random_draws_are_a_limit_of_the_route(converting: Backend) -> None:
    with pytest.raises(BackendError) as raised:
        converting.lower(work(lambda x: x + torch.rand(3), torch.ones(3)))
    assert (raised.value.status, raised.value.op) == (Status.SKIPPED, "aten::rand")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("harness.backends.openvino.version", missing)
    found = load_backend("openvino").availability("convert")
    assert not found.ok
    assert found.hint == "pip install 'calipers[openvino]'"
