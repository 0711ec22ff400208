"""Facts about inputs made by convention."""

from __future__ import annotations

import pytest
import torch

from model_zoo.inputs import image_batch, inputs_for, token_batch
from model_zoo.inputs.forward import modality_of
from model_zoo.spec import InputsUnknown


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_images_have_batch_channels_height_width() -> None:
    assert image_batch((4, 6), generator(), channels=1).shape == (2, 1, 4, 6)


def test_images_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = image_batch(4, generator())
    torch.manual_seed(2)
    assert torch.equal(first, image_batch(4, generator()))
    assert not torch.equal(first, image_batch(4, generator(1)))


def test_tokens_avoid_special_ids() -> None:
    tokens = token_batch(8, generator(), length=200, avoid={0, 3, 7})
    assert set(tokens.unique().tolist()) == {1, 2, 4, 5, 6}


class Needs(torch.nn.Module):
    """A model whose forward insists on an argument that no convention knows."""

    def forward(self, riddle: torch.Tensor) -> torch.Tensor:
        return riddle


class Config:
    """A config that says nothing."""

    model_type = "none"


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(InputsUnknown, match="'riddle'") as caught:
        inputs_for(Needs(), Config(), 0)
    assert "\n" not in str(caught.value)


class Refuses(torch.nn.Module):
    """A model that accepts no image at all."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        raise ValueError("not\nthis one")


def test_a_refusal_is_reported_in_one_line() -> None:
    with pytest.raises(InputsUnknown, match=r"Refuses\.forward accepts: ValueError: not this one") as caught:
        inputs_for(Refuses(), Config(), 0)
    assert "\n" not in str(caught.value)


class WantsFrames(torch.nn.Module):
    """A model that takes five axes only."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        _batch, _frames, _channels, _height, _width = pixel_values.shape
        return pixel_values


def test_another_layout_is_tried() -> None:
    inputs = inputs_for(WantsFrames(), Config(), 0)
    assert inputs.kwargs["pixel_values"].ndim == 5
    assert inputs.modality == "video"


@pytest.mark.parametrize(
    ("names", "modality"),
    [
        (["input_ids", "attention_mask"], "text"),
        (["input_ids", "decoder_input_ids"], "text-to-text"),
        (["input_ids", "pixel_values"], "multimodal"),
        (["pixel_values"], "image"),
        (["input_features", "decoder_input_ids"], "audio"),
        (["past_values"], "time-series"),
        (["riddle"], "custom"),
    ],
)
def test_modality_follows_from_the_arguments(names: list[str], modality: str) -> None:
    assert modality_of(dict.fromkeys(names)) == modality
