"""The ops, their default calls, and a changed value for each scalar argument, as data.

Shapes and values are chosen so that every change shows: sizes that a stride does not divide, ties, values at limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_zoo.sources.op.draws import Draw, booleans, integers, kind, normal, steps, uniform


@dataclass(frozen=True)
class Op:
    """A function of torch, how it is called, and what a probe changes in the call."""

    function: str
    """Its name within torch: `nn.functional.softplus`."""
    inputs: Mapping[str, Draw | list[Draw]]
    """Tensors by the names of the function's arguments."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> a value for a probe; a `Draw` is a tensor that the default call goes without."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the default call that are no tensors."""
    variant: str = ""
    """Tells ops of one function apart: `interpolate-bicubic`."""

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.function.rpartition(".")[2]

    @property
    def label(self) -> str:
        """How a model id writes it; `fft.norm` and `linalg.norm` keep their module's name."""
        label = self.function.removeprefix("nn.functional.")
        return f"{label}-{self.variant}" if self.variant else label


def _f(name: str, inputs: Mapping[str, Any], changes: Mapping[str, Any] | None = None, **more: Any) -> Op:
    return Op(f"nn.functional.{name}", inputs, changes or {}, **more)


def _loss(name: str, changes: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, **more: Any) -> Op:
    inputs = inputs or {"input": normal(8, 16), "target": normal(8, 16).held}
    return _f(name, inputs, {**changes, "reduction": "sum"}, **more)


_X = {"input": normal(8, 16)}
_PAIR = {"input": normal(8, 16), "other": normal(8, 16)}
_POSITIVE = {"input": uniform(8, 16)}
_HALVES = {"input": kind("halves", 8, 16)}
_CUBE = {"input": normal(3, 5, 7)}
_IMAGE = {"input": normal(2, 4, 11, 9)}

_ACTIVATIONS = [
    _f("softplus", _X, {"beta": 2.0, "threshold": 0.5}),
    _f("gelu", {"input": uniform(8, 16, low=-4.0, high=2.0)}, {"approximate": "tanh"}),
    _f("leaky_relu", _X, {"negative_slope": 0.3}),
    _f("elu", _X, {"alpha": 2.0}),
    _f("celu", _X, {"alpha": 2.0}),
    _f("hardtanh", _X, {"min_val": -0.5, "max_val": 0.5}),
    _f("threshold", _X, {"threshold": 0.5, "value": -3.0}, call={"threshold": 0.1, "value": 2.0}),
    _f("rrelu", _X, {"lower": 0.02, "upper": 0.9}),
    _f("softshrink", _X, {"lambd": 1.0}),
    _f("hardshrink", _X, {"lambd": 1.0}),
    _f("glu", _X, {"dim": 0}),
    _f("softmax", _X, {"dim": 0}, call={"dim": -1}),
    _f("log_softmax", _X, {"dim": 0}, call={"dim": -1}),
    _f("softmin", _X, {"dim": 0}, call={"dim": -1}),
    _f("normalize", _X, {"p": 1.0, "dim": 0, "eps": 9.0}),
    _f("prelu", {**_X, "weight": uniform(1).held}),
    *(_f(name, _X) for name in ("relu", "relu6", "silu", "mish", "selu", "logsigmoid", "hardswish", "hardsigmoid")),
    *(Op(name, _X) for name in ("sigmoid", "tanh", "exp", "erf")),
]

_AVERAGE = {"kernel_size": 2, "stride": 1, "padding": 0, "ceil_mode": True, "count_include_pad": False}
_MAXIMUM = {"kernel_size": 2, "stride": 1, "padding": 0, "dilation": 2, "ceil_mode": True}
_POOL = {"kernel_size": 3, "stride": 2, "padding": 1}

_POOLING = [
    _f("avg_pool1d", {"input": normal(2, 4, 12)}, _AVERAGE, call=_POOL),
    _f("avg_pool2d", {"input": normal(2, 4, 12, 10)}, {**_AVERAGE, "divisor_override": 5}, call=_POOL),
    _f("avg_pool3d", {"input": normal(1, 2, 6, 8, 10)}, {**_AVERAGE, "divisor_override": 5}, call=_POOL),
    _f("max_pool1d", {"input": normal(2, 4, 12)}, _MAXIMUM, call=_POOL),
    _f("max_pool2d", {"input": normal(2, 4, 12, 10)}, _MAXIMUM, call=_POOL),
    _f("max_pool3d", {"input": normal(1, 2, 6, 8, 10)}, _MAXIMUM, call=_POOL),
    _f(
        "lp_pool1d",
        {"input": uniform(2, 4, 12)},
        {"norm_type": 3.0, "kernel_size": 2, "stride": 1, "ceil_mode": True},
        call={"norm_type": 2.0, "kernel_size": 3, "stride": 2},
    ),
    _f(
        "lp_pool2d",
        {"input": uniform(2, 4, 12, 10)},
        {"norm_type": 3.0, "kernel_size": 2, "stride": 1, "ceil_mode": True},
        call={"norm_type": 2.0, "kernel_size": 3, "stride": 2},
    ),
    _f("adaptive_avg_pool1d", {"input": normal(2, 4, 11)}, {"output_size": 3}, call={"output_size": 4}),
    _f("adaptive_avg_pool2d", _IMAGE, {"output_size": (2, 5)}, call={"output_size": (3, 4)}),
    _f("adaptive_max_pool1d", {"input": normal(2, 4, 11)}, {"output_size": 3}, call={"output_size": 4}),
    _f("adaptive_max_pool2d", _IMAGE, {"output_size": (2, 5)}, call={"output_size": (3, 4)}),
    _f("unfold", _IMAGE, {"kernel_size": 2, "dilation": 2, "padding": 1, "stride": 2}, call={"kernel_size": 3}),
    _f("fold", {"input": normal(2, 18, 16)}, call={"output_size": (6, 6), "kernel_size": 3}),
]


def _convolution(axes: int) -> Op:
    space = (11, 9, 7)[:axes]
    inputs = {"input": normal(2, 4, *space), "weight": normal(6, 2, *[3] * axes).held, "bias": normal(6).held}
    changes = {"stride": 2, "padding": 1, "dilation": 2}
    return _f(f"conv{axes}d", inputs, changes, call={"groups": 2})


def _transposed(axes: int) -> Op:
    space = (5, 4, 3)[:axes]
    inputs = {"input": normal(2, 4, *space), "weight": normal(4, 3, *[3] * axes).held}
    changes = {"stride": 3, "padding": 0, "output_padding": 1, "dilation": 2, "groups": 2}
    return _f(f"conv_transpose{axes}d", inputs, changes, call={"stride": 2, "padding": 1})


_CONVOLUTIONS = [
    *(_convolution(axes) for axes in (1, 2, 3)),
    *(_transposed(axes) for axes in (1, 2, 3)),
    _f(
        "conv2d",
        {"input": normal(2, 4, 11, 9), "weight": normal(6, 4, 3, 3).held},
        {"padding": "same"},
        call={"padding": "valid"},
        variant="padding",
    ),
    _f("linear", {**_X, "weight": normal(12, 16).held}, {"bias": normal(12)}),
    _f("bilinear", {"input1": normal(8, 5), "input2": normal(8, 6), "weight": normal(4, 5, 6).held}),
]

_NORMALISATION = [
    _f(
        "layer_norm",
        _X,
        {"eps": 1.0, "weight": uniform(16), "bias": normal(16)},
        call={"normalized_shape": (16,)},
    ),
    _f("rms_norm", _X, {"eps": 1.0, "weight": uniform(16)}, call={"normalized_shape": (16,)}),
    _f("group_norm", _IMAGE, {"num_groups": 4, "eps": 1.0, "weight": uniform(4)}, call={"num_groups": 2}),
    _f("instance_norm", _IMAGE, {"eps": 1.0, "weight": uniform(4)}),
    _f(
        "batch_norm",
        {**_IMAGE, "running_mean": normal(4).held, "running_var": uniform(4).held},
        {"eps": 1.0, "weight": uniform(4), "bias": normal(4)},
    ),
    _f(
        "local_response_norm",
        {"input": normal(2, 8, 5, 5)},
        {"size": 5, "alpha": 2.0, "beta": 1.5, "k": 2.0},
        call={"size": 3, "alpha": 0.5},
    ),
]

_CLASSES = {"input": kind("columns", 64, 6), "target": integers(64, low=3, high=6).held}
_LOGITS = {"input": normal(8, 16), "target": uniform(8, 16).held}
_TRIPLE = {"anchor": normal(8, 16), "positive": normal(8, 16), "negative": normal(8, 16)}

_LOSSES = [
    _loss("mse_loss", {}),
    _loss("l1_loss", {}),
    _loss("smooth_l1_loss", {"beta": 0.3}),
    _loss("huber_loss", {"delta": 0.3}),
    _loss("cross_entropy", {"label_smoothing": 0.2, "ignore_index": 3}, _CLASSES),
    _loss(
        "cross_entropy",
        {"label_smoothing": 0.2, "ignore_index": 3, "weight": uniform(6)},
        _CLASSES,
        call={"reduction": "none"},
        variant="none",
    ),
    _loss(
        "cross_entropy",
        {"label_smoothing": 0.2},
        {"input": normal(8, 6), "target": uniform(8, 6).held},
        variant="probabilities",
    ),
    _loss("nll_loss", {"ignore_index": 3, "weight": uniform(6)}, _CLASSES, call={"reduction": "none"}),
    _loss("binary_cross_entropy", {"weight": uniform(16)}, {"input": uniform(8, 16).held, "target": uniform(8, 16)}),
    _loss("binary_cross_entropy_with_logits", {"pos_weight": uniform(16), "weight": uniform(16)}, _LOGITS),
    _loss("kl_div", {"log_target": True}, _LOGITS),
    _loss("kl_div", {}, _LOGITS, call={"reduction": "batchmean"}, variant="batchmean"),
    _loss("poisson_nll_loss", {"full": True}, {"input": normal(8, 16), "target": integers(8, 16, high=9).held}),
    _loss(
        "poisson_nll_loss",
        {"log_input": True, "eps": 0.5},
        {"input": uniform(8, 16), "target": uniform(8, 16).held},
        call={"log_input": False},
        variant="rates",
    ),
    _loss(
        "gaussian_nll_loss",
        {"full": True, "eps": 0.5},
        call={"var": 0.1},
    ),
    _loss("hinge_embedding_loss", {"margin": 2.0}, {"input": normal(8, 16), "target": kind("signs", 8, 16).held}),
    _loss(
        "margin_ranking_loss",
        {"margin": 0.5},
        {"input1": normal(16), "input2": normal(16), "target": kind("signs", 16).held},
    ),
    _loss(
        "cosine_embedding_loss",
        {"margin": -0.5},
        {"input1": normal(8, 16), "input2": normal(8, 16), "target": kind("signs", 8).held},
    ),
    _loss("soft_margin_loss", {}, {"input": normal(8, 16), "target": kind("signs", 8, 16).held}),
    _loss("multi_margin_loss", {"p": 2, "margin": 2.0, "weight": uniform(6)}, _CLASSES),
    _loss("multilabel_soft_margin_loss", {"weight": uniform(16)}, _LOGITS),
    _loss("triplet_margin_loss", {"margin": 3.0, "p": 1.0, "swap": True}, _TRIPLE),
    _f("cosine_similarity", {"x1": normal(8, 16), "x2": normal(8, 16)}, {"dim": 0, "eps": 30.0}),
    _f("pairwise_distance", {"x1": normal(8, 16), "x2": normal(8, 16)}, {"p": 1.0, "eps": 0.5, "keepdim": True}),
    _f("pdist", _X, {"p": 1.0}),
    Op("cdist", {"x1": normal(8, 16), "x2": normal(5, 16)}, {"p": 1.0}),
    Op("cdist", {"x1": normal(8, 16), "x2": normal(5, 16)}, {"p": 3.0}, {"p": float("inf")}, "infinity"),
]

_HEADS = {"query": normal(2, 3, 6, 8), "key": normal(2, 3, 6, 8), "value": normal(2, 3, 6, 8)}
_GRID = {"input": normal(2, 3, 7, 5), "grid": uniform(2, 6, 4, 2, low=-1.3, high=1.3).held}
_ENLARGE = {"scale_factor": 2.0}

_VISION_AND_ATTENTION = [
    _f("scaled_dot_product_attention", _HEADS, {"scale": 1.0, "is_causal": True, "attn_mask": booleans(6, 6)}),
    _f(
        "scaled_dot_product_attention",
        {**_HEADS, "attn_mask": booleans(2, 1, 6, 6, share=0.7)},
        {"scale": 1.0},
        variant="mask",
    ),
    _f("interpolate", _IMAGE, {"mode": "nearest-exact", "scale_factor": 0.7}, call={"scale_factor": 1.5}),
    *(
        _f(
            "interpolate",
            {"input": normal(1, 2, 7, 9)},
            {"align_corners": True, "scale_factor": 1.5},
            call={**_ENLARGE, "mode": mode, "align_corners": False},
            variant=mode,
        )
        for mode in ("bilinear", "bicubic")
    ),
    *(
        _f(
            "interpolate",
            {"input": normal(1, 2, 14, 18)},
            {"antialias": True, "recompute_scale_factor": True},
            call={"scale_factor": 0.4, "mode": mode, "align_corners": False},
            variant=f"{mode}-down",
        )
        for mode in ("bilinear", "bicubic")
    ),
    _f(
        "interpolate",
        {"input": normal(2, 3, 9)},
        {"align_corners": True},
        call={**_ENLARGE, "mode": "linear"},
        variant="linear",
    ),
    _f(
        "interpolate",
        {"input": normal(1, 2, 4, 5, 6)},
        {"align_corners": True},
        call={**_ENLARGE, "mode": "trilinear"},
        variant="trilinear",
    ),
    _f(
        "grid_sample",
        _GRID,
        {"mode": "nearest", "padding_mode": "border", "align_corners": True},
        call={"align_corners": False},
    ),
    _f("grid_sample", _GRID, {"mode": "bicubic"}, call={"padding_mode": "reflection"}, variant="reflection"),
    _f(
        "affine_grid",
        {"theta": normal(2, 2, 3)},
        {"align_corners": True},
        call={"size": (2, 3, 5, 4), "align_corners": False},
    ),
    _f("pixel_shuffle", {"input": normal(1, 16, 3, 3)}, {"upscale_factor": 4}, call={"upscale_factor": 2}),
    _f("pixel_unshuffle", {"input": normal(1, 2, 8, 8)}, {"downscale_factor": 4}, call={"downscale_factor": 2}),
    _f("channel_shuffle", {"input": normal(1, 8, 3, 3)}, {"groups": 4}, call={"groups": 2}),
    _f(
        "pad",
        _IMAGE,
        {"value": 1.5, "mode": "reflect", "pad": (2, 1, 1, 2)},
        call={"pad": (1, 2, 2, 1)},
    ),
    _f("pad", _IMAGE, {"mode": "circular"}, call={"pad": (1, 2, 2, 1), "mode": "replicate"}, variant="replicate"),
    _f("pad", _IMAGE, {"pad": (-1, 2, 2, -1)}, call={"pad": (1, -2, 2, -1)}, variant="crop"),
    _f("embedding", {"input": integers(4, 8, high=10), "weight": normal(10, 6).held}),
    *(
        _f(
            "embedding_bag",
            {"input": integers(8, 8), "weight": normal(5, 6).held},
            {"mode": "max" if mode == "mean" else "mean", "padding_idx": 3},
            call={"mode": mode},
            variant=mode,
        )
        for mode in ("mean", "sum")
    ),
    _f("one_hot", {"input": integers(4, 8)}, {"num_classes": 9}, call={"num_classes": 5}),
]

_POINTWISE = [
    Op("add", _PAIR, {"alpha": 3}),
    Op("sub", _PAIR, {"alpha": 3}),
    Op("rsub", _PAIR, {"alpha": 3}),
    Op("div", _PAIR, {"rounding_mode": "floor"}),
    Op("div", _PAIR, {"rounding_mode": "floor"}, {"rounding_mode": "trunc"}, "trunc"),
    Op(
        "div",
        {"input": integers(8, 16, low=-20, high=20), "other": integers(8, 16, low=2, high=7).held},
        {"rounding_mode": "trunc"},
        {"rounding_mode": "floor"},
        "integers",
    ),
    Op("clamp", _X, {"min": 0.0, "max": 0.2}, {"min": -0.5, "max": 0.5}),
    Op("clip", _X, {"min": -0.5}, {"max": 0.5}),
    Op("addcmul", {**_X, "tensor1": normal(8, 16), "tensor2": normal(8, 16)}, {"value": 3.0}),
    Op("addcdiv", {**_X, "tensor1": normal(8, 16), "tensor2": uniform(8, 16)}, {"value": 3.0}),
    Op("lerp", {"input": normal(8, 16), "end": normal(8, 16)}, {"weight": 0.8}, {"weight": 0.3}),
    Op("round", _X, {"decimals": 2}),
    Op("round", {"input": uniform(8, 16, low=-900, high=900)}, {"decimals": 0}, {"decimals": -2}, "tens"),
    Op("nan_to_num", {"input": kind("special", 8, 16)}, {"nan": 2.0, "posinf": 3.0, "neginf": -4.0}),
    Op("isclose", {"input": uniform(64), "other": uniform(64)}, {"rtol": 0.5, "atol": 0.2}),
    Op(
        "isclose",
        {"input": kind("special", 8, 16), "other": kind("special", 8, 16)},
        {"equal_nan": True},
        variant="nan",
    ),
    Op("pow", _POSITIVE, {"exponent": 2.5}, {"exponent": 2}),
    Op("float_power", _POSITIVE, {"exponent": 2.5}, {"exponent": 2}),
    Op("remainder", _X, {"other": -0.7}, {"other": 0.7}),
    Op("fmod", _X, {"other": 0.4}, {"other": 0.7}),
    Op("floor_divide", _X, {"other": -0.3}, {"other": 0.3}),
    Op("logit", {"input": uniform(8, 16, low=0.0, high=1.0)}, {"eps": 0.3}, {"eps": 1e-3}),
    Op("polygamma", _POSITIVE, {"n": 2}, {"n": 1}),
    Op("mvlgamma", {"input": uniform(8, 16, low=3, high=9)}, {"p": 3}, {"p": 2}),
    Op("bitwise_left_shift", {"input": integers(8, 16, low=-9, high=99)}, {"other": 3}, {"other": 1}),
    Op("bitwise_right_shift", {"input": integers(8, 16, low=-99, high=99)}, {"other": 3}, {"other": 1}),
    Op("isin", {"elements": integers(8, 16), "test_elements": integers(2).held}, {"invert": True}),
    Op("bucketize", {"input": kind("halves", 8, 16), "boundaries": steps(9).held}, {"right": True}),
    Op("bucketize", {"input": normal(8, 16), "boundaries": steps(9).held}, {"out_int32": True}, {}, "dtype"),
    Op(
        "searchsorted",
        {"sorted_sequence": steps(9).held, "input": kind("halves", 8, 16)},
        {"right": True, "side": "right", "out_int32": True},
    ),
    *(Op(name, _PAIR) for name in ("atan2", "hypot", "copysign", "logaddexp", "maximum", "nextafter")),
    *(Op(name, {"input": integers(8, 16, low=-99, high=99)}) for name in ("abs", "neg", "sign", "bitwise_not")),
]

_DIM = {"dim": 0, "keepdim": True}
_ROWS = {"dim": 1}

_REDUCTIONS = [
    *(Op(name, _CUBE, _DIM, _ROWS) for name in ("sum", "mean", "amax", "amin", "logsumexp", "nansum", "nanmean")),
    *(Op(name, {"input": uniform(3, 5, 7)}, _DIM, _ROWS) for name in ("prod", "median", "max", "min")),
    *(Op(name, _CUBE, _DIM, _ROWS) for name in ("argmax", "argmin", "aminmax")),
    *(Op(name, _CUBE, {**_DIM, "correction": 0}, _ROWS) for name in ("var", "std", "var_mean", "std_mean")),
    *(Op(name, {"input": booleans(3, 5, 7)}, _DIM, _ROWS) for name in ("all", "any")),
    Op("count_nonzero", {"input": integers(3, 5, 7, high=3)}, {"dim": 0}, _ROWS),
    Op("norm", _CUBE, {**_DIM, "p": 1.0}, {"p": 2.0, **_ROWS}),
    Op("linalg.vector_norm", _CUBE, {**_DIM, "ord": 1.0}, _ROWS, "dim"),
    Op("linalg.vector_norm", {"x": normal(8, 16)}, {"ord": 0.0}, {"ord": float("inf")}),
    Op("linalg.matrix_norm", {"input": normal(4, 12)}, {"ord": float("inf")}),
    Op("linalg.matrix_norm", {"input": normal(4, 6)}, {"ord": 2}, {"ord": "nuc"}, "nuclear"),
    Op("dist", _PAIR, {"p": 1.0}),
    Op("renorm", _X, {"p": 1.0, "dim": 1, "maxnorm": 0.5}, {"p": 2.0, "dim": 0, "maxnorm": 1.0}),
    Op("quantile", _X, {"q": 0.3, "dim": 0, "keepdim": True, "interpolation": "lower"}, {"q": 0.77, "dim": 1}),
    Op("quantile", _X, {"interpolation": "midpoint"}, {"q": 0.77, "dim": 1, "interpolation": "nearest"}, "nearest"),
    Op("nanquantile", _X, {"interpolation": "higher"}, {"q": 0.77, "dim": 1}),
    Op("kthvalue", _X, {"k": 5, **_DIM}, {"k": 2}),
    Op("mode", {"input": integers(8, 16)}, _DIM),
    Op("topk", _X, {"k": 5, "largest": False, "dim": 0}, {"k": 3}),
    Op("sort", _X, {"descending": True, "dim": 0}),
    Op("sort", _HALVES, {"descending": True}, {"stable": True}, "stable"),
    Op("argsort", _X, {"descending": True, "dim": 0}),
    Op("histc", {"input": normal(64)}, {"bins": 9, "min": -1.0, "max": 1.0}, {"bins": 5, "min": -3.0, "max": 3.0}),
    *(Op(name, _X, {"dim": 0}, _ROWS) for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")),
    Op("trapezoid", {"y": normal(8, 16)}, {"dx": 0.5, "dim": 0}),
    Op("cumulative_trapezoid", {"y": normal(8, 16)}, {"dx": 0.5, "dim": 0}),
    Op("diff", _X, {"n": 2, "dim": 0}),
    Op("diff", _X, {"prepend": normal(8, 1), "append": normal(8, 1)}, variant="ends"),
]

_SHAPE = [
    Op("roll", _X, {"shifts": -2, "dims": 0}, {"shifts": 3, "dims": 1}),
    Op("flip", _X, {"dims": (0, 1)}, {"dims": (0,)}),
    Op("rot90", _X, {"k": 2, "dims": (1, 0)}),
    Op("tril", _X, {"diagonal": -2}),
    Op("triu", _X, {"diagonal": 2}),
    Op("diag", _X, {"diagonal": 2}),
    Op("diagonal", _CUBE, {"offset": 1, "dim1": 2, "dim2": 2}),
    Op("diag_embed", _X, {"offset": 2, "dim1": 0}),
    Op("repeat_interleave", _X, {"repeats": 2, "dim": 0}, {"repeats": 3, "dim": 1}),
    Op("tile", _X, {"dims": (2, 1)}, {"dims": (1, 2)}),
    Op("permute", _CUBE, {"dims": (2, 1, 0)}, {"dims": (1, 2, 0)}),
    Op("transpose", _CUBE, {"dim0": 0}, {"dim0": 1, "dim1": 2}),
    Op("movedim", _CUBE, {"source": 1}, {"source": 0, "destination": 2}),
    Op("narrow", _X, {"start": 3, "dim": 0, "length": 4}, {"dim": 1, "start": 1, "length": 5}),
    Op("select", _X, {"index": -1, "dim": 0}, {"dim": 1, "index": 2}),
    Op("unsqueeze", _X, {"dim": 0}, {"dim": 1}),
    Op("unflatten", _X, {"sizes": (4, 4)}, {"dim": 1, "sizes": (2, 8)}),
    Op("flatten", _CUBE, {"start_dim": 1, "end_dim": 1}),
    Op("cat", {"tensors": [normal(4, 4), normal(4, 4)]}, {"dim": 1}),
    Op("stack", {"tensors": [normal(4, 4), normal(4, 4)]}, {"dim": 1}),
    Op("chunk", _X, {"dim": 1}, {"chunks": 2}),
    Op("split", {"tensor": normal(8, 8)}, {"dim": 1}, {"split_size_or_sections": 4}),
    Op("cross", {"input": normal(3, 4, 3), "other": normal(3, 4, 3)}, {"dim": 0}, {"dim": -1}),
    Op("tensordot", {"a": normal(4, 4, 4), "b": normal(4, 4, 4)}, {"dims": 2}, {"dims": 1}),
    Op("vander", {"x": normal(6)}, {"N": 4, "increasing": True}),
    Op("full_like", _X, {"fill_value": 2.0}, {"fill_value": 1.0}),
    Op("masked_fill", {**_X, "mask": booleans(8, 16).held}, {"value": 2.0}, {"value": -1.0}),
    Op("index_fill", {**_X, "index": integers(3).held}, {"value": 2.0, "dim": 0}, {"value": -1.0, "dim": 1}),
    Op("index_select", {**_X, "index": integers(3).held}, {"dim": 0}, {"dim": 1}),
    Op("gather", {**_X, "index": integers(5, 5).held}, {"dim": 0}, {"dim": 1}),
    Op("index_add", {**_X, "index": integers(8).held, "source": normal(8, 16)}, {"alpha": 3.0}, {"dim": 0}),
    *(
        Op(
            "index_reduce",
            {**_X, "index": integers(8).held, "source": normal(8, 16)},
            {"reduce": other, "include_self": False},
            {"dim": 0, "reduce": reduce},
            reduce,
        )
        for reduce, other in (("amax", "amin"), ("mean", "prod"))
    ),
    Op("scatter", {**_X, "index": integers(4, 4).held}, {"value": 2.0, "dim": 0}, {"dim": 1, "value": -1.0}),
    *(
        Op(
            "scatter_reduce",
            {**_X, "index": integers(8, 16).held, "src": normal(8, 16)},
            {"reduce": other, "include_self": False},
            {"dim": 1, "reduce": reduce},
            reduce,
        )
        for reduce, other in (("sum", "prod"), ("amax", "amin"), ("mean", "amax"))
    ),
    Op("select_scatter", {**_X, "src": normal(8)}, {"index": 5}, {"dim": 1, "index": 2}),
    Op("slice_scatter", {**_X, "src": normal(8, 4)}, {"start": 9}, {"dim": 1, "start": 8, "step": 2}),
    Op("take_along_dim", {**_X, "indices": integers(8, 16).held}, {"dim": 0}, {"dim": 1}),
]

_MATRICES = {"mat1": normal(5, 6), "mat2": normal(6, 7)}
_BATCHES = {"batch1": normal(3, 5, 6), "batch2": normal(3, 6, 7)}
_SCALES = {"beta": 0.5, "alpha": 2.0}
_TRIANGLE = {"A": kind("definite", 5, 5), "B": normal(5, 5)}

_ALGEBRA = [
    Op("addmm", {"input": normal(5, 7), **_MATRICES}, _SCALES),
    Op("addmv", {"input": normal(5), "mat": normal(5, 6), "vec": normal(6)}, _SCALES),
    Op("addr", {"input": normal(5, 6), "vec1": normal(5), "vec2": normal(6)}, _SCALES),
    Op("addbmm", {"input": normal(5, 7), **_BATCHES}, _SCALES),
    Op("baddbmm", {"input": normal(3, 5, 7), **_BATCHES}, _SCALES),
    Op("matmul", {"input": normal(3, 5, 6), "other": normal(6, 7)}),
    Op("kron", {"input": normal(2, 3), "other": normal(3, 2)}),
    Op("linalg.cholesky", {"input": kind("definite", 5, 5)}, {"upper": True}),
    Op("linalg.qr", {"A": normal(6, 4)}, {"mode": "complete"}),
    Op("linalg.matrix_power", {"input": uniform(5, 5)}, {"n": 3}, {"n": 2}),
    Op("linalg.pinv", {"input": normal(5, 4)}, {"rtol": 0.6}),
    Op("linalg.solve", _TRIANGLE, {"left": False}),
    Op(
        "linalg.solve_triangular",
        {"input": kind("definite", 5, 5), "B": normal(5, 5)},
        {"upper": True, "left": False, "unitriangular": True},
        {"upper": False},
    ),
    Op("linalg.vander", {"x": normal(6)}, {"N": 4}),
    Op("linalg.cond", {"input": kind("definite", 5, 5)}, {"p": "fro"}),
    Op("linalg.cross", {"input": normal(3, 4, 3), "other": normal(3, 4, 3)}, {"dim": 0}),
    Op("cholesky_solve", {"input": normal(5, 2), "input2": kind("dominant", 5, 5).held}, {"upper": True}),
    Op("linalg.matrix_exp", {"input": uniform(5, 5)}),
    Op("linalg.slogdet", {"A": kind("definite", 5, 5)}),
    *(Op(f"fft.{name}", _X, {"norm": "ortho", "n": 10, "dim": 0}) for name in ("fft", "ifft", "rfft", "irfft")),
    Op("fft.fft2", _X, {"norm": "forward", "s": (6, 10)}),
    Op("fft.fftshift", _X, {"dim": 0}),
    Op(
        "stft",
        {"input": normal(2, 64), "window": uniform(16).held},
        {"hop_length": 8, "center": False, "normalized": True, "onesided": False, "pad_mode": "constant"},
        {"n_fft": 16, "hop_length": 4, "return_complex": True},
    ),
]

OPS: tuple[Op, ...] = (
    *_ACTIVATIONS,
    *_POOLING,
    *_CONVOLUTIONS,
    *_NORMALISATION,
    *_LOSSES,
    *_VISION_AND_ATTENTION,
    *_POINTWISE,
    *_REDUCTIONS,
    *_SHAPE,
    *_ALGEBRA,
)
"""Every op; a probe for each of its `changes`."""
