"""What faults are planted in: real models, and single ops as `python:harness.faulty.subjects:NAME`.

The inputs of an op are such that its faults can be seen: large integers where an integer may overflow, an offset where
a variance may cancel, NaN where NaN may be swallowed, logits beyond the range of `exp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.faulty.recipe import Kind

MODELS = (
    "timm:resnet10t",
    "timm:convnext_atto",
    "timm:vit_tiny_patch16_224",
    "timm:mobilenetv3_small_050",
    "timm:regnetx_002",
    "timm:poolformer_s12",
    "timm:edgenext_xx_small",
    "timm:pit_ti_224",
    "transformers:bert",
    "transformers:distilbert",
    "transformers:mpnet",
    "transformers:gpt_neox",
    "transformers:gpt2",
    "transformers:llama",
    "transformers:t5",
    "transformers:opt",
    "transformers:mamba",
    "transformers:whisper",
    "transformers:segformer",
    "transformers:wav2vec2",
    "transformers:bloom",
    "transformers:deberta-v2",
    "transformers:gemma2",
    "transformers:clip",
    "transformers:xlnet",
)
"""Small models, each of another architecture."""

IN_BF16 = ("timm:resnet10t", "transformers:bert", "transformers:llama", "transformers:wav2vec2")
"""Models that are run in bf16 too."""

Made = tuple[Callable[..., Any], tuple[Any, ...]]


class SingleOp(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        """Calls the function."""
        return self._function(*inputs)


def __getattr__(name: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    if name not in _OPS:
        raise AttributeError(f"no single op {name!r} among the subjects")

    def factory() -> tuple[nn.Module, tuple[Any, ...]]:
        function, inputs = _OPS[name]()
        return SingleOp(function), inputs

    return factory


def single_ops() -> tuple[str, ...]:
    """The model ids of all single ops."""
    return tuple(f"python:{__name__}:{name}" for name in _OPS)


def _n(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _with_nan(*shape: int) -> Tensor:
    x = torch.randn(*shape)
    x.view(-1)[:: max(7, x.numel() // 5)] = math.nan
    return x


def _offset(*shape: int) -> Tensor:
    return 1000 + torch.randn(*shape)


def _i(high: int, *shape: int, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape)


def _attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    q, k, v = (x.view(2, 4, *x.shape[1:]) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options)


def _loss(name: str, **options: Any) -> Callable[..., Any]:
    return lambda *inputs: getattr(F, name)(*inputs, **options)


_IMAGE = (2, 8, 14, 14)

ONLY = {"_of_nan": Kind.NAN_SWALLOWED, "_of_large": Kind.NAN_MADE, "_of_offset": Kind.ONE_PASS_VARIANCE}
"""By the end of a single op's name: the only kind of fault that its inputs are made for."""

_OPS: dict[str, Callable[[], Made]] = {
    # Sums and products.
    "addmm": lambda: (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (_n(32, 32), _n(32, 64), _n(64, 32))),
    "baddbmm": lambda: (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5),
        (_n(4, 16, 16), _n(4, 16, 16), _n(4, 16, 16)),
    ),
    "bmm": lambda: (torch.bmm, (_n(4, 24, 24), _n(4, 24, 24))),
    "linear": lambda: (lambda x, w, b: F.gelu(F.linear(x, w, b)), (_n(16, 48), _n(48, 48), _n(48))),
    "conv2d": lambda: (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        (_n(*_IMAGE), _n(16, 8, 3, 3) / 8, _n(16)),
    ),
    "conv2d_dilated": lambda: (
        lambda x, w: F.conv2d(x, w, stride=2, dilation=2, groups=2),
        (_n(*_IMAGE), _n(16, 4, 3, 3) / 6),
    ),
    "attention": lambda: (
        lambda q, k, v: _attention(q, k, v, is_causal=True, scale=0.3),
        (_n(8, 24, 16), _n(8, 24, 16), _n(8, 24, 16)),
    ),
    "attention_masked": lambda: (
        lambda q, k, v, m: _attention(q, k, v, attn_mask=m),
        (_n(8, 24, 16), _n(8, 24, 16), _n(8, 24, 16), _n(24, 24)),
    ),
    "mean": lambda: (lambda x: x.mean(-1), (_n(64, 300),)),
    "mean_of_nan": lambda: (lambda x: x.mean(-1), (_with_nan(16, 30),)),
    "sum": lambda: (lambda x: x.sum(-1), (_n(64, 300) + 1,)),
    "sum_of_bools": lambda: (lambda x: (x > 0).sum(), (_n(64, 30),)),
    "sum_of_integers": lambda: (lambda x: x.sum(), (_i(2**31, 40),)),
    "prod_of_integers": lambda: (lambda x: x.prod(), (_i(9, 16, low=5),)),
    "cumsum": lambda: (lambda x: x.cumsum(1), (_n(32, 200),)),
    "cumsum_of_integers": lambda: (lambda x: x.cumsum(0), (_i(2**31, 40),)),
    "cumsum_of_nan": lambda: (lambda x: x.cumsum(1), (_with_nan(4, 60),)),
    "index_add": lambda: (lambda x, i, s: x.index_add(0, i, s), (_n(16, 32), _i(16, 64), _n(64, 32))),
    "product_of_integers": lambda: (torch.mul, (_i(2**20, 8, 8), _i(2**20, 8, 8))),
    "sum_of_two_integers": lambda: (torch.add, (_i(2**31, 8, 8, low=2**30), _i(2**31, 8, 8, low=2**30))),
    "floor_divide_of_integers": lambda: (torch.floor_divide, (_i(2**40, 8, 8), _i(90, 8, 8, low=3))),
    "left_shift": lambda: (torch.bitwise_left_shift, (_i(2**20, 8, 8), _i(20, 8, 8, low=12))),
    "vector_norm": lambda: (lambda x: torch.linalg.vector_norm(x, dim=-1), (_n(32, 60),)),
    "vector_norm_of_large": lambda: (lambda x: torch.linalg.vector_norm(x, dim=-1), (1e5 * _n(32, 60),)),
    # Normalisation and variance.
    "layer_norm": lambda: (
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        (0.1 * _n(32, 64), 1 + 0.1 * _n(64), _n(64)),
    ),
    "layer_norm_of_offset": lambda: (lambda x: F.layer_norm(x, (64,)), (_offset(32, 64),)),
    "group_norm": lambda: (
        lambda x, w, b: F.group_norm(x, 4, w, b),
        (0.1 * _n(*_IMAGE), 1 + 0.1 * _n(8), _n(8)),
    ),
    "group_norm_of_offset": lambda: (lambda x: F.group_norm(x, 4), (_offset(2, 8, 196),)),
    "batch_norm": lambda: (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (_n(*_IMAGE), _n(8), 0.1 + torch.rand(8), 1 + 0.1 * _n(8), _n(8)),
    ),
    "batch_norm_in_training": lambda: (
        lambda x, m, v: (F.batch_norm(x, m, v, training=True, momentum=0.1), m, v),
        (_offset(2, 8, 196), _n(8), torch.rand(8)),
    ),
    "rms_norm": lambda: (lambda x, w: F.rms_norm(x, (64,), w, eps=1e-6), (0.1 * _n(32, 64), 1 + 0.1 * _n(64))),
    "var": lambda: (lambda x: x.var(-1), (_n(32, 20),)),
    "var_of_offset": lambda: (lambda x: x.var(-1), (_offset(32, 200),)),
    "std_of_offset": lambda: (lambda x: x.std(-1), (_offset(32, 200),)),
    "var_mean_of_offset": lambda: (lambda x: torch.var_mean(x, -1), (_offset(32, 200),)),
    # Activations and other maps.
    "relu": lambda: (F.relu, (_n(16, 64),)),
    "relu_of_nan": lambda: (F.relu, (_with_nan(16, 64),)),
    "gelu": lambda: (F.gelu, (2 * _n(16, 256),)),
    "gelu_tanh": lambda: (lambda x: F.gelu(x, approximate="tanh"), (2 * _n(16, 256),)),
    "silu": lambda: (F.silu, (40 * _n(16, 256),)),
    "tanh": lambda: (torch.tanh, (40 * _n(16, 256),)),
    "hardswish": lambda: (F.hardswish, (3 * _n(16, 64),)),
    "hardswish_in_place": lambda: (lambda x: F.hardswish(2 * x, inplace=True), (_n(16, 64),)),
    "hardsigmoid": lambda: (F.hardsigmoid, (3 * _n(16, 64),)),
    "hardtanh": lambda: (lambda x: F.hardtanh(x, -2.0, 2.0), (3 * _n(16, 64),)),
    "leaky_relu": lambda: (lambda x: F.leaky_relu(x, 0.2), (_n(16, 64),)),
    "elu": lambda: (lambda x: F.elu(x, 2.0), (_n(16, 64),)),
    "softplus": lambda: (lambda x: F.softplus(x, 2.0), (_n(16, 64),)),
    "softplus_of_large": lambda: (F.softplus, (60 * _n(16, 64),)),
    "sigmoid": lambda: (torch.sigmoid, (4 * _n(16, 256),)),
    "exp": lambda: (torch.exp, (4 * _n(16, 256),)),
    "log": lambda: (torch.log, (torch.rand(16, 64) + 0.1,)),
    "erf": lambda: (torch.erf, (_n(16, 64),)),
    "rsqrt": lambda: (torch.rsqrt, (torch.rand(16, 64) + 0.1,)),
    "sin_cos": lambda: (lambda x: (x.sin(), x.cos()), (20 * _n(16, 64),)),
    "atan2": lambda: (torch.atan2, (_n(16, 64), _n(16, 64))),
    "pow": lambda: (torch.pow, (torch.rand(16, 64) + 0.5, _n(16, 64))),
    "square": lambda: (lambda x: x.pow(2), (_n(16, 64),)),
    "clamp": lambda: (lambda x: x.clamp(-1.0, 1.0), (2 * _n(16, 64),)),
    "clamp_of_nan": lambda: (lambda x: x.clamp(-1.0, 1.0), (_with_nan(16, 64),)),
    "nan_to_num": lambda: (lambda x: x.nan_to_num(nan=7.0), (_with_nan(16, 64),)),
    "maximum_of_nan": lambda: (torch.maximum, (_with_nan(16, 64), _n(16, 64))),
    "minimum_of_nan": lambda: (torch.minimum, (_with_nan(16, 64), _n(16, 64))),
    "gelu_of_nan": lambda: (F.gelu, (_with_nan(16, 64),)),
    "hardtanh_of_nan": lambda: (F.hardtanh, (_with_nan(16, 64),)),
    "add_of_nan": lambda: (torch.add, (_with_nan(16, 64), _n(16, 64))),
    "mul_of_nan": lambda: (torch.mul, (_with_nan(16, 64), _n(16, 64))),
    "linear_of_nan": lambda: (F.linear, (_with_nan(16, 64), _n(64, 64), _n(64))),
    "layer_norm_of_nan": lambda: (lambda x: F.layer_norm(x, (64,)), (_with_nan(64, 64),)),
    "sum_of_nan": lambda: (lambda x: x.sum(-1), (_with_nan(16, 30),)),
    "amax_of_nan": lambda: (lambda x: x.amax(-1), (_with_nan(16, 64),)),
    "amax": lambda: (lambda x: x.amax(-1), (_n(64, 4),)),
    "round": lambda: (torch.round, (_i(40, 16, 16, low=-40) / 4,)),
    "round_decimals": lambda: (lambda x: x.round(decimals=2), (_n(16, 64),)),
    "floor": lambda: (torch.floor, (3 * _n(16, 64),)),
    "to_integer": lambda: (lambda x: x.to(torch.int64), (9 * _n(16, 64),)),
    "floor_division": lambda: (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        (_i(99, 8, 8, low=-99), _i(9, 8, 8, low=2)),
    ),
    "truncated_division": lambda: (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        (_i(99, 8, 8, low=-99), _i(9, 8, 8, low=2)),
    ),
    "true_division": lambda: (torch.div, (_i(99, 8, 8), _i(9, 8, 8, low=2))),
    "add_alpha": lambda: (lambda x, y: torch.add(x, y, alpha=3), (_n(16, 64), _n(16, 64))),
    "sub_alpha": lambda: (lambda x, y: torch.sub(x, y, alpha=3), (_n(16, 64), _n(16, 64))),
    "integers_times_floats": lambda: (torch.mul, (_i(9, 16, 64), _n(16, 64))),
    "where": lambda: (lambda x, y: torch.where(x > 0, x, y), (_n(16, 64), _n(16, 64))),
    "compare": lambda: (torch.gt, (_n(16, 64), _n(16, 64))),
    "equal": lambda: (lambda x: x == 3, (_i(9, 16, 64),)),
    # Softmax and losses.
    "softmax": lambda: (lambda x: x.softmax(-1), (_n(16, 64, 64),)),
    "softmax_of_large": lambda: (lambda x: x.softmax(-1), (80 * _n(16, 64),)),
    "softmax_of_nan": lambda: (lambda x: x.softmax(-1), (_with_nan(64, 64),)),
    "log_softmax": lambda: (lambda x: x.log_softmax(-1), (_n(16, 64),)),
    "logsumexp": lambda: (lambda x: x.logsumexp(-1), (80 * _n(16, 64),)),
    "huber_loss": lambda: (_loss("huber_loss", delta=0.5, reduction="none"), (_n(16, 64), _n(16, 64))),
    "smooth_l1_loss": lambda: (_loss("smooth_l1_loss", beta=0.5), (_n(16, 64), _n(16, 64))),
    "cross_entropy": lambda: (_loss("cross_entropy", ignore_index=3), (_n(64, 9), _i(9, 64))),
    # Images.
    "max_pool2d": lambda: (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (_n(*_IMAGE),)),
    "max_pool2d_of_nan": lambda: (lambda x: F.max_pool2d(x, 2), (_with_nan(*_IMAGE),)),
    "avg_pool2d": lambda: (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        (_n(2, 8, 15, 14),),
    ),
    "avg_pool2d_padded": lambda: (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (_n(*_IMAGE),),
    ),
    "adaptive_avg_pool2d": lambda: (lambda x: F.adaptive_avg_pool2d(x, 5), (_n(*_IMAGE),)),
    "upsample_bilinear": lambda: (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (_n(*_IMAGE),),
    ),
    "upsample_bicubic": lambda: (lambda x: F.interpolate(x, size=(20, 20), mode="bicubic"), (_n(*_IMAGE),)),
    "upsample_nearest": lambda: (lambda x: F.interpolate(x, scale_factor=2), (_n(*_IMAGE),)),
    "unfold": lambda: (lambda x: F.unfold(x, 3), (_n(*_IMAGE),)),
    "conv2d_of_nan": lambda: (F.conv2d, (_with_nan(*_IMAGE), _n(4, 8, 3, 3))),
    # Moving, choosing and making data.
    "pad": lambda: (lambda x: F.pad(x, (2, 2), value=1.5), (_n(16, 64),)),
    "slice": lambda: (lambda x: x[:, 3:40], (_n(16, 64),)),
    "select": lambda: (lambda x: x[:, 3], (_n(16, 64),)),
    "roll": lambda: (lambda x: x.roll((3, 1), (0, 1)), (_n(16, 64),)),
    "cat": lambda: (lambda x, y: torch.cat((x, y), 1), (_n(16, 64), _n(16, 64))),
    "repeat": lambda: (lambda x: x.repeat(2, 1), (_n(16, 64),)),
    "permute": lambda: (lambda x: x.permute(0, 2, 1), (_n(4, 16, 16),)),
    "gather": lambda: (lambda x, i: x.gather(1, i), (_n(16, 400), _i(400, 16, 64))),
    "index_select": lambda: (lambda x, i: x.index_select(0, i), (_n(400, 16), _i(400, 64))),
    "advanced_index": lambda: (lambda x, i: x[i], (_n(400, 16), _i(400, 64))),
    "embedding": lambda: (lambda i, w: F.embedding(i, w), (_i(400, 16, 16), _n(400, 32))),
    "tril": lambda: (lambda x: x.tril(1), (_n(16, 16),)),
    "triu": lambda: (lambda x: x.triu(1), (_n(16, 16),)),
    "topk": lambda: (lambda x: x.topk(5), (_n(16, 64),)),
    "sort": lambda: (lambda x: x.sort(descending=True), (_n(16, 64),)),
    "argmax": lambda: (lambda x: x.argmax(-1), (_n(16, 400),)),
    "searchsorted": lambda: (
        lambda x, v: torch.searchsorted(x, v, right=True),
        (torch.arange(0, 64), _i(64, 16, 8)),
    ),
    "arange": lambda: (lambda x: torch.arange(0, 9) * x, (_n(9),)),
    "arange_alone": lambda: (lambda x: torch.arange(x.shape[0]), (_n(9),)),
}
