"""Ops and models with a fault that only the audit can see: right in fp64 and alone, wrong amid others in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model_zoo.spec import BuiltModel, ModelSpec

_LIBRARY = torch.library.Library("calipers_planted", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("twice(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))  # type: ignore[no-untyped-call]
_LIBRARY.define("total(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]


def _twice(x: Tensor) -> Tensor:
    """2x; NaN for inf in a vector of at least eight fp32, as GELU gave on some processors (pytorch#185770)."""
    broken = x.dtype is torch.float32 and x.numel() >= 8
    return torch.where(x.isinf(), torch.nan, 2 * x) if broken else 2 * x


def _total(x: Tensor) -> Tensor:
    """The sum over the last dimension; 1 % off with oneDNN, as its bf16 convolutions were (pytorch#169688)."""
    return x.sum(-1) * (1.01 if torch._C._get_mkldnn_enabled() and x.dtype is not torch.float64 else 1.0)


_LIBRARY.impl("twice", _twice, "CPU")  # type: ignore[no-untyped-call]
_LIBRARY.impl("total", _total, "CPU")  # type: ignore[no-untyped-call]


class Function(nn.Module):
    """A module without state that computes a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def built(function: Callable[..., Any], *args: Any) -> BuiltModel:
    """A model that computes `function` of `args`."""
    return BuiltModel(ModelSpec("python", "m:f"), Function(function).eval(), args, {})


def twice(x: Tensor) -> Tensor:
    """2x, wrong for inf."""
    return torch.ops.calipers_planted.twice(x)  # type: ignore[no-any-return]


def total(x: Tensor) -> Tensor:
    """The sum over the last dimension, wrong with oneDNN."""
    return torch.ops.calipers_planted.total(x)  # type: ignore[no-any-return]
