"""Applies a profile to a built model: the same module, other inputs.

Sizes are changed by cutting what was drawn, so that token ids stay valid and arguments of one length stay of one
length; whether the model takes the new sizes is seen by running it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from model_zoo.profiles import PROFILES, Profile, near, rotation
from model_zoo.spec import BuiltModel, ZooError

__all__ = ["PROFILES", "Profile", "ProfileUnfit", "apply", "near", "rotation"]

EDGES = (-1, 2**31, -(2**31) - 1, 2**32 + 1, -(2**63), 2**63 - 1, 0, 255, 127, 128, -128, 2**31 - 1, -(2**31))
"""Integers planted, those that the dtype can hold; 2**32 + 1 is 1 to a device that keeps 32 bits."""

Change = Callable[[str, torch.Tensor, torch.Generator], torch.Tensor]
"""Gives a tensor to use in place of the input of that name, or the one it got."""


class ProfileUnfit(ZooError):
    """The profile changes nothing in the inputs of this model, or gives inputs that its forward does not take."""


def apply(built: BuiltModel, profile: str, seed: int) -> BuiltModel:
    """The model with its inputs drawn by `profile`; places to plant something at come from `seed`.

    `ZooError` for a name that is no profile, `ProfileUnfit` where the inputs would stay as they are.
    """
    if profile not in PROFILES:
        hint = f"did you mean {' or '.join(near(profile))}? " if near(profile) else ""
        raise ZooError(f"unknown profile {profile!r}; {hint}profiles: {', '.join(PROFILES)}")
    chosen = Profile(profile)
    if chosen is Profile.GAUSSIAN:
        return built
    if chosen in _SIZES:
        return _resized(built, chosen)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{profile} {seed}".encode()))
    changed = False

    def change(path: Any, value: Any) -> Any:
        nonlocal changed
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        new = _CHANGES[chosen](pytree.keystr(path), value, generator)
        changed |= new is not value
        return new

    args, kwargs = pytree.tree_map_with_path(change, (built.args, built.kwargs))
    if not changed:
        raise ProfileUnfit(f"profile {profile} changes nothing in the inputs of {built.spec}: {_seen(built)}")
    return replace(built, args=args, kwargs=kwargs)


def _seen(built: BuiltModel) -> str:
    leaves, _ = pytree.tree_flatten_with_path((built.args, built.kwargs))
    texts = [
        f"{''.join(pytree.keystr(path[1:]))} {str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
        for path, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    ]
    return ", ".join(texts) or "it has no tensor"


def _is_mask(name: str, value: torch.Tensor) -> bool:
    """A tensor named a mask that holds but two values, or -inf: an image may be called a mask as well."""
    if "mask" not in name:
        return False
    return bool(value.dtype is torch.bool or ((value == 0) | (value == 1) | (value == -torch.inf)).all())


def _floats(change: Callable[[torch.Tensor, torch.Generator], torch.Tensor]) -> Change:
    def apply_to(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        continuous = value.is_floating_point() or value.is_complex()
        return change(value, generator) if continuous and not _is_mask(name, value) else value

    return apply_to


def _non_finite(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every row of the batch but the last gets NaN, +inf, -inf; all three each, or in turn where there are enough.

    The last stays finite: what is planted in the others must not leak into it, and a model that makes NaN of all it is
    given would leave nothing to compare. A tensor of one row or one axis has no row to spare.
    """
    planted = value.clone(memory_format=torch.contiguous_format)
    single = planted.dim() < 2 or len(planted) == 1
    rows = planted.view(1, -1) if single else planted.view(len(planted), -1)
    bad = (torch.nan, torch.inf, -torch.inf)
    for index, row in enumerate(rows):
        places = torch.randperm(len(row), generator=generator)
        row[places[: max(1, len(row) // 16)]] = -0.0
        if single or index < len(rows) - 1:
            kinds = (bad[index % 3],) if len(rows) > 3 else bad
            for place, kind in zip(reversed(places.tolist()), kinds, strict=False):
                row[place] = kind
    return planted


def _integer_edges(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool or _is_mask(name, value):
        return value
    info = torch.iinfo(value.dtype)
    edges = torch.tensor([e for e in EDGES if info.min <= e <= info.max], dtype=torch.int64).to(value.dtype)
    planted = value.clone(memory_format=torch.contiguous_format)
    flat = planted.view(-1)
    places = torch.randperm(len(flat), generator=generator)[: len(edges)]
    flat[places] = edges[: len(places)]
    return planted


def _masked_rows(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shut is the rarer of a mask's two values (0, unless the mask says what to leave out), -inf where it is added."""
    if not _is_mask(name, value) or value.dim() < 2:
        return value
    additive = value.is_floating_point() and bool((value == -torch.inf).any() or not value.any())
    shut: float | bool = -torch.inf if additive else bool(value.bool().float().mean() < 0.5)
    masked = value.clone(memory_format=torch.contiguous_format)
    rows = masked.view(-1, masked.shape[-1]) if masked.dim() != 3 else masked.view(len(masked), -1)
    rows[-1, : rows.shape[-1] // 2] = shut
    rows[0] = shut
    return masked


def _non_contiguous(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Axes in reverse order in memory: strides that survive `clone`, which a view with gaps would not."""
    reverse = tuple(reversed(range(value.dim())))
    turned = value.permute(reverse).contiguous().permute(reverse)
    return value if turned.is_contiguous() else turned


def _channels_last(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if value.dim() not in (4, 5) or not value.is_floating_point() or _is_mask(name, value):
        return value
    turned = value.contiguous(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)
    return value if turned.is_contiguous() else turned


_CHANGES: dict[Profile, Change] = {
    Profile.OFFSET: _floats(lambda value, _: value + 1e3),
    Profile.TINY: _floats(lambda value, _: value * 1e-20),
    Profile.HUGE: _floats(lambda value, _: value * 1e15),
    Profile.LARGE_LOGITS: _floats(lambda value, _: value * 100),
    Profile.NON_FINITE: _floats(_non_finite),
    Profile.INTEGER_EDGES: _integer_edges,
    Profile.MASKED_ROWS: _masked_rows,
    Profile.NON_CONTIGUOUS: _non_contiguous,
    Profile.CHANNELS_LAST: _channels_last,
}

Cut = Callable[[str, torch.Tensor], tuple[int, ...]]
"""The shape to cut the input of that name to."""


def _prime_below(size: int) -> int:
    """The greatest prime less than `size`; `size` where there is none."""
    return next((n for n in range(size - 1, 1, -1) if all(n % d for d in range(2, n))), size)


def _odd_images(name: str, value: torch.Tensor) -> tuple[int, ...]:
    """Height and width of images made odd, and unlike each other; the length of everything that is no image."""
    shape = list(value.shape)
    if value.dim() >= 4 and value.is_floating_point():
        height, width = _prime_below(shape[-2]), _prime_below(shape[-1])
        shape[-2:] = height, _prime_below(width) if width == height else width
    elif value.dim() > 1:
        return _odd_lengths(name, value)
    return tuple(shape)


def _odd_lengths(name: str, value: torch.Tensor) -> tuple[int, ...]:
    """The second axis made odd: tokens, samples, steps."""
    return (value.shape[0], _prime_below(value.shape[1]), *value.shape[2:]) if value.dim() in (2, 3) else value.shape


def _odd_last(name: str, value: torch.Tensor) -> tuple[int, ...]:
    """The last axis made odd: frames of a spectrogram."""
    return (*value.shape[:-1], _prime_below(value.shape[-1])) if value.dim() > 1 else value.shape


def _one_row(name: str, value: torch.Tensor) -> tuple[int, ...]:
    return (1, *value.shape[1:]) if value.dim() else ()


def _one_token(name: str, value: torch.Tensor) -> tuple[int, ...]:
    """A batch of one, and of length one where it is a sequence; an image keeps its size."""
    return (1, 1, *value.shape[2:]) if value.dim() in (2, 3) else _one_row(name, value)


_SIZES: dict[Profile, tuple[Cut, ...]] = {
    Profile.ODD_SIZES: (_odd_images, _odd_lengths, _odd_last),
    Profile.SINGLE_ELEMENT: (_one_token, _one_row),
}
"""Ways to cut the inputs, tried in this order until the model takes one."""


def _resized(built: BuiltModel, profile: Profile) -> BuiltModel:
    refusal = ""
    for cut in _SIZES[profile]:
        new = _cut(built, cut)
        if _shapes(new) == _shapes(built):
            continue
        try:
            with torch.no_grad():
                new.module(*new.args, **new.kwargs)
        except Exception as error:
            refusal = refusal or f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        else:
            return new
    if not refusal:
        raise ProfileUnfit(f"profile {profile} changes nothing in the inputs of {built.spec}: {_seen(built)}")
    raise ProfileUnfit(f"{built.spec} takes no inputs of profile {profile}: {refusal}")


def _cut(built: BuiltModel, cut: Cut) -> BuiltModel:
    def change(path: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        shape = cut(pytree.keystr(path), value)
        return value if shape == value.shape else value[tuple(slice(n) for n in shape)].clone()

    args, kwargs = pytree.tree_map_with_path(change, (built.args, built.kwargs))
    return replace(built, args=args, kwargs=kwargs)


def _shapes(built: BuiltModel) -> list[Any]:
    return [leaf.shape for leaf in _tensors(built)]


def _tensors(built: BuiltModel) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves((built.args, built.kwargs)) if isinstance(leaf, torch.Tensor))
