"""The recipes: every kind of fault that backends are known for, in the ops that have it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.faulty.acts import (
    attention_scale,
    attention_swapped,
    converted,
    converted_to_nearest,
    earlier,
    first_output,
    gelu_by_erf,
    in_two_sums,
    integer_division,
    integer_product,
    leaking,
    moved_image,
    of_output,
    one_pass_norm,
    one_pass_variance,
    padded_left,
    padding_as_wrapped,
    permuted,
    scalar,
    selected_next,
    sliced_early,
    spinning,
    times_reciprocal,
    topk_late,
    without_last,
)
from harness.faulty.changes import (
    argument,
    chopped,
    element,
    flushed,
    in_bf16,
    inputs,
    instead,
    narrowed,
    noisy,
    once,
    relaid,
    result,
    row,
    scaled,
    shifted,
    stale,
    swapped,
    with_one_nan,
    without_nan,
)
from harness.faulty.recipe import Act, Kind, Recipe
from harness.records import Status

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_LOUD = frozenset({Status.CONTRACT, Status.RUNTIME_ERROR})
_DIVERGENT = frozenset({Status.DIVERGENT})
_NON_FINITE = frozenset({Status.NON_FINITE})


def _wrong_constants() -> Iterator[Recipe]:
    def of(ops: str, what: str, act: Act) -> Recipe:
        return Recipe(Kind.WRONG_CONSTANT, what, tuple(ops.split()), act)

    for op in ("native_layer_norm", "native_batch_norm", "native_group_norm"):
        yield of(op, "eps", argument(eps=1e-3))
    yield of("native_batch_norm", "momentum", argument(momentum=lambda m: 1 - m))
    yield of("add.Tensor", "eps", scalar("other", lambda v: 1e-3 if 0 < v < 1e-4 else v))
    yield of("clamp_min", "eps", argument(min=lambda v: v + 1.0))
    yield of("mul.Tensor", "scale", scalar("other", lambda v: v * 1.01))
    yield of("div.Tensor", "scale", scalar("other", lambda v: v * 1.01))
    yield of("rsub.Scalar", "scale", argument(other=lambda v: v * 1.01))
    yield of(_ATTENTION, "scale", attention_scale)
    yield of("_softmax", "temperature", argument(self=scaled(1.01)))
    yield of("gelu", "coefficient", instead(lambda c: c["self"] * torch.sigmoid(1.702 * c["self"])))
    yield of("silu silu_", "coefficient", instead(lambda c: c["self"] * torch.sigmoid(1.01 * c["self"])))
    yield of("hardswish hardswish_", "coefficient", result(scaled(6 / 6.1)))
    yield of("hardsigmoid", "coefficient", instead(lambda c: (0.2 * c["self"] + 0.5).clamp(0, 1)))
    yield of("leaky_relu", "slope", argument(negative_slope=lambda v: v * 1.1))
    yield of("elu", "alpha", argument(alpha=lambda v: v * 1.1))
    yield of("hardtanh hardtanh_", "bound", argument(max_val=lambda v: v * 0.5))
    yield of("softplus", "threshold", argument(threshold=0.5))
    yield of("mean.dim", "count", result(scaled(1.02)))
    yield of("avg_pool2d", "count", result(scaled(1.02)))
    yield of("_adaptive_avg_pool2d", "count", result(scaled(1.02)))
    yield of("pow.Scalar", "base", argument(self=lambda v: v * 1.1))
    yield of("huber_loss", "delta", argument(delta=lambda v: v * 1.1))


def _arguments_ignored() -> Iterator[Recipe]:
    def of(ops: str, what: str, act: Act, *right: Status) -> Recipe:
        return Recipe(Kind.ARGUMENT_IGNORED, what, tuple(ops.split()), act, right=frozenset(right) or _DIVERGENT)

    for op in ("native_layer_norm", "native_batch_norm", "native_group_norm"):
        yield of(op, "weight", argument(weight=lambda w: None if w is None else torch.ones_like(w)))
        yield of(op, "bias", argument(bias=lambda b: None if b is None else torch.zeros_like(b)))
    yield of("convolution", "bias", argument(bias=None))
    yield of("convolution", "padding", padding_as_wrapped)
    yield of("convolution", "dilation", argument(dilation=[1, 1]), Status.DIVERGENT, *_LOUD)
    yield of("convolution", "stride", argument(stride=[1, 1]), Status.DIVERGENT, *_LOUD)
    yield of("addmm", "bias", argument(self=torch.zeros_like))
    yield of("addmm", "beta", argument(beta=1))
    yield of("addmm", "alpha", argument(alpha=1))
    yield of("baddbmm", "beta", argument(beta=1))
    yield of(_ATTENTION, "mask", argument(attn_mask=None))
    yield of(_ATTENTION, "is_causal", argument(is_causal=False))
    yield of(_ATTENTION, "scale", argument(scale=None))
    yield of("gelu", "approximate", argument(approximate=lambda v: "none" if v == "tanh" else "tanh"))
    yield of("softplus", "beta", argument(beta=1))
    yield of("avg_pool2d", "divisor_override", argument(divisor_override=None))
    yield of("avg_pool2d", "count_include_pad", argument(count_include_pad=lambda v: not v))
    yield of("avg_pool2d", "ceil_mode", argument(ceil_mode=False), Status.CONTRACT)
    yield of("max_pool2d_with_indices", "ceil_mode", argument(ceil_mode=False), Status.CONTRACT)
    yield of("var.correction std.correction var_mean.correction", "correction", argument(correction=0))
    yield of("add.Tensor", "alpha", argument(alpha=1))
    yield of("sub.Tensor", "alpha", argument(alpha=1))
    yield of("clamp", "max", argument(max=None))
    yield of("div.Tensor_mode", "rounding_mode", argument(rounding_mode=None), Status.DIVERGENT, *_LOUD)
    yield of("round.decimals", "decimals", argument(decimals=0))
    yield of("roll", "shifts", instead(lambda c: c["self"]))
    yield of("upsample_bilinear2d upsample_bilinear2d.vec", "align_corners", argument(align_corners=lambda v: not v))
    yield of("linalg_vector_norm", "ord", argument(ord=lambda v: 1 if v == 2 else 2))
    yield of("smooth_l1_loss", "beta", argument(beta=1.0))
    yield of("nan_to_num", "nan", argument(nan=None))
    yield of("topk", "largest", argument(largest=lambda v: not v))
    yield of("sort sort.stable", "descending", argument(descending=lambda v: not v))
    yield of("tril triu", "diagonal", argument(diagonal=0))
    yield of("argmax", "keepdim", argument(keepdim=lambda v: not v), Status.CONTRACT)
    yield of("searchsorted.Tensor", "right", argument(right=False))
    yield of("constant_pad_nd", "value", argument(value=0))
    yield of("mean.dim", "keepdim", argument(keepdim=lambda v: not v), Status.DIVERGENT, *_LOUD)
    yield of("nll_loss_forward", "ignore_index", argument(ignore_index=-100), Status.DIVERGENT, *_LOUD)
    yield of("repeat", "repeats", instead(lambda c: c["self"].expand(c().shape[-c["self"].dim() :])), *_LOUD)


def _transposed() -> Iterator[Recipe]:
    def of(ops: str, what: str, act: Act, *right: Status) -> Recipe:
        return Recipe(Kind.TRANSPOSED, what, tuple(ops.split()), act, right=frozenset(right) or _DIVERGENT)

    finite_or_not = (Status.DIVERGENT, Status.NON_FINITE)
    for op in ("addmm", "mm", "bmm"):
        yield of(op, "layout", argument(mat2=relaid))
    yield of("baddbmm", "layout", argument(batch2=relaid))
    yield of("convolution", "filter", argument(weight=relaid))
    yield of("sub.Tensor", "operands", instead(lambda c: -c()))
    yield of("div.Tensor", "operands", result(torch.reciprocal), *finite_or_not)
    yield of("pow.Tensor_Tensor", "operands", swapped("self", "exponent"), *finite_or_not)
    yield of("where.self", "operands", swapped("self", "other"), *finite_or_not)
    yield of("gt.Tensor ge.Tensor le.Tensor lt.Tensor", "operands", swapped("self", "other"), *finite_or_not)
    yield of("atan2", "operands", swapped("self", "other"))
    yield of("cat", "operands", argument(tensors=lambda tensors: list(reversed(tensors))), Status.DIVERGENT, *_LOUD)
    yield of(_ATTENTION, "operands", attention_swapped)
    yield of("_softmax", "axis", argument(dim=-2), *finite_or_not)
    yield of("cumsum", "axis", argument(dim=0))
    yield of("permute", "order", permuted, Status.DIVERGENT, *_LOUD)


def _off_by_one() -> Iterator[Recipe]:
    def of(ops: str, what: str, act: Act, *right: Status) -> Recipe:
        return Recipe(Kind.OFF_BY_ONE, what, tuple(ops.split()), act, right=frozenset(right) or _DIVERGENT)

    for op in ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"):
        yield of(op, "window", argument(self=moved_image))
    yield of("upsample_bilinear2d upsample_bilinear2d.vec", "pixel", argument(self=shifted, input=shifted))
    yield of("upsample_nearest2d upsample_nearest2d.vec", "pixel", result(shifted))
    yield of("upsample_bicubic2d", "pixel", result(shifted))
    yield of("convolution", "padding", argument(input=moved_image))
    yield of("constant_pad_nd", "side", padded_left)
    yield of("slice.Tensor", "start", sliced_early)
    yield of("select.int", "index", selected_next)
    yield of("roll", "shift", argument(shifts=lambda s: [s[0] + 1, *s[1:]]))
    yield of("cumsum", "exclusive", instead(lambda c: c() - c["self"].to(c().dtype)))
    yield of("gather", "index", argument(index=lambda i: (i - 1).clamp(min=0)))
    yield of("index_select", "index", argument(index=lambda i: (i - 1).clamp(min=0)))
    yield of("index.Tensor", "index", argument(indices=earlier))
    yield of("embedding", "index", argument(indices=lambda i: (i - 1).clamp(min=0)))
    yield of("arange arange.start", "start", result(lambda x: x + 1), Status.DIVERGENT, Status.RUNTIME_ERROR)
    yield of("tril triu", "diagonal", argument(diagonal=lambda d: d + 1))
    yield of("im2col", "window", argument(self=shifted))
    yield of("topk", "rank", topk_late)
    yield of("argmax", "index", result(lambda x: (x - 1).clamp(min=0)))
    yield of("mean.dim", "count", without_last)
    yield of("sum.dim_IntList", "count", without_last)
    yield of("max.dim amax", "count", without_last)
    yield of("searchsorted.Tensor", "index", result(lambda x: x + 1))
    yield of("convolution", "dilation", argument(weight=lambda w: w.flip(-1)))


def _precision() -> Iterator[Recipe]:
    sums: tuple[str, ...]
    sums = ("convolution", "addmm", "mm", "bmm", "baddbmm", _ATTENTION, "native_layer_norm", "native_group_norm")
    sums += ("native_batch_norm", "_softmax", "_log_softmax", "mean.dim", "sum.dim_IntList", "cumsum", "logsumexp")
    sums += ("linalg_vector_norm", "var.correction", "_adaptive_avg_pool2d", "avg_pool2d", "upsample_bilinear2d")
    for op in sums:
        yield Recipe(Kind.BF16_ACCUMULATION, "", (op,), inputs(in_bf16))
    maps = ("gelu", "tanh", "exp", "rsqrt", "sin", "cos", "sigmoid", "log", "erf", "softplus", "pow.Tensor_Scalar")
    for op in maps:
        yield Recipe(Kind.BF16_ACCUMULATION, "", (op,), inputs(in_bf16))
    flushing = ("_softmax", "exp", "sigmoid", "gelu", "silu", "mul.Tensor", "pow.Tensor_Scalar", "div.Tensor")
    for op in (*flushing, "embedding", "addmm"):
        yield Recipe(Kind.FLUSH_TO_ZERO, "", (op,), result(flushed))
    for op in ("convolution", "addmm", "mm", "bmm", "mul.Tensor", "add.Tensor", "native_layer_norm", "gelu"):
        yield Recipe(Kind.ROUNDING_MODE, "toward-zero", (op,), result(chopped))
    half_up = instead(lambda c: (c["self"] + 0.5).floor())
    yield Recipe(Kind.ROUNDING_MODE, "half-up", ("round",), half_up)
    yield Recipe(Kind.ROUNDING_MODE, "nearest", ("_to_copy",), converted_to_nearest)
    other = {"floor": "trunc", "trunc": "floor"}
    yield Recipe(
        Kind.ROUNDING_MODE, "other", ("div.Tensor_mode",), argument(rounding_mode=lambda mode: other.get(mode, mode))
    )
    yield Recipe(Kind.ROUNDING_MODE, "ceil", ("floor",), instead(lambda c: c["self"].ceil()))
    for op in ("native_layer_norm", "native_group_norm", "native_batch_norm"):
        yield Recipe(Kind.ONE_PASS_VARIANCE, "", (op,), one_pass_norm, right=_DIVERGENT | _NON_FINITE)
    for op in ("var.correction", "std.correction", "var_mean.correction"):
        yield Recipe(Kind.ONE_PASS_VARIANCE, "", (op,), one_pass_variance, right=_DIVERGENT | _NON_FINITE)


def _non_finite() -> Iterator[Recipe]:
    swallowing: tuple[str, ...]
    swallowing = ("relu relu_", "max_pool2d_with_indices", "clamp clamp_min", "maximum", "minimum", "_softmax", "gelu")
    swallowing += ("mean.dim", "sum.dim_IntList", "amax", "addmm", "mul.Tensor", "convolution", "native_layer_norm")
    swallowing += ("cumsum", "hardtanh hardtanh_", "add.Tensor")
    for ops in swallowing:
        yield Recipe(Kind.NAN_SWALLOWED, "", tuple(ops.split()), inputs(without_nan), right=_NON_FINITE)
    for op in ("addmm", "convolution", "native_layer_norm", _ATTENTION, "gelu", "mul.Tensor", "bmm", "add.Tensor"):
        yield Recipe(Kind.NAN_MADE, "element", (op,), once(result(with_one_nan)), right=_NON_FINITE)

    def of(ops: str, what: str, compute: Any) -> Recipe:
        return Recipe(Kind.NAN_MADE, what, tuple(ops.split()), instead(compute), right=_NON_FINITE)

    yield of("_softmax", "no-maximum-taken", lambda c: c["self"].exp() / c["self"].exp().sum(c["dim"], keepdim=True))
    yield of("logsumexp", "no-maximum-taken", lambda c: c["self"].exp().sum(c["dim"], keepdim=c["keepdim"]).log())
    yield of("silu silu_", "exp-overflows", lambda c: c["self"] * c["self"].exp() / (1 + c["self"].exp()))
    yield of("tanh", "exp-overflows", lambda c: ((2 * c["self"]).exp() - 1) / ((2 * c["self"]).exp() + 1))
    yield of("softplus", "exp-overflows", lambda c: (c["beta"] * c["self"]).exp().log1p() / c["beta"])
    yield of("pow.Tensor_Scalar", "by-logarithm", lambda c: (c["self"].log() * c["exponent"]).exp())
    yield of("linalg_vector_norm", "fp16-overflows", lambda c: c().masked_fill(c().abs() > 65504, torch.inf))


def _types() -> Iterator[Recipe]:
    right = _DIVERGENT | _LOUD
    for op, dtype in (
        ("addmm", torch.bfloat16),
        ("native_layer_norm", torch.float64),
        ("mean.dim", torch.float16),
        ("_softmax", torch.float64),
        ("convolution", torch.float64),
        ("add.Tensor", torch.float64),
        ("argmax", torch.int32),
        ("eq.Scalar", torch.uint8),
        ("sum", torch.int32),
        ("arange", torch.int32),
        ("cumsum", torch.float64),
    ):
        yield Recipe(Kind.DTYPE_PROMOTION, str(dtype)[6:], (op,), result(converted(dtype)), right=right)
    yield Recipe(Kind.DTYPE_PROMOTION, "integer", ("div.Tensor",), instead(integer_division), right=right)
    yield Recipe(Kind.DTYPE_PROMOTION, "integer", ("mul.Tensor",), instead(integer_product), right=right)
    for op, narrow in (
        ("cumsum", torch.int32),
        ("mul.Tensor", torch.int32),
        ("add.Tensor", torch.int32),
        ("sum", torch.int32),
        ("prod", torch.int32),
        ("bitwise_left_shift.Tensor", torch.int32),
        ("embedding", torch.uint8),
        ("gather", torch.uint8),
        ("index_select", torch.uint8),
        ("argmax", torch.int8),
        ("floor_divide", torch.int32),
    ):
        yield Recipe(Kind.INT_OVERFLOW, str(narrow)[6:], (op,), narrowed(narrow), right=right)


def _states() -> Iterator[Recipe]:
    for op in ("addmm", "mm", "bmm", "convolution", "native_layer_norm", _ATTENTION, "gelu", "mul.Tensor", "_softmax"):
        yield Recipe(Kind.STALE_OUTPUT, "", (op,), stale)
    for op in ("addmm", "convolution", "mean.dim", "native_layer_norm", "index_add", "bmm", "cumsum", _ATTENTION):
        yield Recipe(Kind.NON_DETERMINISM, "", (op,), noisy)
    for op in ("addmm", "convolution", "native_layer_norm", "gelu", _ATTENTION, "mm", "embedding", "mul.Tensor", "cat"):
        yield Recipe(Kind.CORRUPTED, "element", (op,), once(result(element)))
        yield Recipe(Kind.CORRUPTED, "row", (op,), once(result(row)))
    yield Recipe(Kind.CORRUPTED, "output-element", after=of_output(element))
    yield Recipe(Kind.CORRUPTED, "output-row", after=of_output(row))
    fallback = frozenset({Status.PASS_WITH_FALLBACK, Status.NOT_EXECUTED})
    for op in ("addmm", "convolution", "native_layer_norm", "gelu", "mul.Tensor", "_softmax"):
        yield Recipe(Kind.HIDDEN_FALLBACK, "", (op,), lambda call: call(), right=fallback)
    not_executed = frozenset({Status.NOT_EXECUTED})
    yield Recipe(Kind.HIDDEN_FALLBACK, "all", act=lambda call: call(), right=not_executed)
    yield Recipe(Kind.NOT_EXECUTED, after=lambda seen, _: replace(seen, executed={}), right=not_executed)
    yield Recipe(Kind.STALE_OUTPUT, "run", after=first_output)


def _deaths() -> Iterator[Recipe]:
    def of(kind: Kind, what: str, act: Act, right: Status) -> Recipe:
        return Recipe(kind, what, act=act, right=frozenset({right}), in_process=False)

    yield of(Kind.HANG, "", lambda call: time.sleep(10_000), Status.TIMEOUT)
    yield of(Kind.HANG, "busy", spinning, Status.TIMEOUT)
    yield of(Kind.ABORT, "", lambda call: os.abort(), Status.CRASH)
    yield of(Kind.ABORT, "exit", lambda call: os._exit(0), Status.CRASH)
    yield of(Kind.LEAK, "", leaking, Status.OUT_OF_MEMORY)


def _harmless() -> Iterator[Recipe]:
    def of(op: str, what: str, act: Act) -> Recipe:
        return Recipe(Kind.HARMLESS, what, (op,), act, right=frozenset({Status.PASS}))

    for op in ("mul.Tensor", "exp", "_softmax", "pow.Tensor_Scalar"):
        yield of(op, "subnormals-flushed", result(lambda x: x.masked_fill(x.abs() < 2**-126, 0)))
    yield of("mm", "in-two-sums", in_two_sums("self", "mat2"))
    yield of("bmm", "in-two-sums", in_two_sums("self", "mat2"))
    yield of("addmm", "in-two-sums", in_two_sums("mat1", "mat2"))
    for op in ("convolution", "native_layer_norm", "native_group_norm", "addmm", "cumsum", "mean.dim", "_softmax"):
        yield of(op, "in-fp64", inputs(Tensor.double))
    yield of("gelu", "by-erf", instead(gelu_by_erf))
    yield of("silu", "by-division", instead(lambda c: c["self"] / (1 + c["self"].neg().exp())))
    yield of("rsqrt", "by-division", instead(lambda c: 1 / c["self"].sqrt()))
    yield of("div.Tensor", "by-reciprocal", instead(times_reciprocal))


def all_recipes() -> Iterator[Recipe]:
    """Every recipe."""
    groups = (_wrong_constants, _arguments_ignored, _transposed, _off_by_one, _precision, _non_finite, _types, _states)
    for group in (*groups, _harmless, _deaths):
        yield from group()


RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in all_recipes()}
"""Every recipe by its name."""
