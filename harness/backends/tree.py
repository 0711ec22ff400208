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
    """A strided tensor on the CPU, a number, a string, or an `Opaque`."""


Aliases = frozenset[tuple[str, int]]
"""Pairs of an output's path and the number of the flat input whose memory it shares."""


@dataclass(frozen=True)
class Opaque:
    """Stands for a leaf that holds nothing to compare, such as a function: all that is compared is its type."""

    type_name: str


_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def walk(value: Any) -> tuple[Leaf, ...]:
    """Takes an output apart: tensors, numbers, lists, mappings, ModelOutputs, dataclasses, caches, plain objects.

    A field that is None is left out: whether a model reports an empty field is no property of a backend.

    >>> [leaf.path for leaf in walk({"a": (torch.ones(1), 2)})]
    ["['a'][0]", "['a'][1]"]
    """
    return tuple(_leaves(value, "", ()))


def _leaves(value: Any, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    if value is None:
        return
    if id(value) in above:  # an object that holds itself
        return
    above = (*above, id(value))
    if isinstance(value, torch.Tensor):
        yield from _tensors(value.detach(), path)
    elif isinstance(value, Mapping):
        attribute = hasattr(value, "to_tuple")  # a transformers ModelOutput, whose fields are read as attributes
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if attribute else f"{path}[{key!r}]", above)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", above)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}", above)
    elif _is_cache(value):
        for name, item in _cache_items(value):
            yield from _leaves(item, f"{path}{name}", above)
    elif isinstance(value, _PLAIN):
        yield Leaf(path, value)
    elif attributes := _attributes(value):
        for name, item in attributes:
            yield from _leaves(item, f"{path}.{name}", above)
    else:
        yield Leaf(path, Opaque(type(value).__name__))


def _tensors(value: torch.Tensor, path: str) -> Iterator[Leaf]:
    if value.is_nested:
        for index, item in enumerate(value.unbind()):
            yield Leaf(f"{path}[{index}]", item)
    elif value.is_quantized:
        yield Leaf(path, value.dequantize())
    else:
        yield Leaf(path, value if value.layout is torch.strided else value.to_dense())


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Public attributes of an object of a class that somebody wrote; nothing of modules, classes and functions."""
    if isinstance(value, type | torch.nn.Module) or callable(value):
        return []
    return [(name, item) for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")]


def _is_cache(value: Any) -> bool:
    module = type(value).__module__
    by_layer = module == "transformers.cache_utils"  # the caches, and the layers that they consist of
    return by_layer or (module.startswith("transformers.") and "cache" in type(value).__name__.lower())


def _cache_items(cache: Any) -> Iterator[tuple[str, Any]]:
    """What a transformers cache holds: its public attributes that are, or contain, tensors, in a fixed order."""
    for name, item in sorted(vars(cache).items()):
        if (not name.startswith("_") and isinstance(item, torch.Tensor | Sequence | Mapping)) or _is_cache(item):
            yield f".{name}", item


def aliases(leaves: Sequence[Leaf], inputs: Sequence[Any]) -> Aliases:
    """Which outputs share memory with which of the flat inputs: pairs of path and number.

    >>> x = torch.ones(4)
    >>> sorted(aliases([Leaf(".a", x[1:]), Leaf(".b", x + 1)], [x]))
    [('.a', 0)]
    """
    owners: dict[int, list[int]] = {}
    for number, value in enumerate(inputs):
        if (address := _address(value)) is not None:
            owners.setdefault(address, []).append(number)
    found = ((leaf.path, owners.get(a, ())) for leaf in leaves if (a := _address(leaf.value)) is not None)
    return frozenset((path, number) for path, numbers in found for number in numbers)


def _address(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage().data_ptr() or None
