"""The output tree of a model, flat: every leaf with the path that leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Leaf:
    """A leaf of an output tree and the path that leads to it, as Python would write it: `.logits`, `[0]['k']`."""

    path: str
    value: Any
    """A tensor on the CPU, a number, a string, None, or an object that no rule takes apart."""


def walk(value: Any) -> tuple[Leaf, ...]:
    """Takes an output apart: tensors, numbers, lists, mappings, ModelOutputs, dataclasses, key-value caches.

    A field that is None is left out: whether a model reports an empty field is no property of a backend.

    >>> [leaf.path for leaf in walk({"a": (torch.ones(1), 2)})]
    ["['a'][0]", "['a'][1]"]
    """
    return tuple(_leaves(value, ""))


def _leaves(value: Any, path: str) -> Iterator[Leaf]:
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield Leaf(path, value.detach())
    elif isinstance(value, Mapping):
        attribute = hasattr(value, "to_tuple")  # a transformers ModelOutput, whose fields are read as attributes
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if attribute else f"{path}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif _is_cache(value):
        for name, item in _cache_items(value):
            yield from _leaves(item, f"{path}{name}")
    else:
        yield Leaf(path, value)


def _is_cache(value: Any) -> bool:
    module = type(value).__module__
    by_layer = module == "transformers.cache_utils"  # the caches, and the layers that they consist of
    return by_layer or (module.startswith("transformers.") and "cache" in type(value).__name__.lower())


def _cache_items(cache: Any) -> Iterator[tuple[str, Any]]:
    """What a transformers cache holds: its public attributes that are, or contain, tensors, in a fixed order."""
    for name, item in sorted(vars(cache).items()):
        if (not name.startswith("_") and isinstance(item, torch.Tensor | Sequence | Mapping)) or _is_cache(item):
            yield f".{name}", item
