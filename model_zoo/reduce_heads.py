"""Heads that divide their width, key-value heads in the same relation to them, rotary sections that fit a head."""

from __future__ import annotations

from typing import Any, TypeGuard

from model_zoo import reduce_names as names
from model_zoo.reduce_overrides import SECTIONS

HEADS = 4
"""At most so many heads stay."""


def is_int(value: Any) -> TypeGuard[int]:
    """Whether it is a number and not a flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def ints(value: Any) -> list[int]:
    """The integers in a value or a nest of lists."""
    if isinstance(value, list | tuple):
        return [i for v in value for i in ints(v)]
    return [value] if is_int(value) else []


def reduce_heads(config: Any, values: dict[str, Any]) -> None:
    """Fewer heads that divide the width that they share, and key-value heads in the same relation to them."""
    for name in [n for n in values if names.HEADS.fullmatch(n)]:
        heads, width = values[name], _width_of(config, name, values)
        free = _has_own_head_dim(config, name, values)
        if isinstance(heads, list | tuple):
            widths = width if isinstance(width, list | tuple) else [(width or 0) * 2**i for i in range(len(heads))]
            widths = list(widths)[-len(heads) :] if len(widths) >= len(heads) else [0] * len(heads)
            values[name] = type(heads)(_fewer(h, w, free) for h, w in zip(heads, widths, strict=True))
        elif is_int(heads) and not isinstance(width, list | tuple):
            values[name] = _fewer(heads, width or 0, free)
            if not free and "head_dim" in values and is_int(values["head_dim"]) and width and "_" not in name[:3]:
                values["head_dim"] = width // values[name]
    for name in [n for n in values if names.KV_HEADS.fullmatch(n)]:
        query = name.replace("key_value_", "attention_")
        query = query if query in values else config.attribute_map.get("num_attention_heads", "num_attention_heads")
        stock, heads, kv = getattr(config, query, None), values.get(query), values[name]
        if is_int(kv) and is_int(stock) and is_int(heads):
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
        if name in values and ints(values[name]):
            return values[name]
    return None


def _has_own_head_dim(config: Any, heads: str, values: dict[str, Any]) -> bool:
    """Whether the size of a head is a field of its own, so that the heads need not divide the width."""
    if "d_kv" in values or "qk_nope_head_dim" in values or "attention_head_dim" in values:
        return True
    size, count, width = values.get("head_dim"), getattr(config, heads), getattr(config, "hidden_size", None)
    if is_int(size) and "rope_parameters" in values:
        return True  # rotary sections, which may be defaults of the code, keep their sum
    return is_int(size) and is_int(count) and is_int(width) and size * count != width


def reduce_rope(config: Any, values: dict[str, Any]) -> None:
    """Rotary sections and factors, which are lists over half a head, follow the head."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    if config.model_type in SECTIONS:
        rope = {**SECTIONS[config.model_type], **rope}
    stock = getattr(config, "head_dim", None) or _per_head(vars(config), config)
    new = values.get("head_dim") or _per_head(values, config)
    if not (is_int(stock) and is_int(new)):
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


def _per_head(values: dict[str, Any], config: Any) -> int | None:
    width = values.get(config.attribute_map.get("hidden_size", "hidden_size"))
    heads = values.get(config.attribute_map.get("num_attention_heads", "num_attention_heads"))
    return width // heads if is_int(width) and is_int(heads) and heads else None
