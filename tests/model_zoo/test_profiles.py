"""Each profile changes what it says and nothing else, the same in any process, or says in one line why it cannot."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model_zoo.inputs.profiles import ProfileUnfit, apply
from model_zoo.profiles import PROFILES, Profile, near, rotation
from model_zoo.sources import build
from model_zoo.spec import BuiltModel, ModelSpec, ZooError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(32).view(2, 16) % 10


class Any2d(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-1, -2))


class Patches(nn.Module):
    """Takes images of its own size only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 3, 32, 32).sum((-1, -2))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.words(input_ids)
        allowed = attention_mask[:, None, :].bool().expand(-1, words.shape[1], -1)
        return nn.functional.scaled_dot_product_attention(words, words, words, attn_mask=allowed)


def images(module: nn.Module | None = None, value: Tensor = IMAGES) -> BuiltModel:
    return BuiltModel(ModelSpec("python", "tests:images"), (module or Any2d()).eval(), (value,))


def text() -> BuiltModel:
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    return BuiltModel(ModelSpec("python", "tests:text"), Text().eval().requires_grad_(False), (), inputs)


def image(profile: str, seed: int = 0, **more: Any) -> Tensor:
    changed = apply(images(**more), profile, seed).args[0]
    assert isinstance(changed, Tensor)
    return changed


def test_gaussian_leaves_the_model_as_it_is() -> None:
    built = images()
    assert apply(built, "gaussian", 0) is built


@pytest.mark.parametrize("profile", [p for p in PROFILES if p not in ("gaussian", "integer-edges", "masked-rows")])
def test_a_profile_keeps_the_module_and_the_drawn_tensors(profile: str) -> None:
    before, built = IMAGES.clone(), images()
    changed = apply(built, profile, 3)
    assert changed.module is built.module
    assert torch.equal(IMAGES, before)
    again = apply(images(), profile, 3).args[0]
    assert torch.equal(changed.args[0].nan_to_num(9.0), again.nan_to_num(9.0))
    assert changed.args[0].stride() == again.stride()


@pytest.mark.parametrize(
    ("profile", "least", "most"),
    [("offset", 990, 1010), ("tiny", 0, 1e-19), ("huge", 1e15, 1e16), ("large-logits", 100, 1000)],
)
def test_scales(profile: str, least: float, most: float) -> None:
    largest = float(image(profile).abs().max())
    assert least <= largest <= most


def test_squares_of_tiny_values_are_subnormal() -> None:
    squares = image("tiny").square()
    assert bool(((squares > 0) & (squares < torch.finfo(torch.float32).smallest_normal)).any())


def counts(value: Tensor) -> tuple[int, int, int]:
    return int(value.isnan().sum()), int(value.isposinf().sum()), int(value.isneginf().sum())


def test_non_finite_values_spare_the_last_row() -> None:
    value = image("non-finite")
    assert (counts(value[0]), counts(value[1])) == ((1, 1, 1), (0, 0, 0))
    zeros = value == 0
    assert bool(zeros[1].any())
    assert bool(torch.signbit(value[zeros]).all())
    assert not torch.equal(image("non-finite", 0).isnan(), image("non-finite", 1).isnan())


def test_non_finite_values_come_in_turn_where_there_are_rows_enough() -> None:
    value = image("non-finite", value=IMAGES.view(6, 1, 32, 32))
    in_turn = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, 0)]
    assert [counts(row) for row in value] == in_turn
    assert counts(image("non-finite", value=IMAGES[:1])) == (1, 1, 1)


def test_integer_edges_leave_the_vocabulary_and_the_mask_alone() -> None:
    built = apply(text(), "integer-edges", 0)
    ids = built.kwargs["input_ids"]
    assert {-1, 2**31, 2**32 + 1, -(2**63)} <= set(ids.flatten().tolist())
    assert bool(built.kwargs["attention_mask"].all())
    with pytest.raises(IndexError):
        built.module(**built.kwargs)
    assert [p for p in Profile if p.expects_rejection] == [Profile.INTEGER_EDGES]


def test_edges_are_those_of_the_dtype() -> None:
    small = image("integer-edges", value=torch.full((2, 3, 8, 8), 7, dtype=torch.uint8))
    assert {0, 255, 127, 128, 7} == set(small.flatten().tolist())


def test_a_masked_row_shuts_out_everything() -> None:
    mask = apply(text(), "masked-rows", 0).kwargs["attention_mask"]
    assert mask.tolist() == [[0] * 16, [0] * 8 + [1] * 8]


@pytest.mark.parametrize(
    ("mask", "shut"),
    [
        (torch.zeros(2, 4, dtype=torch.bool), True),  # True leaves out
        (torch.ones(2, 4), 0.0),
        (torch.zeros(2, 4), -torch.inf),  # added to the scores
    ],
)
def test_what_shuts_depends_on_the_mask(mask: Tensor, shut: float) -> None:
    built = BuiltModel(ModelSpec("python", "tests:mask"), Any2d(), (), {"padding_mask": mask})
    masked = apply(built, "masked-rows", 0).kwargs["padding_mask"]
    assert bool((masked[0] == shut).all())
    assert bool((masked[1, 2:] == mask[1, 2:]).all())


def test_a_picture_that_is_called_a_mask_is_none() -> None:
    built = BuiltModel(ModelSpec("python", "tests:mask"), Any2d(), (), {"prompt_masks": IMAGES})
    assert float(apply(built, "offset", 0).kwargs["prompt_masks"].min()) > 900
    with pytest.raises(ProfileUnfit, match=r"masked-rows changes nothing .*prompt_masks"):
        apply(built, "masked-rows", 0)


def test_odd_sizes_are_cut_from_what_was_drawn() -> None:
    assert torch.equal(image("odd-sizes"), IMAGES[..., :31, :29])
    changed = apply(text(), "odd-sizes", 0)
    assert torch.equal(changed.kwargs["input_ids"], IDS[:, :13])
    assert changed.kwargs["attention_mask"].shape == (2, 13)


def test_a_model_of_one_size_does_not_fit() -> None:
    with pytest.raises(ProfileUnfit, match="takes no inputs of profile odd-sizes: RuntimeError: shape"):
        apply(images(Patches()), "odd-sizes", 0)


def test_single_elements() -> None:
    assert image("single-element").shape == (1, 3, 32, 32)
    assert apply(text(), "single-element", 0).kwargs["input_ids"].shape == (1, 1)


def test_layouts_change_strides_and_no_value() -> None:
    turned = image("non-contiguous")
    assert torch.equal(turned, IMAGES)
    assert turned.stride() == (1, 2, 6, 192)
    assert turned.clone().stride() == turned.stride()  # private copies keep it
    last = image("channels-last")
    assert torch.equal(last, IMAGES)
    assert last.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ProfileUnfit):
        apply(images(value=torch.zeros(2, 1, 4, 4)), "channels-last", 0)  # one channel: the same either way


@pytest.mark.parametrize("profile", ["offset", "non-finite", "channels-last"])
def test_ids_alone_are_not_touched_by_what_is_for_floats(profile: str) -> None:
    with pytest.raises(
        ProfileUnfit, match=rf"profile {profile} changes nothing .*input_ids.* int64 \(2, 16\)"
    ) as caught:
        apply(text(), profile, 0)
    assert "\n" not in str(caught.value)


def test_an_unknown_profile_is_told_its_neighbour() -> None:
    with pytest.raises(ZooError, match=r"unknown profile 'large_logit'; did you mean large-logits\?"):
        apply(images(), "large_logit", 0)
    assert near("xyzzy") == []


def test_build_applies_the_profile_after_the_weights() -> None:
    plain, offset = build("op:linear"), build("op:linear", profile="offset")
    assert torch.equal(offset.kwargs["input"], plain.kwargs["input"] + 1e3)
    assert all(torch.equal(a, b) for a, b in zip(offset.module.buffers(), plain.module.buffers(), strict=True))


@pytest.mark.parametrize("per_night", [3, 4, 12])
def test_any_seven_nights_show_every_profile(per_night: int) -> None:
    for start in range(40):
        nights = [rotation(date(2026, 12, 1) + timedelta(start + n), per_night) for n in range(7)]
        assert {p for night in nights for p in night} == set(PROFILES)
        assert all(night[0] == "gaussian" and len(set(night)) == per_night for night in nights)


@pytest.mark.parametrize("per_night", [0, 2, 13])
def test_a_rotation_that_a_week_cannot_finish_is_refused(per_night: int) -> None:
    with pytest.raises(ValueError, match="3 at least"):
        rotation(date(2026, 12, 1), per_night)
    assert len({p for n in range(7) for p in rotation(date(2026, 12, 1 + n), 3)[:2]}) < len(PROFILES)  # 2 are too few
