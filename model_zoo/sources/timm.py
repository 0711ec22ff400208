"""timm's models, with random weights, at an input size no larger than the architecture asks for.

Widths and depths are stock; where the input is smaller than stock, the model counts as reduced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from model_zoo.sources import Source
from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel, ZooError

SIZE = 96
"""Input size where an architecture takes any: three cells at the usual stride of 32."""

_ENTRYPOINT = re.compile(r"^@register_model\s*\n(?:@.*\n)*def\s+(\w+)", re.MULTILINE)


class TimmSource(Source):
    """Every architecture that `timm.list_models()` names, and its pretrained configurations by `name.tag`."""

    name: ClassVar[str] = "timm"

    def names_impl(self) -> Sequence[str]:
        """Read from timm's source: importing it takes seconds, which a driver need not wait for."""
        return _names()

    def has_impl(self, name: str) -> bool:
        """Also `architecture.tag`; whether there is such a tag, the build says."""
        return name.split(".")[0] in _names() and not set("*?[") & set(name)

    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """Builds the model with random weights, and N(0,1) images of the reduced size."""
        import timm
        import torch

        config = timm.get_pretrained_cfg(spec.name, allow_unregistered=False)
        if config is None:
            raise UnknownModel(f"timm has no pretrained configuration {spec}; leave out the tag")
        channels, height, width = config.input_size
        module = timm.create_model(spec.name, pretrained=False)
        size = (height, width) if config.fixed_input_size else (min(SIZE, height), min(SIZE, width))
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(2, channels, *size, generator=generator)
        family = type(module).__module__.rpartition(".")[2]
        return BuiltModel(spec, module, (images,), family=family, modality="image", reduced=size != (height, width))


@cache
def _names() -> tuple[str, ...]:
    found = find_spec("timm")
    if found is None or not found.submodule_search_locations:
        raise ZooError("timm is not installed; pip install timm")
    files = sorted((Path(found.submodule_search_locations[0]) / "models").glob("*.py"))
    return tuple(sorted({name for file in files for name in _ENTRYPOINT.findall(file.read_text(encoding="utf-8"))}))
