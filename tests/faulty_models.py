"""Models that go wrong in every way that a sweep must survive, and a few good ones. For the `python:` source."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Acts(nn.Module):
    """A linear layer whose forward does something first."""

    def __init__(self, act: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 3), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        changed = self.act(x)
        return changed if isinstance(changed, torch.Tensor) else x


def _model(act: Callable[[torch.Tensor], Any]) -> Built:
    return _Acts(act), (torch.randn(2, 4),)


def segfaults() -> Built:
    return _model(lambda x: ctypes.string_at(0))


def sleeps() -> Built:
    return _model(lambda x: time.sleep(10_000))


def allocates() -> Built:
    return _model(lambda x: torch.empty(200 * 2**30, dtype=torch.uint8))


def allocates_bit_by_bit() -> Built:
    return _model(lambda x: [torch.ones(2**20) for _ in range(200 * 2**8)])


def exits() -> Built:
    return _model(lambda x: os._exit(0))


def raises() -> Built:
    def act(x: torch.Tensor) -> None:
        raise ValueError("this model never works")

    return _model(act)


def raises_when_built() -> Built:
    raise ValueError("this model cannot be built")


def raises_half_a_character() -> Built:
    def act(x: torch.Tensor) -> None:
        raise ValueError("half of a pair: \ud800")

    return _model(act)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("this exception cannot say what it is")


def raises_mute() -> Built:
    def act(x: torch.Tensor) -> None:
        raise Mute

    return _model(act)


class Boxed:
    """An output of a class of the user's own."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class _Boxes(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor

    def forward(self, x: torch.Tensor) -> Boxed:
        return Boxed(self.linear(x) * (self.factor if torch.compiler.is_compiling() else 1))


def good_boxed() -> Built:
    return _Boxes(1), (torch.randn(2, 4),)


def twice_in_a_box_on_device() -> Built:
    return _Boxes(2), (torch.randn(2, 4),)


def good_sparse() -> Built:
    return _model(lambda x: x.to_sparse() if not torch.compiler.is_compiling() else x)


class _Says(nn.Module):
    def forward(self, x: torch.Tensor) -> str:
        return "no tensor"


def returns_no_tensor() -> Built:
    return _Says(), (torch.randn(2, 4),)


def nan_on_device() -> Built:
    """Eager PyTorch gives numbers; whatever is exported or compiled gives NaN."""
    return _model(lambda x: x * float("nan") if torch.compiler.is_compiling() else x)


def off_by_one_percent_on_device() -> Built:
    return _model(lambda x: x * 1.01 if torch.compiler.is_compiling() else x)


def cannot_be_exported() -> Built:
    """Runs in eager; its control flow depends on data."""
    return _model(lambda x: x * 2 if x.sum() > 0 else x * 3)


def good_linear() -> Built:
    return _model(lambda x: None)


def good_embedding() -> Built:
    return nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 3)), (torch.randint(20, (2, 16)),)


def good_norm() -> Built:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU()), (torch.randn(2, 4),)


def good_conv() -> Built:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), (torch.randn(1, 3, 8, 8),)
