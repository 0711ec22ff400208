"""Random weights that let a fault be seen: nothing at zero, the same bits anywhere, and nothing else touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from model_zoo.sources import build
from model_zoo.spec import BuiltModel, ModelSpec
from model_zoo.weights import observable

DIGEST = """
import hashlib, sys, torch
from model_zoo.sources import build
torch.set_num_threads(int(sys.argv[2]))
digest = hashlib.sha256()
for name, tensor in sorted(build(sys.argv[1], int(sys.argv[3])).module.state_dict().items()):
    digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
print(digest.hexdigest())
"""


class Residual(nn.Module):
    """A block as training wants it at the start: its branch is switched off, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.gamma = nn.Parameter(torch.full((8,), 1e-6))
        self.gate = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * self.gamma * self.norm(self.branch(x))


class Growing(nn.Module):
    """Harmless with small weights, infinite or a refusal with ordinary ones."""

    def __init__(self, refuses: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.refuses = refuses
        nn.init.normal_(self.linear.weight, std=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.refuses and y.abs().max() > 0.9:
            raise ValueError("too much")
        return (1000 * y).exp()


def made(module: nn.Module, *args: torch.Tensor) -> BuiltModel:
    built = BuiltModel(ModelSpec.parse("python:a:b"), module.eval(), args)
    module.requires_grad_(False)
    return built


def test_nothing_stays_at_zero_and_what_is_normalised_comes_out_normalised() -> None:
    torch.manual_seed(0)
    built = made(Residual(), 3 + 5 * torch.randn(512, 8))
    assert observable(built, 0)
    module = built.module
    assert all(float(p.abs().min()) > 1e-4 for p in module.parameters())
    assert float(module.gate) >= 0.5
    assert float(module.gamma.min()) >= 0.5
    normal = (module.norm(module.branch(*built.args)) - module.norm.bias) / module.norm.weight
    assert float(normal.mean(0).abs().max()) < 0.1
    assert float((normal.var(0) - 1).abs().max()) < 0.2


def test_stock_weights_have_what_this_is_for() -> None:
    stock, ours = (build("timm:resnet18", weights=w).module for w in ("stock", "observable"))
    assert float(stock.layer1[0].bn2.weight.abs().max()) == 0
    assert float(ours.layer1[0].bn2.weight.abs().min()) > 0.5
    assert float(stock.layer1[0].bn2.running_mean.abs().max()) == 0
    assert float(ours.layer1[0].bn2.running_mean.abs().max()) > 0


@pytest.mark.parametrize("model_id", ["timm:test_resnet", "transformers:bert"])
def test_the_seed_alone_decides_whatever_the_process_and_its_threads(model_id: str) -> None:
    def digest(threads: int, seed: int) -> str:
        command = [sys.executable, "-c", DIGEST, model_id, str(threads), str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert digest(1, 0) == digest(2, 0) != digest(1, 1)


def test_tied_parameters_stay_tied() -> None:
    module = build("transformers:gpt2/GPT2LMHeadModel").module
    assert module.lm_head.weight is module.transformer.wte.weight


@pytest.mark.parametrize(
    ("model_id", "kept"),
    [
        ("transformers:mamba", ("A_log", "dt_proj.bias")),
        ("transformers:rwkv", ("time_decay", "time_mix")),
        ("transformers:clip", ("logit_scale",)),
        ("transformers:swin", ("relative_position_index",)),
        ("transformers:llama", ("inv_freq",)),
    ],
)
def test_values_with_a_meaning_of_their_own_stay(model_id: str, kept: tuple[str, ...]) -> None:
    stock, ours = (build(model_id, weights=w).module for w in ("stock", "observable"))
    for word in kept:
        pairs = [
            (value, dict(ours.named_parameters()).get(name, dict(ours.named_buffers()).get(name)))
            for name, value in [*stock.named_parameters(), *stock.named_buffers()]
            if word in name
        ]
        assert pairs
        assert all(torch.equal(a, b) for a, b in pairs)
    changed = sum(not torch.equal(a, b) for a, b in zip(stock.parameters(), ours.parameters(), strict=True))
    assert changed > len(list(stock.parameters())) / 2


def test_the_calibrating_forward_leaves_nothing_behind() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen.append(1)
            self.linear.weight.div_(2)
            self.last = x
            return self.linear(x.add_(1))

    built = made(Remembers(), torch.zeros(3, 4))
    generator = torch.get_rng_state()
    assert observable(built, 0)
    assert float(built.module.calls) == 0
    assert built.module.seen == []
    assert not hasattr(built.module, "last")
    assert float(built.module.linear.weight.std()) == pytest.approx(0.5, rel=1e-5)
    assert float(built.args[0].abs().max()) == 0
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.parametrize("refuses", [False, True])
def test_a_model_that_ordinary_weights_break_is_told_apart_and_nothing_is_raised(refuses: bool) -> None:
    torch.manual_seed(0)
    assert not observable(made(Growing(refuses), torch.ones(2, 64)), 0)


def test_a_users_weights_are_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_weights.py").write_text(
        "import torch\n\ndef zeros():\n    layer = torch.nn.Linear(2, 2)\n    torch.nn.init.zeros_(layer.weight)\n"
        "    return layer, torch.ones(1, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert float(build("python:own_weights:zeros").module.weight.abs().max()) == 0
