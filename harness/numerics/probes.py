"""Argument probes: whether a device ignores an argument that the reference heeds.

A probe (`model_zoo.sources.op`) gives an op's output twice, with its arguments as they are and with one changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.backends.tree import Leaf
from model_zoo.sources.op import argument_of

DEFAULT, CHANGED = "['default']", "['changed']"
"""What the paths of a probe's leaves begin with."""

VISIBLE = 2**-6
"""Share of its value by which an element of the reference must move: twice bfloat16's spacing, which hides less."""


def ignored_argument(device: Sequence[Leaf], reference: Sequence[Leaf]) -> bool:
    """Whether the device gives bit for bit the same with the argument changed as without, where the reference moves.

    False for outputs that are no probe's.

    >>> import torch
    >>> one, two = Leaf("['default']", torch.ones(2)), Leaf("['changed']", torch.ones(2) * 2)
    >>> ignored_argument([one, Leaf("['changed']", torch.ones(2))], [one, two])
    True
    """
    found = _pairs(device)
    if not found or not all(_same(*pair) for pair in found):
        return False
    return any(_moved(*pair) for pair in _pairs(reference)) or not _pairs(reference)


def ignored_message(model_id: str, device: Sequence[Leaf], reference: Sequence[Leaf]) -> str:
    """One line that names the argument which the device ignores; empty if it ignores none."""
    argument = argument_of(model_id)
    if argument is None or not ignored_argument(device, reference):
        return ""
    return f"the argument {argument} has no effect: {model_id.partition(':')[2]} gives what the default call gives"


def _pairs(leaves: Sequence[Leaf]) -> list[tuple[object, object]]:
    """Each leaf of the default call with that of the changed call; nothing if they do not pair up."""
    values = {leaf.path: leaf.value for leaf in leaves}
    default = [path for path in values if path.startswith(DEFAULT)]
    changed = [path.replace(DEFAULT, CHANGED, 1) for path in default]
    if len(values) != 2 * len(default) or any(path not in values for path in changed):
        return []
    return [(values[a], values[b]) for a, b in zip(default, changed, strict=True)]


def _alike(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype
    return type(a) is type(b)


def _same(a: object, b: object) -> bool:
    if not _alike(a, b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        equal = a == b
        return bool((equal | ((a != a) & (b != b))).all())  # NaN beside NaN is the same
    return a == b


def _moved(a: object, b: object) -> bool:
    """Whether two outputs of the reference differ by more than a device's way of rounding could hide."""
    if _same(a, b) or not _alike(a, b):
        return not _same(a, b)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return True
    wide = torch.complex128 if a.is_complex() else torch.float64
    before, after = a.to(wide), b.to(wide)
    still = (before == after) | (torch.isnan(before) & torch.isnan(after))
    near = (after - before).abs() <= VISIBLE * torch.maximum(before.abs(), after.abs())
    near &= torch.isfinite(before) & torch.isfinite(after)
    return not bool((still | near).all())
