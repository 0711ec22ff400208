"""The audit accuses an op whose kernels disagree, and none that only rounds, cancels or overflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.backends.double import forward
from harness.backends.reference import isolated, run_second_path
from harness.numerics.audit import Repair, audit
from tests.harness.numerics.planted import built, total, twice

INF, NAN = float("inf"), float("nan")
EDGES = torch.tensor([0.0, -0.0, 1e-40, 1e-30, 0.1, 1.0, 5.0, 20.0, 88.0, 1e3, 1e8, 1e30, 3e38, INF, NAN] * 9)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_an_op_wrong_on_a_vector_and_right_on_one_element_is_named_with_its_values() -> None:
    found = audit(built(lambda x: twice(x + 1).relu(), torch.full((64,), INF)))
    assert found is not None
    assert found.op == "calipers_planted::twice"
    for words in ("of inf", "torch.float32 gives nan", "fp64 inf", "alone inf"):
        assert words in found.message


def test_the_same_op_is_no_suspect_where_it_is_right() -> None:
    assert audit(built(twice, torch.full((1,), INF))) is None
    assert audit(built(twice, draw(64))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_op_wrong_with_onednn_only_is_a_suspect(dtype: torch.dtype) -> None:
    found = audit(built(lambda x: total(x * x), draw(32, 8).to(dtype)))
    assert found is not None
    assert found.op == "calipers_planted::total"
    assert "without oneDNN" in found.message


def test_what_the_dtype_explains_is_no_suspect() -> None:
    assert audit(built(total, draw(32, 8).bfloat16())) is None  # 1 % is within a few last places of bf16


def test_a_forward_that_raises_is_audited_as_far_as_it_goes() -> None:
    def raises(x: Tensor) -> Tensor:
        if twice(x).isnan().any():
            raise ValueError("no NaN, please")
        return x

    found = audit(built(raises, torch.full((64,), INF)))
    assert found is not None
    assert found.op == "calipers_planted::twice"


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: (x + 1e4) - 1e4, (draw(999),)),
        (lambda x: x.sum() + x.mul(1e8).sum().sub(x.sum() * 1e8), (draw(4096),)),
        (lambda x: (x @ x.T).softmax(-1).log().cumsum(0), (draw(64, 64) * 30,)),
        (lambda x: x * x, (torch.full((64,), 1e30),)),
        (lambda x: x.sum(-1), (torch.tensor([3e38, 3e38, -3e38, -3e38] * 16),)),
        (lambda x: F.layer_norm(x + 1e3, (64,)), (draw(8, 64),)),
        (lambda x: x.var(-1), (draw(8, 64) * 1e-3 + 1e3,)),
        (lambda x: x.mul_(0.1).add_(1).floor_divide_(0.1), (draw(999),)),
        (lambda x: torch.cat(x.max(-1)[:1] + torch.topk(x, 3)[:1] * 3, -1), (draw(3, 3),)),
        (lambda x: torch.dropout(x, 0.5, True) + torch.rand_like(x), (draw(999),)),
        (lambda x: torch.add(x, 1, out=torch.empty(999)).mul(0.3), (draw(999),)),
        (lambda x: torch._foreach_mul([x, x], 0.3), (draw(999),)),
        (lambda x: x.half().float() + x.bfloat16().float(), (draw(999) * 1e5,)),
        (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (draw(1, 2, 33, 16) * 9,)),
        (lambda x: torch.fft.rfft(x).abs(), (draw(999),)),
        (lambda x: torch.view_as_complex(x).mul(1j).exp(), (draw(999, 2),)),
        (lambda a, b: a // b, (torch.tensor([1.0, 0.5, 6.0] * 9), torch.tensor([0.1, 0.1, 0.2] * 9))),
        (lambda i: i / 3, (torch.arange(99),)),
        (lambda x: x.prod(-1), (torch.tensor([1e30, 1e30, 0.0, 1e-30, 1e-30, 1e30, 3.0, 0.5] * 8),)),
        (lambda x: torch.complex(x + 1e3, x.flip(0) + 1e3) / torch.complex(x.flip(0) + 1e3, x + 1e3), (draw(999),)),
        (lambda x: F.scaled_dot_product_attention(x, x, x), (draw(1, 2, 33, 16) * 1e20,)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_cancellation_and_overflow_are_no_suspects(
    function: Callable[..., object], inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    floating = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    assert audit(built(function, *floating)) is None


@pytest.mark.parametrize("op", [F.relu, F.silu, F.softplus, F.hardswish, torch.tanh, torch.exp, torch.rsqrt, torch.sin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_edges_of_common_ops(op: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    assert audit(built(op, EDGES.to(dtype))) is None


def test_the_repair_sets_right_what_is_wrong_and_nothing_else() -> None:
    x = draw(64)
    x[3] = INF
    model = built(lambda x: twice(x) * 0.3, x)
    with_repair = forward(isolated(model), Repair("calipers_planted::twice"))
    plain = forward(isolated(model))
    assert bool(plain[3].isnan())
    assert with_repair[3] == INF
    assert torch.equal(with_repair[:3], plain[:3])
    assert torch.equal(run_second_path(model)[0].value.isnan(), plain.isnan())
