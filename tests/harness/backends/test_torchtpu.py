"""TorchTPU's lowering route: one process runs every program here, after failures too, and each test looks at one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harness.backends.program import Program
from harness.backends.torchtpu.lowering import classified
from harness.records import Status
from tests.harness.backends.torchtpu_worker import Outcome, capture, run_all

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 5, generator=GENERATOR)
IMAGE = torch.randn(1, 8, 6, 6, generator=GENERATOR)


def block() -> nn.Module:
    """Convolution, norm, residual, pooling, linear: the ops of a ResNet."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.norm(self.conv(x)) + x)
            return self.head(F.max_pool2d(x, 2).mean((2, 3)))

    torch.manual_seed(0)
    return Block()


BLOCK = block()


def attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def many_dtypes(x: torch.Tensor) -> dict[str, Any]:
    return {
        "bfloat16": x.bfloat16() * 2,
        "float16": x.half() * 2,
        "float64": x.double() * 2,
        "int64": torch.arange(5) + 2**40,
        "uint8": (x > 0).to(torch.uint8),
        "bool": x > 0,
        "complex64": torch.complex(x, -x),
        "scalar": x.sum(),
        "empty": x[:0],
    }


def odd_outputs(x: torch.Tensor) -> Any:
    doubled = x * 2
    return {
        "input": x,
        "twice": (doubled, doubled),
        "view": doubled.t(),
        "none": None,
        "number": 7,
        "ones": torch.ones(2),
    }


def asserts_values(x: torch.Tensor) -> torch.Tensor:
    torch._check((x < 100).all().item())
    return x * 2


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    """Exported as a subgraph, with assertions about its tensors' device."""
    with torch.autocast("cpu", enabled=False):
        return x.float().relu() + torch.arange(5)


def writes_to_input(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1).mul_(2)


def grouped(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return F.grouped_mm(rows, matrices, offs=ends)


ROWS = torch.randn(16, 8, generator=GENERATOR).bfloat16()
MATRICES = torch.randn(4, 8, 8, generator=GENERATOR).bfloat16()
ENDS = torch.tensor([3, 8, 8, 16], dtype=torch.int32)

GOOD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "block": (BLOCK, (IMAGE,)),
    "attention": (attention, (torch.randn(1, 2, 4, 8, generator=GENERATOR),)),
    "cumsum of columns": (lambda x: x.cumsum(1), (X,)),
    "cumsum of rows": (lambda x: x.cumsum(0), (X,)),
    "cumsum of integers": (lambda x: (x > 0).cumsum(-1), (X,)),
    "cumsum of doubles": (lambda x: x.double().cumsum(1), (X,)),
    "cumprod": (lambda x: x.cumprod(1), (X,)),
    "cummax": (lambda x: tuple(x.cummax(1)), (X,)),
    "cummin": (lambda x: tuple(x.cummin(0)), (X,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (X,)),
    "flipped cumsum": (lambda x: x.flip(1).cumsum(1).flip(1), (X,)),
    "grouped_mm": (grouped, (ROWS, MATRICES, ENDS)),
    "qr": (lambda x: tuple(torch.linalg.qr(x)), (X,)),
    "writes to input": (writes_to_input, (X.clone(),)),
    "asserts values": (asserts_values, (X,)),
    "subgraph": (in_autocast, (X,)),
    "group_norm, contiguous": (lambda x: F.group_norm(x, 1), (IMAGE,)),
    "nll_loss": (lambda x: F.nll_loss(x, torch.tensor([0, 1, 2])), (X,)),
}
BAD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "hypot": (lambda x: torch.hypot(x, x) + 1, (X,)),
    "mish": (F.mish, (X,)),
    "group_norm, channels_last": (lambda x: F.group_norm(x, 1), (IMAGE.to(memory_format=torch.channels_last),)),
    "nonzero": (torch.nonzero, (X,)),
    "boolean index": (lambda x: x[x > 0].sum(), (X,)),
    "inverse": (torch.linalg.inv, (torch.eye(3),)),
    "random": (lambda x: x + torch.randn(3, 5), (X,)),
}
OTHER: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "many dtypes": (many_dtypes, (X,)),
    "odd outputs": (odd_outputs, (X,)),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What became of every program; the bad ones ran first."""
    programs = {name: capture(function, *inputs) for name, (function, inputs) in {**BAD, **GOOD, **OTHER}.items()}
    return run_all(programs, tmp_path_factory.mktemp("torchtpu"))


def close(left: Any, right: Any) -> bool:
    """Same dtype and shape, and values within rounding."""
    try:
        torch.testing.assert_close(left, right)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", GOOD)
def test_a_good_program_after_bad_ones_agrees_with_eager(outcomes: dict[str, Outcome], name: str) -> None:
    function, inputs = GOOD[name]
    with torch.no_grad():
        expected = function(*(i.clone() for i in inputs))
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    found = outcomes[name].values
    assert all(close(f, e) for f, e in zip(found, expected, strict=True)), (found, expected)
    assert not any(close(f, e + 1) for f, e in zip(found, expected, strict=True)), "the comparison sees nothing"


@pytest.mark.parametrize(("name", "op"), [("hypot", "aten::hypot.out"), ("mish", "aten::mish.out")])
def test_a_missing_op_is_named(outcomes: dict[str, Outcome], name: str, op: str) -> None:
    error = outcomes[name].error
    assert error is not None
    assert (error.status, error.op) == (Status.UNSUPPORTED_OP, op)
    assert f"operator '{op}' is not implemented for TPU" in error.message


def test_a_refused_layout_is_a_lowering_error_of_its_op(outcomes: dict[str, Outcome]) -> None:
    error = outcomes["group_norm, channels_last"].error
    assert error is not None
    assert (error.status, error.op) == (Status.LOWERING_ERROR, "aten::native_group_norm")
    assert "view(): cannot create a view of shape" in error.message


def test_a_shape_that_depends_on_data_is_refused_as_such() -> None:
    refused = classified(RuntimeError("dynamic shapes are not supported"), torch.ops.aten.nonzero.default)
    other = classified(RuntimeError("dynamic shapes are not supported"), torch.ops.aten.relu.default)
    assert (refused.status, refused.op) == (Status.DYNAMIC_SHAPE, "aten::nonzero")
    assert other.status is Status.LOWERING_ERROR


@pytest.mark.parametrize("name", ["nonzero", "boolean index", "inverse", "random"])
def test_a_limit_of_the_route_is_not_called_a_gap(outcomes: dict[str, Outcome], name: str) -> None:
    error = outcomes[name].error
    assert error is not None
    assert error.status is Status.SKIPPED
    assert error.message.startswith("limit of the route, not of TorchTPU")


def test_outputs_come_back_in_their_dtype(outcomes: dict[str, Outcome]) -> None:
    for found, (name, expected) in zip(outcomes["many dtypes"].values, many_dtypes(X).items(), strict=True):
        assert close(found, expected), name
        assert not close(found, expected.to(torch.int32)), name


def test_constants_inputs_and_repeated_outputs_come_back(outcomes: dict[str, Outcome]) -> None:
    observation = outcomes["odd outputs"].observation
    assert observation is not None
    found = {leaf.path: leaf.value for leaf in observation.leaves}
    assert list(found) == ["['input']", "['twice'][0]", "['twice'][1]", "['view']", "['number']", "['ones']"]
    assert torch.equal(found["['input']"], X)
    assert torch.equal(found["['twice'][1]"], X * 2)
    assert torch.equal(found["['view']"], X.t() * 2)
    assert found["['number']"] == 7


def test_executed_ops_are_those_that_reached_a_kernel(outcomes: dict[str, Outcome]) -> None:
    observation = outcomes["block"].observation
    assert observation is not None
    assert observation.executed["aten::convolution"] == 1
    assert "aten::hypot" not in observation.executed


def test_a_composite_op_with_a_kernel_of_its_own_was_executed(outcomes: dict[str, Outcome]) -> None:
    observation = outcomes["nll_loss"].observation
    assert observation is not None
    assert observation.executed["aten::nll_loss_nd"] == 1
    assert "aten::detach" not in observation.executed


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cumsum of rows", "chlo.scan (add) -> stablehlo.while: XLA:CPU cannot run it"),
        ("grouped_mm", "chlo.ragged_dot -> stablehlo.dot_general with every group and select: XLA:CPU cannot run it"),
        ("attention", "scaled_dot_product_attention -> its MATH form: XLA:CPU cannot run the fused Pallas kernel"),
        ("block", None),
    ],
)
def test_what_was_replaced_is_listed(outcomes: dict[str, Outcome], name: str, line: str | None) -> None:
    observation = outcomes[name].observation
    assert observation is not None
    assert observation.substituted == ((line,) if line else ())


def test_a_program_survives_the_trip_through_bytes() -> None:
    program = capture(BLOCK, IMAGE)
    arrived: Program = pickle.loads(pickle.dumps(program))
    with torch.no_grad():
        (leaf,) = arrived.returned(arrived.graph_module()(*arrived.values))
        assert torch.equal(leaf.value, BLOCK(IMAGE))
        assert not torch.equal(leaf.value, BLOCK(IMAGE + 1))
    assert arrived.op_counts == program.op_counts
