"""Private copies of a built model, so that no run can see what another left behind.

A copy owns everything: parameters (RWKV rescales its own in the first forward), buffers, caches that forward leaves on
a module, inputs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from model_zoo.spec import BuiltModel

Convert = Callable[[torch.Tensor], torch.Tensor]


def private_copy(
    built: BuiltModel, convert: Convert | None = None, convert_inputs: Convert | None = None
) -> BuiltModel:
    """A copy whose forward can change nothing of `built`.

    `convert` is applied to every parameter, buffer and tensor attribute, `convert_inputs` (by default the same) to
    every tensor of the inputs; each gives a tensor to use instead, or the one it got. Raises what deepcopy raises.
    """
    memo: dict[int, Any] = {}
    for parameter in built.module.parameters():
        memo[id(parameter)] = nn.Parameter(_owned(parameter, convert), requires_grad=False)
    for tensor in _loose_tensors(built.module):
        memo.setdefault(id(tensor), _owned(tensor, convert))
    module = copy.deepcopy(built.module, memo)
    args, kwargs = copied_inputs(built, convert_inputs or convert)
    return dataclasses.replace(built, module=module, args=args, kwargs=kwargs)


def copied_inputs(built: BuiltModel, convert: Convert | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of `built`, copied, each tensor passed through `convert`."""
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves((built.args, built.kwargs)):
        if isinstance(leaf, torch.Tensor):
            memo[id(leaf)] = _owned(leaf, convert)
    args, kwargs = copy.deepcopy((built.args, built.kwargs), memo)
    return tuple(args), dict(kwargs)


def with_inputs(built: BuiltModel, inputs: Sequence[Any] | None) -> BuiltModel:
    """The same model with these flat input leaves in place of its own; itself for None."""
    if inputs is None:
        return built
    args, kwargs = pytree.tree_unflatten(list(inputs), pytree.tree_structure((built.args, built.kwargs)))
    return dataclasses.replace(built, args=args, kwargs=kwargs)


def cast(built: BuiltModel, dtype: torch.dtype) -> BuiltModel:
    """A copy in another floating dtype: parameters, buffers and floating inputs; integers and complex numbers stay."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return private_copy(built, convert)


def _owned(tensor: torch.Tensor, convert: Convert | None) -> torch.Tensor:
    plain = tensor.detach()
    changed = plain if convert is None else convert(plain)
    shared = changed is plain or (plain.layout is torch.strided and changed.data_ptr() == plain.data_ptr())
    return changed.clone() if shared else changed


def _loose_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Buffers, and tensors that a module keeps as plain attributes, or in lists and dicts of them."""
    yield from module.buffers()
    for owner in module.modules():
        for name, value in vars(owner).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            values = (
                value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
            )
            for item in values:
                if isinstance(item, torch.Tensor) and not isinstance(item, nn.Parameter):
                    yield item
