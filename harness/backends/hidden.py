"""A model that also returns its hidden states, for models whose outputs show too little of what happens inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from harness.backends.copies import private_copy
from harness.backends.double import forward
from model_zoo.spec import BuiltModel

MOST = 16
"""Hidden states that are returned at most."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that hold the stages and blocks of a model."""


def with_hidden_states(built: BuiltModel, most: int = MOST) -> BuiltModel:
    """The same model on a private copy, whose forward returns `(output, {name: hidden state})`.

    Hidden states are what the model's main blocks return: the members of its containers, outermost first, each taken
    apart into its own as long as no more than `most` result; where there are more, evenly chosen. The name is that of
    the block's module, the state what its first call returns: a floating tensor, or a tuple of several. Without
    containers the model's direct children stand for blocks; a block that is never called is left out.

    Raises what copying or running the model raises.
    """
    trial, kept = private_copy(built), private_copy(built)
    states = _States()
    for name, module in trial.module.named_modules():
        module.register_forward_hook(_Record(states, name))
    forward(trial)
    names = _blocks(trial.module, set(states.found), most)
    if len(names) > most:
        names = [names[(i + 1) * len(names) // most - 1] for i in range(most)]
    return replace(kept, module=_WithHiddenStates(kept.module, names))


State = Tensor | tuple[Tensor, ...]


class _States:
    """Where hooks leave what they saw; not a container, whose changes torch.export would undo."""

    def __init__(self) -> None:
        self.found: dict[str, State] = {}


class _Record:
    """A forward hook that is copied with the module, and then leaves its finds with the copy."""

    def __init__(self, states: _States, name: str) -> None:
        self.states, self.name = states, name

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.name in self.states.found:
            return
        leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
        if leaves:  # copied, since a block after it may write to what this one returned
            self.states.found[self.name] = leaves[0].clone() if len(leaves) == 1 else tuple(x.clone() for x in leaves)


class _WithHiddenStates(nn.Module):
    """A model that returns its hidden states beside its output."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self.states = _States()
        for name in names:
            module.get_submodule(name).register_forward_hook(_Record(self.states, name))
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, State]]:
        self.states.found = {}
        output = self.module(*args, **kwargs)
        found, self.states.found = self.states.found, {}
        return output, found


def _blocks(module: nn.Module, called: set[str], most: int) -> list[str]:
    """Names of the main blocks, in the order of definition."""
    names = list(_members(module, "", called)) or [n for n, _ in module.named_children() if n in called]
    while True:
        finer = [m for n in names for m in (list(_members(module.get_submodule(n), n, called)) or [n])]
        if len(finer) > most or finer == names:
            return names
        names = finer


def _members(module: nn.Module, name: str, called: set[str]) -> Iterator[str]:
    """The called members of the outermost containers below a module, or of itself where it is one."""
    for key, child in module.named_children():
        if key == "parametrizations":  # of a weight: no part of the model's data flow
            continue
        inner = f"{name}.{key}" if name else key
        if isinstance(module, CONTAINERS) and inner in called:
            yield inner
        else:
            yield from _members(child, inner, called)
