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
from typing import Any, TypeGuard

from model_zoo import reduce_names as names
from model_zoo.reduce_overrides import LINKS, OVERRIDES, SECTIONS, STOCK

TARGET_WIDTH = 96
"""The widest hidden state is divided until it is about this."""
LEAST_WIDTH = 24
"""The narrowest hidden state is not divided below this."""
VOCABULARY = 512
POSITIONS = 128
EXPERTS = 4
HEADS = 4
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
    if _is_int(width) and _is_int(vars(vision or config).get("out_hidden_size")) and vision is not None:
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
        if not _is_int(value) or value <= 16:
            return value
        if value % (4 * self.scale) == 0 and value // self.scale >= 8:
            return value // self.scale
        return min(value, max(16, 8 * round(value / self.scale / 8)))

    def token(self, value: Any) -> Any:
        """Special token id inside the reduced vocabulary."""
        if isinstance(value, list | tuple):
            return type(value)(self.token(v) for v in value)
        return self.tokens.get(value, value) if _is_int(value) else value


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict") and dataclasses.is_dataclass(value)


def _tree(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if _is_config(value):
            yield from _tree(value)


def _ints(value: Any) -> list[int]:
    if isinstance(value, list | tuple):
        return [i for v in value for i in _ints(v)]
    return [value] if _is_int(value) else []


def _scale(tree: list[Any]) -> int:
    """The power of two that all widths of a tree are divided by."""
    tops = [max(i) for c in tree for n in names.HIDDEN if (i := _ints(vars(c).get(n)))]
    tops = [t for t in tops if t >= LEAST_WIDTH]
    if not tops:
        return 4
    room = min(max(tops) / TARGET_WIDTH, min(tops) / LEAST_WIDTH)
    return int(2 ** math.floor(math.log2(room))) if room > 1 else 1


def _token_map(tree: list[Any]) -> dict[int, int]:
    """Special ids that fall outside the reduced vocabulary, mapped to its end, the same id to the same place."""
    ids = {i for c in tree for n, v in vars(c).items() if names.TOKEN.search(n) for i in _ints(v)}
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
    _heads(config, values)
    _experts(values)
    _indices(config, values, layers, len(keep))
    _image(values)
    _rope(config, values)
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
    if "num_key_value_heads" in own and own["num_key_value_heads"] is None and _is_int(heads):
        config.num_key_value_heads = heads
    if "head_dim" in own and own["head_dim"] is None and _is_int(heads) and _is_int(width):
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
            return type(value)(min(v, 2) if _is_int(v) else v for v in value)
        return plan.width(value) if _is_width(name) else value
    if not _is_int(value):
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
    if not _is_int(layers):
        layers = next((v for n, v in vars(config).items() if names.LAYERS.fullmatch(n) and _is_int(v)), 0)
    out = _ints(vars(config).get("_out_indices"))
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


def _heads(config: Any, values: dict[str, Any]) -> None:
    """Fewer heads that divide the width that they share, and key-value heads in the same relation to them."""
    for name in [n for n in values if names.HEADS.fullmatch(n)]:
        heads, width = values[name], _width_of(config, name, values)
        free = _has_own_head_dim(config, name, values)
        if isinstance(heads, list | tuple):
            widths = width if isinstance(width, list | tuple) else [(width or 0) * 2**i for i in range(len(heads))]
            widths = list(widths)[-len(heads) :] if len(widths) >= len(heads) else [0] * len(heads)
            values[name] = type(heads)(_fewer(h, w, free) for h, w in zip(heads, widths, strict=True))
        elif _is_int(heads) and not isinstance(width, list | tuple):
            values[name] = _fewer(heads, width or 0, free)
            if not free and "head_dim" in values and _is_int(values["head_dim"]) and width and "_" not in name[:3]:
                values["head_dim"] = width // values[name]
    for name in [n for n in values if names.KV_HEADS.fullmatch(n)]:
        query = name.replace("key_value_", "attention_")
        query = query if query in values else config.attribute_map.get("num_attention_heads", "num_attention_heads")
        stock, heads, kv = getattr(config, query, None), values.get(query), values[name]
        if _is_int(kv) and _is_int(stock) and _is_int(heads):
            values[name] = heads if kv == stock else 1 if kv == 1 else max(1, heads // 2)


def _fewer(heads: int, width: int, free: bool) -> int:
    divisors = [h for h in range(min(heads, HEADS), 0, -1) if heads % h == 0]
    if free or not width:
        return divisors[0]
    for multiple in (8, 4):
        for h in divisors[:-1]:
            if width % h == 0 and (width // h) % multiple == 0:
                return h
    return 1


def _width_of(config: Any, heads: str, values: dict[str, Any]) -> Any:
    """The width that `heads` heads share, after reduction."""
    prefix = heads[: names.HEADS_STEM.search(heads).start()]  # type: ignore[union-attr]
    for name in [prefix + n for n in names.HIDDEN if prefix] + list(names.HIDDEN):
        name = config.attribute_map.get(name, name)
        if name in values and _ints(values[name]):
            return values[name]
    return None


def _has_own_head_dim(config: Any, heads: str, values: dict[str, Any]) -> bool:
    """Whether the size of a head is a field of its own, so that the heads need not divide the width."""
    if "d_kv" in values or "qk_nope_head_dim" in values or "attention_head_dim" in values:
        return True
    size, count, width = values.get("head_dim"), getattr(config, heads), getattr(config, "hidden_size", None)
    if _is_int(size) and "rope_parameters" in values:
        return True  # rotary sections, which may be defaults of the code, keep their sum
    return _is_int(size) and _is_int(count) and _is_int(width) and size * count != width


def _experts(values: dict[str, Any]) -> None:
    """Four experts of which two are used; groups of experts stay whole."""
    for name, value in values.items():
        if _is_int(value):
            if names.EXPERTS.fullmatch(name):
                values[name] = min(value, EXPERTS)
            elif names.EXPERTS_USED.fullmatch(name) or name in ("n_group", "num_expert_group", "n_groups"):
                values[name] = min(value, 2)
            elif name == "topk_group":
                values[name] = min(value, 1)


def _indices(config: Any, values: dict[str, Any], layers: int, kept: int) -> None:
    """Indices of layers point into the layers that stay."""
    out = _ints(values.pop("_out_indices", None))
    features = values.pop("_out_features", None)
    if out and features:
        stages = len(config.stage_names) - 1
        if stages == layers > kept:
            values["out_indices"] = list(range(kept - len(out) + 1, kept + 1))
        elif len(out) > 1 or out != [stages]:
            values["out_indices"] = out
    for name, value in values.items():
        if names.INDICES.search(name) and name != "out_indices" and layers > kept:
            if isinstance(value, list | tuple) and all(_is_int(v) for v in value):
                values[name] = type(value)(_index(v, layers, kept) for v in value)
            elif _is_int(value):
                values[name] = _index(value, layers, kept)


def _index(index: int, layers: int, kept: int) -> int:
    if index < 0:
        return max(index, -kept)
    return min(kept - 1, index * kept // max(layers, 1))


def _image(values: dict[str, Any]) -> None:
    """A small image: four patches a side, or sixteen where patches are merged from stage to stage."""
    patch = max(_ints(values.get("patch_size")) or [0])
    windowed = _is_int(values.get("window_size")) and bool(values.get("depths"))
    side = 64 if not patch else patch * 4 if patch >= 8 else patch * (32 if windowed else 16)
    if windowed:
        values["window_size"] = min(values["window_size"], 4)
    for name, value in values.items():
        if names.IMAGE.fullmatch(name):
            if _is_int(value):
                values[name] = min(value, side)
            elif isinstance(value, list | tuple) and value and all(_is_int(v) for v in value):
                values[name] = type(value)(min(v, side) for v in value)


def _rope(config: Any, values: dict[str, Any]) -> None:
    """Rotary sections and factors, which are lists over half a head, follow the head."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    if config.model_type in SECTIONS:
        rope = {**SECTIONS[config.model_type], **rope}
    stock = getattr(config, "head_dim", None) or _per_head(vars(config), config)
    new = values.get("head_dim") or _per_head(values, config)
    if not (_is_int(stock) and _is_int(new)):
        return

    def scaled(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: scaled(k, v) for k, v in value.items()}
        if key.endswith("_section") and isinstance(value, list | tuple):
            half = int(new * rope.get("partial_rotary_factor", 1.0)) // 2
            parts = [max(1, v * half // sum(value)) for v in value]
            parts[0] += half - sum(parts)
            return type(value)(parts)
        if key in ("short_factor", "long_factor") and isinstance(value, list | tuple):
            return type(value)(value[: len(value) * new // stock])
        return value

    values["rope_parameters"] = scaled("", rope)


def _details(values: dict[str, Any]) -> None:
    """Fields that are bounded by others."""
    for name, value in values.items():
        if name == "attention_window":
            values[name] = 16 if _is_int(value) else [16] * len(value)
        elif name == "rotary_dim" and _is_int(value):
            heads, width = (next((values[n] for n in ns if n in values), 0) for ns in (("n_head",), names.HIDDEN))
            values[name] = min(value, width // heads) if heads and width else value
        elif name == "mamba_n_heads":
            values[name] = values["mamba_expand"] * values["hidden_size"] // values["mamba_d_head"]
        elif name == "mm_tokens_per_image":
            values[name] = 4
        elif name == "image_grid_pinpoints" and value and hasattr(values.get("vision_config"), "image_size"):
            unit, side = min(_ints(value)), max(_ints(values["vision_config"].image_size))
            values[name] = [[v // unit * side for v in pair] for pair in value]


def _per_head(values: dict[str, Any], config: Any) -> int | None:
    width = values.get(config.attribute_map.get("hidden_size", "hidden_size"))
    heads = values.get(config.attribute_map.get("num_attention_heads", "num_attention_heads"))
    return width // heads if _is_int(width) and _is_int(heads) and heads else None
