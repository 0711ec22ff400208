"""Workloads: a training step is what autograd and SGD give, decoding is what a forward over the whole text gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.backends.copies import cast
from harness.backends.program import Program
from harness.backends.reference import run_control, run_reference, run_second_path
from harness.backends.tree import Leaf
from harness.backends.workloads import WorkloadUnfit, as_workload
from harness.backends.workloads.training import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY
from harness.numerics import References, judge
from harness.records import Status
from model_zoo.spec import BuiltModel, ModelSpec


class Net(nn.Module):
    """A convolution, a batch norm, a dropout, a head; and a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 20)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))
        return self.head(x), x.argmax(-1)


def built(module: nn.Module, *args: object) -> BuiltModel:
    return BuiltModel(ModelSpec("python", "m:f"), module.eval().requires_grad_(False), args)


def net(module: nn.Module | None = None) -> BuiltModel:
    torch.manual_seed(0)
    made = Net()
    return built(module or made, torch.randn(4, 3, 12, 12))


def by_path(leaves: Sequence[Leaf]) -> dict[str, Any]:
    return {leaf.path: leaf.value for leaf in leaves}


def verdict_on(device: Sequence[Leaf], model: BuiltModel) -> Status:
    return judge(device, References(run_reference(model).leaves, run_control(model))).status


def test_a_step_is_what_autograd_and_sgd_give_and_leaves_the_model_as_it_was() -> None:
    model = net()
    step = as_workload(model, "training")
    got = by_path(run_reference(step).leaves)
    own = model.module.train().requires_grad_(True)
    own.drop.p = 0.0
    (term,) = step.module.losses
    optimizer = torch.optim.SGD(
        own.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    loss = term(own(*model.args))
    loss.backward()
    optimizer.step()
    assert got["['loss']"] == loss
    for name, parameter in own.named_parameters():
        if name == "unused":
            assert f"['grad'][{name!r}]" not in got
        else:
            torch.testing.assert_close(got[f"['grad'][{name!r}]"], parameter.grad)
            torch.testing.assert_close(got[f"['updated'][{name!r}]"], parameter.detach())
    torch.testing.assert_close(got["['updated']['norm.running_mean']"], own.norm.running_mean)
    assert got["['updated']['norm.num_batches_tracked']"] == 1
    assert step.module.model.norm.num_batches_tracked == 0
    assert by_path(run_reference(step).leaves)["['loss']"] == loss, "a second step is the first again"


def test_the_second_path_and_the_program_of_a_step_agree_with_it() -> None:
    step = as_workload(net(), "training")
    reference = run_reference(step).leaves
    program = Program.capture(step.module, step.args, step.kwargs)
    with torch.no_grad():
        recorded = program.returned(program.graph_module()(*program.values))
    assert [leaf.path for leaf in recorded] == [leaf.path for leaf in reference]
    assert program.op_counts["aten::convolution_backward"] == 1
    for device in (recorded, run_second_path(step)):
        assert verdict_on(device, step) is Status.PASS
    other = Program.capture(step.module, step.args, step.kwargs).with_inputs([torch.zeros(4, 3, 12, 12)])
    with torch.no_grad():
        assert other.returned(other.graph_module()(*other.values))[0].value != reference[0].value


def test_a_gradient_that_is_analytically_zero_is_among_them() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    step = as_workload(net(module), "training")
    gradients = by_path(run_reference(step).leaves)
    assert gradients["['grad']['0.bias']"].abs().max() < 1e-5 * gradients["['grad']['0.weight']"].abs().max()


class ScaledGradient(Net):
    """Its head's weight gets its gradient times `factor`."""

    factor = 1.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.head.weight.requires_grad:
            self.head.weight.register_hook(lambda gradient: gradient * self.factor)
        return super().forward(x)


@pytest.mark.parametrize("factor", [3.0, 1.01, -1.0])
def test_a_gradient_of_the_wrong_magnitude_is_divergent(factor: float) -> None:
    torch.manual_seed(0)
    right, wrong = as_workload(net(), "training"), as_workload(net(), "training")
    wrong.module.model.head.weight.requires_grad_(True)
    wrong.module.model.__class__ = type("Scaled", (ScaledGradient,), {"factor": factor})
    assert verdict_on(run_reference(wrong).leaves, right) is Status.DIVERGENT


def test_a_wrong_momentum_of_a_batch_norm_is_divergent() -> None:
    right, wrong = as_workload(net(), "training"), as_workload(net(), "training")
    wrong.module.model.norm.momentum = 0.11
    found = judge(run_reference(wrong).leaves, References(run_reference(right).leaves, run_control(right)))
    assert found.status is Status.DIVERGENT
    assert "norm.running" in found.message


def test_in_bfloat16_the_step_is_the_same_workload() -> None:
    step = cast(as_workload(net(), "training"), torch.bfloat16)
    leaves = by_path(run_reference(step).leaves)
    assert leaves["['grad']['head.weight']"].dtype is torch.bfloat16
    exact = by_path(run_control(step))["['grad']['head.weight']"]
    assert exact.dtype is torch.float64
    torch.testing.assert_close(leaves["['grad']['head.weight']"].double(), exact, rtol=0.1, atol=0.02)


class Norms(nn.Module):
    """An output of constant norm, one that is masked with -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x @ self.weight
        return {"unit": nn.functional.normalize(x), "masked": x.masked_fill(torch.eye(6).bool(), -torch.inf)}


def test_an_output_of_constant_norm_has_a_gradient_and_a_masked_one_no_nan() -> None:
    torch.manual_seed(0)
    gradient = by_path(run_reference(as_workload(built(Norms(), torch.randn(6, 6)), "training")).leaves)
    assert gradient["['loss']"].isfinite()
    assert gradient["['grad']['weight']"].abs().amin() > 1e-4


@pytest.mark.parametrize(
    ("module", "workload", "said"),
    [
        (nn.ReLU(), "training", "no floating parameter"),
        (nn.Sequential(nn.Linear(3, 3), nn.Flatten(0), nn.Threshold(99.0, 0.0)), "training", "so there is no loss"),
        (nn.Linear(3, 3), "decoding", "Linear does not generate"),
    ],
)
def test_a_model_that_cannot_says_why(module: nn.Module, workload: str, said: str) -> None:
    with pytest.raises(WorkloadUnfit, match=said):
        as_workload(built(module, torch.ones(2, 3)), workload)


def test_a_forward_is_the_model_itself_and_another_word_an_error() -> None:
    model = net()
    assert as_workload(model, "forward") is model
    with pytest.raises(ValueError, match="unknown workload 'sleep'"):
        as_workload(model, "sleep")


@pytest.fixture(scope="module", params=["llama/LlamaForCausalLM", "t5/T5ForConditionalGeneration"])
def decoding(request: pytest.FixtureRequest) -> BuiltModel:
    from model_zoo.sources import build

    return as_workload(build(f"transformers:{request.param}"), "decoding")


def test_decoding_with_a_cache_is_what_a_forward_over_the_whole_text_gives(decoding: BuiltModel) -> None:
    name = "decoder_input_ids" if "decoder_input_ids" in decoding.kwargs else "input_ids"
    prompt = dict(decoding.kwargs)
    tokens = prompt.pop("given_tokens")
    length = prompt[name].shape[1]
    whole = {**prompt, name: torch.cat([prompt[name], tokens], 1)}
    if name == "input_ids":
        whole["attention_mask"] = torch.ones_like(whole[name])
    with torch.no_grad():
        truth = decoding.module.model(**whole).logits[:, length - 1 :]
    got = [leaf.value for leaf in run_reference(decoding).leaves]
    assert tokens.shape[1] == len(got) - 1 == 8
    torch.testing.assert_close(torch.stack(got, 1), truth, rtol=1e-3, atol=1e-4)
    assert verdict_on(run_second_path(decoding), decoding) is Status.PASS


def test_a_stale_key_in_the_cache_is_divergent_from_its_step_on(
    decoding: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import cache_utils

    right = run_reference(decoding).leaves
    control = run_control(decoding)
    update = cache_utils.DynamicLayer.update
    seen: list[int] = []

    def stale(layer: Any, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        if keys.shape[-2] == 1:
            seen.append(1)
            if len(seen) == 5:
                keys = layer.keys[:, :, -1:]
        return update(layer, keys, values, *args, **kwargs)

    monkeypatch.setattr(cache_utils.DynamicLayer, "update", stale)
    found = judge(run_reference(decoding).leaves, References(right, control))
    assert found.status is Status.DIVERGENT
    failed = [leaf.path for leaf in found.leaves if leaf.status is Status.DIVERGENT]
    assert failed
    assert not {"['step'][0]", "['step'][1]"} & set(failed)
