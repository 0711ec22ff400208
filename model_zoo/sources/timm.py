"""timm's models, with random weights and small images.

Widths and depths are stock, since timm has no smaller configurations; where the image is smaller than stock, the model
counts as reduced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from model_zoo.sources import Source
from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel, ZooError

if TYPE_CHECKING:
    import torch

SIZE = 96
"""Height and width of an image, where an architecture takes any: three cells at the usual stride of 32."""

SIZE_OF_PATCHES_OF_14 = 98
"""The nearest size that patches of 14 pixels fill."""

STOCK_ONLY = frozenset({"crossvit", "efficientformer"})
"""Architectures that take `img_size` but run at their own size only."""

LARGE = 200_000_000
"""Number of parameters from which on one image is enough."""

_ENTRYPOINT = re.compile(r"^@register_model\s*\n(?:@.*\n)*def\s+(\w+)", re.MULTILINE)


class TimmSource(Source):
    """Every architecture that `timm.list_models()` names, also as `architecture.tag` of a pretrained configuration.

    >>> TimmSource().names()[0]
    'aimv2_1b_patch14_224'
    """

    name: ClassVar[str] = "timm"
    library: ClassVar[str | None] = "timm"
    random_weights: ClassVar[bool] = True

    def names_impl(self) -> Sequence[str]:
        """Read from timm's source: importing it takes seconds, which a driver need not wait for."""
        return list(architectures())

    def has_impl(self, name: str) -> bool:
        """Also `architecture.tag`; whether there is such a tag, the build says."""
        return name.split(".")[0] in architectures() and not set("*?[") & set(name)

    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """Builds the model with random weights, and images drawn from N(0, 1)."""
        import timm
        import torch

        family = architectures().get(spec.name.split(".")[0])
        if family is None:
            raise UnknownModel(f"timm has no model {spec}; see `calipers zoo list 'timm:*'`")
        try:
            config = timm.get_pretrained_cfg(spec.name, allow_unregistered=False)
        except RuntimeError as error:  # how timm says that there is no such tag
            raise UnknownModel(f"no model {spec}: {error}; leave out the tag") from None
        channels, *stock = config.input_size
        size = _input_size(spec.name, family, config)
        module = _created(spec.name, size if config.fixed_input_size and size != stock else None)
        if module is None:
            size = stock
            torch.manual_seed(seed)
            module = timm.create_model(spec.name, pretrained=False)
        batch = 1 if sum(p.numel() for p in module.parameters()) > LARGE else 2
        images = torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(seed))
        return BuiltModel(spec, module, (images,), family=family, modality="image", reduced=size != stock)


def _input_size(name: str, family: str, config: Any) -> list[int]:
    """Height and width to run at: no larger than stock, no smaller than the architecture takes."""
    stock = list(config.input_size[1:])
    if family in STOCK_ONLY:
        return stock
    if config.min_input_size is not None:
        least = list(config.min_input_size[1:])
    else:
        least = [SIZE_OF_PATCHES_OF_14 if re.search(r"patch14|_14(_|$)", name) else SIZE] * 2
    return least if all(a <= b for a, b in zip(least, stock, strict=True)) else stock


def _created(name: str, img_size: list[int] | None) -> torch.nn.Module | None:
    """The model, made for `img_size` if given; None if its constructor does not take that size."""
    import timm

    if img_size is None:
        model: torch.nn.Module = timm.create_model(name, pretrained=False)
        return model
    try:
        model = timm.create_model(name, pretrained=False, img_size=img_size[0])
    except (TypeError, AssertionError, ValueError):
        return None
    return model


@cache
def architectures() -> Mapping[str, str]:
    """Name of every timm model -> the file of timm that defines it (`resnet`), which serves as its family."""
    found = find_spec("timm")
    if found is None or not found.submodule_search_locations:
        raise ZooError("timm is not installed; pip install timm")
    files = sorted((Path(found.submodule_search_locations[0]) / "models").glob("*.py"))
    pairs = ((name, file.stem) for file in files for name in _ENTRYPOINT.findall(file.read_text(encoding="utf-8")))
    return MappingProxyType(dict(sorted(pairs)))
