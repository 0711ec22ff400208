"""The fp64 control: that it is fp64, also where the model says fp32, and the same function as the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harness.backends.double import ControlUnavailable, run_control
from harness.backends.reference import cast, run_reference
from model_zoo.spec import BuiltModel, ModelSpec


class Function(nn.Module):
    """Computes a function of its inputs and of the tensors that it was given to keep."""

    def __init__(self, function: Callable[..., object], **kept: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.kept = kept

    def forward(self, *args: object) -> object:
        return self.function(*args, **self.kept)


def built(module: nn.Module, *args: object) -> BuiltModel:
    return BuiltModel(ModelSpec("python", "m:f"), module.eval().requires_grad_(False), args)


def control(function: Callable[..., object], *args: torch.Tensor, **kept: torch.Tensor) -> torch.Tensor:
    leaf = run_control(built(Function(function, **kept), *args))[0].value
    assert isinstance(leaf, torch.Tensor)
    return leaf


def distance(found: torch.Tensor, truth: np.ndarray) -> float:
    return float(np.abs(found.double().numpy() - truth).max() / np.abs(truth).max())


class HardCasts(nn.Module):
    """RMSNorm, rotary angles, softmax and a projection, each cast to fp32 by hand as language models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("inv_freq", torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x.float()
        normed = (normed * torch.rsqrt(normed.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        with torch.autocast("cpu", enabled=False):
            angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * self.inv_freq[None].float()  # type: ignore[index]
            rotation = torch.cat([angles.cos(), angles.sin()], -1).to(dtype=x.dtype)
        shares = F.softmax(normed * rotation, dim=-1, dtype=torch.float32).type_as(x)
        return shares @ self.weight.t().float().to(x.dtype)


def test_hard_casts_do_not_round() -> None:
    model = built(HardCasts(), torch.randn(2, 5, 16))
    x, weight = model.args[0].double().numpy(), model.module.weight.double().numpy()  # type: ignore[operator]
    freq = model.module.inv_freq.double().numpy()  # type: ignore[operator]
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    angles = np.arange(5.0)[:, None] * freq[None]
    logits = normed * np.concatenate([np.cos(angles), np.sin(angles)], -1)
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    truth = exps / exps.sum(-1, keepdims=True) @ weight.T
    assert distance(run_control(model)[0].value, truth) < 1e-14
    assert distance(run_reference(model).leaves[0].value, truth) > 1e-8, "plain fp32 would pass as its own control"
    model.module.double()
    assert distance(model.module(model.args[0].double()), truth) > 1e-9, "module.double() alone is no control"


def test_attention_does_not_round() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    found = control(F.scaled_dot_product_attention, q, k, v)
    q64, k64, v64 = (t.double() for t in (q, k, v))
    truth = (torch.softmax(q64 @ k64.transpose(-1, -2) / 4, -1) @ v64).numpy()
    assert distance(found, truth) < 1e-14
    assert distance(F.scaled_dot_product_attention(q, k, v), truth) > 1e-8


def test_a_bfloat16_model_gets_an_fp64_control_of_its_own_weights() -> None:
    torch.manual_seed(0)
    model = cast(built(nn.Linear(8, 4), torch.randn(3, 8)), torch.bfloat16)
    weight, bias = (p.double().numpy() for p in model.module.parameters())
    truth = model.args[0].double().numpy() @ weight.T + bias
    assert distance(run_control(model)[0].value, truth) < 1e-15
    assert distance(run_reference(model).leaves[0].value, truth) > 1e-4


def test_a_mask_of_the_lowest_number_stays_finite_and_the_models_own() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((3,), torch.finfo(x.dtype).min, dtype=x.dtype)
        return x + mask

    found = control(masked, torch.ones(3))
    assert found.dtype is torch.float64
    assert found.tolist() == [torch.finfo(torch.float32).min + 1] * 3


def test_a_branch_on_the_dtype_goes_the_models_way() -> None:
    assert control(lambda x: x * 2 if x.dtype is torch.float32 else x * 3, torch.ones(1)).item() == 2


def test_an_epsilon_taken_from_the_dtype_is_the_models() -> None:
    x = torch.full((4,), 1e-5)
    found = control(lambda x: F.rms_norm(x, (4,)), x)
    truth = x.double() / (x.double().pow(2).mean() + torch.finfo(torch.float32).eps).sqrt()
    torch.testing.assert_close(found, truth, rtol=1e-14, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(F.rms_norm(x.double(), (4,)), truth, rtol=1e-3, atol=0)


def test_infinity_becomes_the_models_greatest_number() -> None:
    found = control(
        lambda x: torch.cat([x.nan_to_num(), x.nan_to_num(0, 7.0)]), torch.tensor([float("inf"), float("-inf")])
    )
    greatest = torch.finfo(torch.float32).max
    assert found.tolist() == [greatest, -greatest, 7.0, -greatest]


def test_integers_divide_in_fp64() -> None:
    assert control(lambda x: x + torch.arange(4) / 3, torch.zeros(4))[1].item() == 1 / 3


def test_constants_made_in_forward_are_fp64() -> None:
    found = control(lambda x: x * torch.tensor(0.1, dtype=torch.float32) + torch.tensor([0.1]), torch.ones(1))
    assert found.item() == 0.1 + 0.1


def test_in_place_ops_write_where_they_should() -> None:
    def write(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        table[1:] = x.float() / 3
        out = torch.zeros(3, dtype=torch.float32)
        torch.add(table[:3], 1.0, out=out)
        return out

    table = torch.zeros(4)
    assert control(write, torch.ones(3), table=table).tolist() == [1.0, 1 + 1 / 3, 1 + 1 / 3]
    assert table.tolist() == [0.0] * 4, "the control wrote to the model's own table"


def test_draws_are_those_of_the_reference() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(20) + torch.rand_like(x) + torch.empty(20).uniform_() + torch.bernoulli(x)

    model = built(Function(draw), torch.full((20,), 0.5))
    reference, found = run_reference(model).leaves[0].value, run_control(model)[0].value
    torch.testing.assert_close(found, reference.double(), rtol=0, atol=1e-6)


def test_integers_stay() -> None:
    found = control(lambda x: x.argmax(-1), torch.tensor([0.0, 2.0, 1.0]))
    assert found.dtype is torch.int64
    assert found.item() == 1


def test_experts_have_a_control() -> None:
    torch.manual_seed(0)
    rows, experts, offs = torch.randn(6, 16), torch.randn(3, 16, 8), torch.tensor([2, 2, 6], dtype=torch.int32)
    found = control(lambda x, w: F.grouped_mm(x, w, offs=offs), rows, experts)
    truth = torch.cat([rows[:2].double() @ experts[0].double(), rows[2:].double() @ experts[2].double()])
    assert distance(found, truth.numpy()) < 1e-14
    assert distance(F.grouped_mm(rows, experts, offs=offs), truth.numpy()) > 1e-9


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x.view(torch.int32), "reads the bits"),
        (lambda x: torch.from_numpy(np.zeros(2, np.float32)).copy_(x), "aten::copy_ writes to a torch.float32"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize(), "no fp64 control"),
    ],
)
def test_what_would_round_unseen_is_refused(function: Callable[..., object], says: str) -> None:
    with pytest.raises(ControlUnavailable, match=says) as refused:
        control(function, torch.ones(2))
    assert "\n" not in str(refused.value)


def test_the_default_dtype_is_put_back() -> None:
    with pytest.raises(ControlUnavailable):
        control(lambda x: 1 / 0, torch.ones(1))
    assert torch.get_default_dtype() is torch.float32
    assert torch.ones(1).double().dtype is torch.float64
