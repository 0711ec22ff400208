"""Tensors through Ray's object store: as flat bytes beside the pickle, with their strides, and a copy on arrival.

Ray's own reducer for tensors drops strides (channels_last inputs would arrive contiguous), and its zero-copy one hands
out read-only memory, on which a model that works in place would crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


def register() -> None:
    """Teaches this process's Ray how tensors travel."""
    import ray.util
    import torch

    ray.util.register_serializer(torch.Tensor, serializer=pack, deserializer=unpack)


def pack(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...], tuple[int, ...]]:
    """A tensor as (bytes, dtype, shape in memory order, how to permute back)."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg()
    order = sorted(range(plain.dim()), key=lambda d: (-plain.stride()[d], d))
    dense = plain.permute(order).contiguous()
    flat = dense.reshape(-1).view(torch.uint8).numpy()
    back = tuple(order.index(d) for d in range(plain.dim()))
    return flat, str(tensor.dtype).removeprefix("torch."), tuple(dense.shape), back


def unpack(packed: tuple[np.ndarray[Any, Any], str, tuple[int, ...], tuple[int, ...]]) -> torch.Tensor:
    """The tensor again, in memory of its own."""
    import torch

    flat, dtype, shape, back = packed
    if not flat.size:
        return torch.empty(shape, dtype=getattr(torch, dtype)).permute(back)
    dense = torch.from_numpy(flat.copy()).view(getattr(torch, dtype)).reshape(shape)
    return dense.permute(back)
