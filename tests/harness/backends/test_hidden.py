"""Hidden states: which blocks, the same model otherwise, and that every consumer of a built model takes it."""

from __future__ import annotations

import pytest
import torch

from harness.backends.hidden import MOST, with_hidden_states
from harness.backends.program import Program
from harness.backends.reference import run_control, run_reference
from harness.backends.tree import walk
from model_zoo.sources import build
from model_zoo.spec import BuiltModel, ModelSpec


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("transformers:bert", "[1]['encoder.layer.0']"),
        ("timm:resnet18", "[1]['layer4.1']"),  # a stage here is a container: taken apart
        ("timm:convnext_atto", "[1]['stages.3']"),
    ],
)
def test_main_blocks_are_returned_beside_an_unchanged_output(model_id: str, expected: str) -> None:
    built = build(model_id)
    hidden = with_hidden_states(built)
    leaves, plain = {x.path: x.value for x in run_reference(hidden).leaves}, run_reference(built).leaves
    assert expected in leaves
    assert 2 <= sum(path.startswith("[1]") for path in leaves) <= MOST
    assert all(torch.equal(leaves[f"[0]{leaf.path}"], leaf.value) for leaf in plain)


def test_evenly_chosen_where_there_are_many_and_the_last_is_among_them() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(50)))
    built = BuiltModel(ModelSpec.parse("python:a:b"), module, (torch.ones(1, 2),))
    output, states = with_hidden_states(built).module(torch.ones(1, 2))
    assert len(states) == MOST
    assert torch.equal(states["49"], output)


def test_a_state_is_what_the_block_returned_not_what_a_later_one_made_of_it() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
    with torch.no_grad():
        module[0].weight.fill_(-1)
        module[0].bias.zero_()
    built = BuiltModel(ModelSpec.parse("python:a:b"), module, (torch.ones(1, 2),))
    _, states = with_hidden_states(built).module(torch.ones(1, 2))
    assert states["0"].tolist() == [[-2.0, -2.0]]
    assert states["1"].tolist() == [[0.0, 0.0]]


def test_a_block_of_two_streams_shows_both() -> None:
    class Streams(torch.nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return pair[0] + 1, pair[1] + 2

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Streams(), Streams()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0]((x, x)))[0]

    built = BuiltModel(ModelSpec.parse("python:a:b"), Model(), (torch.zeros(1),))
    _, states = with_hidden_states(built).module(torch.zeros(1))
    assert [float(x) for x in states["layers.1"]] == [2.0, 4.0]


def test_control_export_and_dynamo_give_the_same_leaves() -> None:
    hidden = with_hidden_states(build("transformers:bert"))
    reference = run_reference(hidden).leaves
    paths = [leaf.path for leaf in reference]
    assert [leaf.path for leaf in run_control(hidden)] == paths

    program = Program.capture(hidden.module, hidden.args, hidden.kwargs)
    returned = program.returned(program.graph_module()(*program.values))
    assert [leaf.path for leaf in returned] == paths
    assert all(torch.allclose(a.value, b.value, atol=1e-5) for a, b in zip(returned, reference, strict=True))

    torch._dynamo.reset()
    compiled = torch.compile(hidden.module, backend="eager", fullgraph=True)
    with torch.no_grad():
        traced = walk(compiled(*hidden.args, **hidden.kwargs))
    assert [leaf.path for leaf in traced] == paths
    assert all(torch.equal(a.value, b.value) for a, b in zip(traced, reference, strict=True))
