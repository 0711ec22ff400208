"""Second inputs: other values of the same shapes, dtypes and strides, to see whether an output depends on its input."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from model_zoo.spec import BuiltModel

_FIXED = re.compile(r"mask|position|grid|bbox|box|size|shape|length|type_ids|timestep|label|given_tokens|freq|pos$")
"""Arguments whose values only fit together with the others', or that a model does not read for their value."""


def second_inputs(built: BuiltModel, seed: int) -> list[Any] | None:
    """Flat input leaves (`tree_leaves((args, kwargs))`) that differ from the model's own and are as valid.

    The elements of a floating tensor change places. Where none can, token ids and other integers are rolled within
    their rows: as many placeholders of an image as before, and as many ends of a text. Masks, positions, sizes and
    what has fewer than three values stay. None where nothing can be changed safely.
    """
    generator = torch.Generator().manual_seed(seed)
    leaves, _ = pytree.tree_flatten_with_path((built.args, built.kwargs))
    for change in (_permuted, _rolled):
        changed: dict[int, Tensor] = {}
        for path, leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) not in changed and not _FIXED.search(_name(path)):
                other = change(leaf, generator)
                if other is not None:
                    changed[id(leaf)] = other
        if changed:
            return [changed.get(id(leaf), leaf) for _, leaf in leaves]
    return None


def _name(path: tuple[Any, ...]) -> str:
    """The name of the keyword argument that a leaf belongs to; empty for a positional one."""
    key = getattr(path[1], "key", "") if len(path) > 1 else ""
    return key if isinstance(key, str) else ""


def _permuted(leaf: Tensor, generator: torch.Generator) -> Tensor | None:
    if not (leaf.is_floating_point() or leaf.is_complex()) or not _varied(leaf):
        return None
    flat = leaf.detach().reshape(-1)
    return _in_place_of(leaf, flat[torch.randperm(flat.numel(), generator=generator)])


def _rolled(leaf: Tensor, generator: torch.Generator) -> Tensor | None:
    if leaf.is_floating_point() or leaf.is_complex() or leaf.dtype is torch.bool or not _varied(leaf):
        return None
    if leaf.dim() == 0 or leaf.shape[-1] < 2 or _counts_up(leaf):
        return None
    shift = int(torch.randint(1, leaf.shape[-1], (), generator=generator))
    return _in_place_of(leaf, leaf.roll(shift, dims=-1))


def _varied(leaf: Tensor) -> bool:
    """Whether it has three values or more: two are a mask, one a constant."""
    return leaf.layout is torch.strided and torch.unique(leaf).numel() > 2


def _counts_up(leaf: Tensor) -> bool:
    """Whether it is a row of positions."""
    steps = leaf.long().diff(dim=-1)
    return bool((steps == 1).all())


def _in_place_of(leaf: Tensor, values: Tensor) -> Tensor | None:
    """The values in the leaf's shape and strides; None if nothing changed."""
    other = leaf.detach().clone(memory_format=torch.preserve_format)
    if other.stride() != leaf.stride():  # holes or overlaps, which a clone does not keep
        size = sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True)) + 1
        if any(s == 0 for n, s in zip(leaf.shape, leaf.stride(), strict=True) if n > 1):
            return None  # expanded: its elements are not independent
        other = leaf.new_zeros(size).as_strided(leaf.shape, leaf.stride())
    other.copy_(values.reshape(leaf.shape))
    return None if torch.equal(other, leaf) else other
