"""A small config of the same architecture, by what the fields of a transformers config mean.

A config is built anew from reduced values, so that whatever its class derives from them is derived again. All widths
of a tree of configs go through one map from stock value to reduced value, so that two fields which had to agree
(a projector's input and the tower's width) still do. What no rule can infer stands in `OVERRIDES`.

>>> from transformers import BertConfig
>>> reduced = reduce_config(BertConfig()); (reduced.hidden_size, reduced.num_hidden_layers)
(96, 2)
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from model_zoo import reduce_names as names
from model_zoo.reduce_heads import ints, is_int, reduce_heads, reduce_rope
from model_zoo.reduce_overrides import LINKS, OVERRIDES, STOCK

TARGET_WIDTH = 96
"""The widest hidden state is divided until it is about this."""
LEAST_WIDTH = 24
"""The narrowest hidden state is not divided below this."""
VOCABULARY = 512
POSITIONS = 128
EXPERTS = 4
LAYERS = 2
FRAMES = 4


def reduce_config(config: Any) -> Any:
    """A new config of the same class, small, sub-configs included. `config` is not changed.

    Raises what the config's class raises when the reduced values break its own checks.
    """
    config = copy.deepcopy(config)
    for target, origin in LINKS.get(config.model_type, {}).items():
        *path, name = target.split(".")
        setattr(_at(config, path), name, _at(config, origin.split(".")))
    tree = list(_tree(config))
    for part in tree:
        part.allow_global_per_layer_attribute_access = True  # a layer's own values are derived again, from its kind
        _agree(part)
    return _reduced(config, _Plan(_scale(tree), _token_map(tree)))


def _agree(config: Any) -> None:
    """Makes a tower give what the text model takes, where the release's defaults are of two checkpoints."""
    text, vision = vars(config).get("text_config"), vars(config).get("vision_config")
    width = getattr(text, "hidden_size", None)
    if is_int(width) and is_int(vars(vision or config).get("out_hidden_size")) and vision is not None:
        vision.out_hidden_size = width


def _at(config: Any, path: list[str]) -> Any:
    return functools.reduce(getattr, path, config)


@dataclass(frozen=True)
class _Plan:
    """What all configs of one tree share."""

    scale: int
    tokens: dict[int, int]
    """Special token ids outside the reduced vocabulary -> inside."""

    def width(self, value: Any) -> Any:
        """Reduced width: an even division if it is one, else a multiple of 8; the same for the same stock value."""
        if isinstance(value, list | tuple):
            return type(value)(self.width(v) for v in value)
        if not is_int(value) or value <= 16:
            return value
        if value % (4 * self.scale) == 0 and value // self.scale >= 8:
            return value // self.scale
        return min(value, max(16, 8 * round(value / self.scale / 8)))

    def token(self, value: Any) -> Any:
        """Special token id inside the reduced vocabulary."""
        if isinstance(value, list | tuple):
            return type(value)(self.token(v) for v in value)
        return self.tokens.get(value, value) if is_int(value) else value


def _is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict") and dataclasses.is_dataclass(value)


def _tree(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if _is_config(value):
            yield from _tree(value)


def _scale(tree: list[Any]) -> int:
    """The power of two that all widths of a tree are divided by."""
    tops = [max(i) for c in tree for n in names.HIDDEN if (i := ints(vars(c).get(n)))]
    tops = [t for t in tops if t >= LEAST_WIDTH]
    if not tops:
        return 4
    room = min(max(tops) / TARGET_WIDTH, min(tops) / LEAST_WIDTH)
    return int(2 ** math.floor(math.log2(room))) if room > 1 else 1


def _token_map(tree: list[Any]) -> dict[int, int]:
    """Special ids that fall outside the reduced vocabulary, mapped to its end, the same id to the same place."""
    ids = {i for c in tree for n, v in vars(c).items() if names.TOKEN.search(n) for i in ints(v)}
    outside = sorted((i for i in ids if i >= VOCABULARY - len(ids)), reverse=True)
    return {token: VOCABULARY - 1 - place for place, token in enumerate(outside)}


def _reduced(config: Any, plan: _Plan) -> Any:
    stock = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    derived = _derived(config)
    layers, keep = _layers(config)
    values: dict[str, Any] = {}
    for name, value in stock.items():
        if _is_config(value):
            values[name] = _reduced(value, plan)
        elif isinstance(value, list | tuple) and len(value) == layers and len(keep) < layers and not _is_width(name):
            values[name] = type(value)(value[i] for i in keep)
        elif name in derived and not (isinstance(value, dict) or names.TOKEN.search(name)):
            continue  # the class fills it from the others
        else:
            values[name] = _value(name, value, plan, len(keep))
    reduce_heads(config, values)
    _experts(values)
    _indices(config, values, layers, len(keep))
    _image(values)
    reduce_rope(config, values)
    _details(values)
    values.update(OVERRIDES.get(config.model_type, {}))
    values = {n: v for n, v in values.items() if n not in ("transformers_version", "architectures", "dtype")}
    for name in STOCK.get(config.model_type, ()):
        values[name] = stock[name]
    if not config._output_attentions:
        values.pop("output_attentions", None)
    return _completed(type(config)(**values))


def _completed(config: Any) -> Any:
    """Fills what the release leaves None although the model needs it."""
    own = vars(config)
    heads, width = (own.get(config.attribute_map.get(n, n)) for n in ("num_attention_heads", "hidden_size"))
    if "num_key_value_heads" in own and own["num_key_value_heads"] is None and is_int(heads):
        config.num_key_value_heads = heads
    if "head_dim" in own and own["head_dim"] is None and is_int(heads) and is_int(width):
        config.head_dim = width // heads
    return config


def _derived(config: Any) -> set[str]:
    """Fields whose default is None and that the class has filled from others."""
    return {
        f.name
        for f in dataclasses.fields(config)
        if f.default is None
        and not isinstance(getattr(config, f.name), str | bool | None)
        and not f.name.startswith("_out")
        and f.name not in names.GIVEN
        and not names.INDICES.search(f.name)
        and not names.KV_HEADS.fullmatch(f.name)
    }


def _is_width(name: str) -> bool:
    return bool(names.WIDTH.search(name)) and not names.NOT_WIDTH.search(name)


def _value(name: str, value: Any, plan: _Plan, layers: int) -> Any:
    """The reduced value of a field that is judged by its name alone."""
    if names.TOKEN.search(name):
        return plan.token(value)
    if isinstance(value, list | tuple):
        if names.DEPTHS.fullmatch(name):
            return type(value)(min(v, 2) if is_int(v) else v for v in value)
        return plan.width(value) if _is_width(name) else value
    if not is_int(value):
        return value
    rules: tuple[tuple[bool, Callable[[], int]], ...] = (
        (bool(names.LAYERS.fullmatch(name)), lambda: min(value, layers or value)),
        (bool(names.VOCABULARY.search(name)), lambda: min(value, VOCABULARY)),
        (bool(names.POSITIONS.search(name)), lambda: min(value, POSITIONS)),
        (bool(names.QUERIES.fullmatch(name)), lambda: min(value, 10)),
        (bool(names.FRAMES.fullmatch(name)), lambda: min(value, FRAMES)),
        (bool(names.PERIOD.search(name)), lambda: min(value, 2)),
        (bool(names.OFFSET.search(name)), lambda: min(value, 1)),
        (_is_width(name), lambda: int(plan.width(value))),
    )
    return next((reduced() for applies, reduced in rules if applies), int(value))


def _layers(config: Any) -> tuple[int, list[int]]:
    """The stock number of layers, and which of them stay: one of every kind that the per-layer lists tell apart."""
    if any(names.DEPTHS.fullmatch(n) and isinstance(v, list | tuple) for n, v in vars(config).items()):
        return 0, []  # stages, which all stay
    layers = getattr(config, "num_hidden_layers", None)
    if not is_int(layers):
        layers = next((v for n, v in vars(config).items() if names.LAYERS.fullmatch(n) and is_int(v)), 0)
    out = ints(vars(config).get("_out_indices"))
    least = min(layers, max(LAYERS, len(out)))
    keep: set[int] = set()
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == layers and not _is_width(name):
            kinds = {repr(v): i for i, v in reversed(list(enumerate(value)))}
            keep |= set(kinds.values()) if len(kinds) <= 4 else set()
    for index in range(layers):
        if len(keep) >= least:
            break
        keep.add(index)
    return layers, sorted(keep)


def _experts(values: dict[str, Any]) -> None:
    """Four experts of which two are used; groups of experts stay whole."""
    for name, value in values.items():
        if is_int(value):
            if names.EXPERTS.fullmatch(name):
                values[name] = min(value, EXPERTS)
            elif names.EXPERTS_USED.fullmatch(name) or name in ("n_group", "num_expert_group", "n_groups"):
                values[name] = min(value, 2)
            elif name == "topk_group":
                values[name] = min(value, 1)


def _indices(config: Any, values: dict[str, Any], layers: int, kept: int) -> None:
    """Indices of layers point into the layers that stay."""
    out = ints(values.pop("_out_indices", None))
    features = values.pop("_out_features", None)
    if out and features:
        stages = len(config.stage_names) - 1
        if stages == layers > kept:
            values["out_indices"] = list(range(kept - len(out) + 1, kept + 1))
        elif len(out) > 1 or out != [stages]:
            values["out_indices"] = out
    for name, value in values.items():
        if names.INDICES.search(name) and name != "out_indices" and layers > kept:
            if isinstance(value, list | tuple) and all(is_int(v) for v in value):
                values[name] = type(value)(_index(v, layers, kept) for v in value)
            elif is_int(value):
                values[name] = _index(value, layers, kept)


def _index(index: int, layers: int, kept: int) -> int:
    if index < 0:
        return max(index, -kept)
    return min(kept - 1, index * kept // max(layers, 1))


def _image(values: dict[str, Any]) -> None:
    """A small image: four patches a side, or sixteen where patches are merged from stage to stage."""
    patch = max(ints(values.get("patch_size")) or [0])
    windowed = is_int(values.get("window_size")) and bool(values.get("depths"))
    side = 64 if not patch else patch * 4 if patch >= 8 else patch * (32 if windowed else 16)
    if windowed:
        values["window_size"] = min(values["window_size"], 4)
    for name, value in values.items():
        if names.IMAGE.fullmatch(name):
            if is_int(value):
                values[name] = min(value, side)
            elif isinstance(value, list | tuple) and value and all(is_int(v) for v in value):
                values[name] = type(value)(min(v, side) for v in value)


def _details(values: dict[str, Any]) -> None:
    """Fields that are bounded by others."""
    for name, value in values.items():
        if name == "attention_window":
            values[name] = 16 if is_int(value) else [16] * len(value)
        elif name == "rotary_dim" and is_int(value):
            heads, width = (next((values[n] for n in ns if n in values), 0) for ns in (("n_head",), names.HIDDEN))
            values[name] = min(value, width // heads) if heads and width else value
        elif name == "mamba_n_heads":
            inner = values.get("mamba_d_ssm") or values["mamba_expand"] * values["hidden_size"]
            values[name] = inner // values["mamba_d_head"]
        elif name == "mm_tokens_per_image":
            values[name] = 4
        elif name == "image_grid_pinpoints" and value and hasattr(values.get("vision_config"), "image_size"):
            unit, side = min(ints(value)), max(ints(values["vision_config"].image_size))
            values[name] = [[v // unit * side for v in pair] for pair in value]
