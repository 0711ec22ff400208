"""Sources of models, one file each, found by the entry point group `calipers.sources`.

>>> "timm" in source_names()
True
"""

from __future__ import annotations

import difflib
import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel, ZooError

GROUP = "calipers.sources"


class Source(ABC):
    """An origin of models. A subclass says what it has and builds one; the checking is done here."""

    name: ClassVar[str]
    library: ClassVar[str | None] = None
    """Package that building takes seconds to import; a worker imports it before its first model."""
    can_list: ClassVar[bool] = True
    """Whether `names` can enumerate the source (a user's own modules cannot be listed)."""
    random_weights: ClassVar[bool] = False
    """Whether the weights mean nothing, so that `model_zoo.weights` may draw others."""

    def names(self) -> Sequence[str]:
        """Every name, sorted, without the `source:` in front. May import the library behind the source."""
        return sorted(self.names_impl())

    def resolve(self, pattern: str) -> list[ModelSpec]:
        """The specs that a name or glob stands for, in a fixed order; `UnknownModel` with near matches if none."""
        if not self.can_list:
            return [ModelSpec(self.name, pattern)]
        if self.has_impl(pattern):
            return [ModelSpec(self.name, pattern)]
        names = self.names()
        found = fnmatch.filter(names, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = "did you mean " + ", ".join(f"{self.name}:{n}" for n in near) + "?" if near else ""
            raise UnknownModel(
                f"unknown model {self.name}:{pattern} among {len(names)} of {self.name}; "
                + (hint or f"see `calipers zoo list '{self.name}:*'`")
            )
        return [ModelSpec(self.name, n) for n in found]

    def build(self, spec: ModelSpec, seed: int, weights: str = "observable") -> BuiltModel:
        """Builds the model in eval mode with inputs; random weights and inputs come from `seed` alone.

        Whatever the model's own code raises passes through; `InputsUnknown` if no inputs could be made. Of `weights`,
        see `build` of this package.
        """
        from model_zoo.weights import observable

        built = self._stock(spec, seed)
        if weights == "stock" or not self.random_weights or observable(built, seed):
            return built
        return self._stock(spec, seed)

    def _stock(self, spec: ModelSpec, seed: int) -> BuiltModel:
        import torch

        torch.manual_seed(seed)
        built = self.build_impl(spec, seed)
        built.module.eval().requires_grad_(False)
        return built

    def has_impl(self, name: str) -> bool:
        """Whether `name` is a model of this source although `names` may not list it."""
        return name in self.names_impl()

    @abstractmethod
    def names_impl(self) -> Sequence[str]:
        """Every name that this source can build."""

    @abstractmethod
    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """Builds one model. torch's global generator is seeded already."""


@cache
def _entry_points() -> dict[str, object]:
    return {point.name: point for point in entry_points(group=GROUP)}


def source_names() -> list[str]:
    """Names of the installed sources."""
    return sorted(_entry_points())


def listable() -> list[str]:
    """Names of the installed sources that can enumerate their models."""
    return [name for name in source_names() if source(name).can_list]


@cache
def source(name: str) -> Source:
    """The source of that name; `ZooError` with the installed ones if there is none."""
    point = _entry_points().get(name)
    if point is None:
        raise ZooError(f"unknown source {name!r} in a model id; installed sources: {', '.join(source_names())}")
    loaded: type[Source] = point.load()  # type: ignore[attr-defined]
    return loaded()


def resolve(pattern: str) -> list[ModelSpec]:
    """The specs that an id or glob (`timm:resnet*`) stands for."""
    spec = ModelSpec.parse(pattern)
    return source(spec.source).resolve(spec.name)


def build(model_id: str, seed: int = 0, *, profile: str = "gaussian", weights: str = "observable") -> BuiltModel:
    """Builds a model from its id.

    `weights` is "observable" for random weights that let a fault be seen, or "stock" for the library's own
    initialisation, which a model also keeps whose output the former makes NaN, infinite or constant. Only weights
    that were random anyway are touched.

    `profile` says how the inputs are drawn, and changes nothing else; `ProfileUnfit` where it does not fit the model.

    >>> built = build("timm:resnet18"); built.module(*built.args, **built.kwargs).shape
    torch.Size([1, 1000])
    """
    spec = ModelSpec.parse(model_id)
    built = source(spec.source).build(spec, seed, weights)
    if profile == "gaussian":
        return built
    from model_zoo.inputs.profiles import apply

    return apply(built, profile, seed)
