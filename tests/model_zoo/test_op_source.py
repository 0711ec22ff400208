"""Single ops: every probe moves its op's output, can be exported, and depends on the seed alone."""

from __future__ import annotations

import pytest
import torch

from harness.backends.double import run_control
from harness.backends.program import Program
from harness.backends.reference import run_reference
from harness.backends.tree import Leaf, walk
from harness.numerics import References, judge
from harness.numerics.probes import CHANGED, DEFAULT, ignored_argument
from model_zoo.sources import build, resolve, source
from model_zoo.sources.op import argument_of
from model_zoo.spec import UnknownModel

NAMES = source("op").names()
PROBES = [name for name in NAMES if "(" in name]


def outputs(name: str, seed: int = 0) -> tuple[Leaf, ...]:
    built = build(f"op:{name}", seed)
    with torch.no_grad():
        return walk(built.module(*built.args, **built.kwargs))


def standing_still(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """What a device gives that ignores the argument."""
    default = [leaf for leaf in leaves if leaf.path.startswith(DEFAULT)]
    return (*default, *(Leaf(leaf.path.replace(DEFAULT, CHANGED, 1), leaf.value) for leaf in default))


def test_there_are_enough() -> None:
    assert len({build(f"op:{name}").family for name in NAMES if "(" not in name}) >= 80
    assert len(PROBES) >= 200


@pytest.mark.parametrize("seed", [0, 1])
def test_every_changed_argument_changes_the_output(seed: int) -> None:
    heeded = {name: outputs(name, seed) for name in PROBES}
    assert [name for name, leaves in heeded.items() if not ignored_argument(standing_still(leaves), leaves)] == []
    assert [name for name, leaves in heeded.items() if ignored_argument(leaves, leaves)] == []


@pytest.mark.slow
def test_every_op_can_be_exported_and_agrees_with_fp64() -> None:
    wrong = {}
    for name in NAMES:
        built = build(f"op:{name}")
        program = Program.capture(built.module, built.args, built.kwargs)
        reference = run_reference(built).leaves
        exported = program.returned(program.graph_module()(*program.values))
        for path, leaves, control in (("exported", exported, None), ("fp64", reference, run_control(built))):
            verdict = judge(leaves, References(reference, control))
            if not verdict.status.is_pass:
                wrong[f"{name}, {path}"] = verdict.message
    assert wrong == {}


def test_an_op_is_one_call_and_a_probe_two() -> None:
    (plain,) = outputs("softplus")
    default, changed = outputs("softplus(beta=2.0)")
    assert (default.path, changed.path) == ("['default']", "['changed']")
    assert torch.equal(default.value, plain.value)
    x = build("op:softplus").kwargs["input"]
    assert torch.equal(changed.value, torch.nn.functional.softplus(x, beta=2.0))


def test_what_is_held_belongs_to_the_module() -> None:
    built = build("op:batch_norm(eps=1.0)")
    assert set(built.kwargs) == {"input"}
    assert {name for name, _ in built.module.named_buffers()} == {"held_running_mean", "held_running_var"}
    assert (built.family, built.modality) == ("batch_norm", "custom")


def test_a_probe_names_its_argument() -> None:
    assert argument_of("op:addmm(beta=0.5)") == "beta"
    assert argument_of("op:linalg.vector_norm-dim(dim=0)") == "dim"
    assert argument_of("op:softplus") is None
    assert argument_of("timm:resnet18") is None


def test_ids_resolve_by_name_and_by_glob() -> None:
    assert [str(s) for s in resolve("op:pad(pad=(2,1,1,2))")] == ["op:pad(pad=(2,1,1,2))"]
    assert len(resolve("op:*")) == len(NAMES)
    assert len(resolve("op:*(*")) == len(PROBES)
    with pytest.raises(UnknownModel, match=r"did you mean .*op:softplus\(beta=2.0\)"):
        resolve("op:softplus(beta=2)")


def test_the_seed_decides_the_inputs() -> None:
    one, same, other = build("op:add", 1), build("op:add", 1), build("op:add", 2)
    assert torch.equal(one.kwargs["input"], same.kwargs["input"])
    assert not torch.equal(one.kwargs["input"], other.kwargs["input"])


def test_nothing_large_hides_in_the_table() -> None:
    for name in NAMES:
        built = build(f"op:{name}")
        tensors = [*torch.utils._pytree.tree_leaves(built.kwargs), *built.module.buffers()]
        assert sum(t.numel() for t in tensors) <= 10_000, name
