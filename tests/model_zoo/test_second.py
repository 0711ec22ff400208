"""Second inputs: other values, as valid as the first."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from model_zoo.inputs.second import second_inputs
from model_zoo.spec import BuiltModel, ModelSpec


def built(*args: object, **kwargs: object) -> BuiltModel:
    return BuiltModel(ModelSpec("python", "m:f"), nn.Identity(), args, kwargs)


def test_floats_change_places_and_keep_values_shape_and_strides() -> None:
    image = torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last)
    ids = torch.arange(10).flip(0)
    changed = second_inputs(built(image, input_ids=ids), seed=1)
    assert changed is not None
    other, same = changed
    assert not torch.equal(other, image)
    assert torch.equal(other.flatten().sort().values, image.flatten().sort().values)
    assert other.stride() == image.stride()
    assert same is ids, "one input that changes is enough, and tokens go with what they stand beside"


def test_without_floats_token_ids_are_rolled_within_their_rows() -> None:
    ids, mask, positions = torch.tensor([[5, 9, 9, 2], [7, 1, 3, 2]]), torch.ones(2, 4).long(), torch.arange(4)
    changed = second_inputs(built(input_ids=ids, attention_mask=mask, cache=positions), seed=0)
    assert changed is not None
    assert not torch.equal(changed[0], ids)
    assert torch.equal(changed[0].sort(-1).values, ids.sort(-1).values)
    assert changed[1] is mask
    assert changed[2] is positions


@pytest.mark.parametrize(
    "fixed",
    [
        {"attention_mask": torch.randn(2, 9)},
        {"position_ids": torch.tensor([[3, 1, 2]])},
        {"bbox": torch.rand(2, 4)},
        {"image_grid_thw": torch.tensor([[1, 4, 8]])},
        {"x": torch.ones(5)},
        {"x": torch.tensor([0.0, -torch.inf, 0.0])},
        {"x": torch.tensor([True, False])},
        {"x": torch.tensor(3.0)},
        {"x": torch.arange(5)},
        {"x": 3},
        {},
    ],
    ids=repr,
)
def test_what_is_not_safe_to_change_stays(fixed: dict[str, object]) -> None:
    assert second_inputs(built(**fixed), seed=0) is None


def test_strides_with_holes_are_kept() -> None:
    x = torch.randn(4, 6)[:, ::2]
    changed = second_inputs(built(x), seed=0)
    assert changed is not None
    assert changed[0].stride() == (6, 2)


@pytest.mark.parametrize(
    "model_id", ["timm:resnet18", "transformers:bert", "transformers:whisper", "transformers:clip"]
)
def test_a_real_models_output_changes_with_them(model_id: str) -> None:
    from model_zoo.sources import build

    model = build(model_id)
    changed = second_inputs(model, seed=0)
    assert changed is not None
    args, kwargs = pytree.tree_unflatten(changed, pytree.tree_structure((model.args, model.kwargs)))
    with torch.no_grad():
        outputs = [model.module(*a, **k) for a, k in ((model.args, model.kwargs), (args, kwargs))]
    first, second = ([x for x in pytree.tree_leaves(o) if isinstance(x, torch.Tensor)] for o in outputs)
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(bool(torch.isfinite(x).all()) for x in second)
