"""Single functional ops as models: `op:softplus`, and argument probes such as `op:softplus(beta=2.0)`.

A probe calls the op twice on the same inputs, with its arguments as they are and with one changed, and returns
`{"default": ..., "changed": ...}`: a backend whose two outputs are equal where the reference's differ has ignored the
argument.

>>> OpSource().names()[:2]
['add', 'add(alpha=3)']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from model_zoo.sources import Source
from model_zoo.sources.op.draws import Draw
from model_zoo.sources.op.table import OPS, Op
from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel


class OpSource(Source):
    """Every op of the table, and every argument of it that the table changes."""

    name: ClassVar[str] = "op"

    def names_impl(self) -> Sequence[str]:
        """`softplus`, `softplus(beta=2.0)`."""
        return list(_by_name())

    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """The op as a module that holds what is held, and inputs by the names of the op's arguments."""
        import torch

        from model_zoo.sources.op.module import call_of

        if spec.name not in _by_name():
            raise UnknownModel(f"no op {spec}; see `calipers zoo list 'op:*'`")
        op, change = _by_name()[spec.name]
        module, inputs = call_of(op, change, torch.Generator().manual_seed(seed))
        return BuiltModel(spec, module, (), inputs, family=op.name, modality="custom")


def argument_of(model_id: str) -> str | None:
    """The argument that a probe changes; None for another model.

    >>> argument_of("op:softplus(beta=2.0)"), argument_of("timm:resnet18")
    ('beta', None)
    """
    spec = ModelSpec.parse(model_id)
    found = _by_name().get(spec.name) if spec.source == OpSource.name else None
    return found[1] if found else None


@cache
def _by_name() -> Mapping[str, tuple[Op, str | None]]:
    """Name -> the op, and the argument that is changed."""
    names: dict[str, tuple[Op, str | None]] = {}
    for op in OPS:
        assert op.label not in names, op.label
        names[op.label] = (op, None)
        for argument, value in op.changes.items():
            names[f"{op.label}({argument}={_text(value)})"] = (op, argument)
    return MappingProxyType(names)


def _text(value: Any) -> str:
    """A value as it stands in an id: without spaces and quotes."""
    return "tensor" if isinstance(value, Draw) else str(value).replace(" ", "").replace("'", "")
