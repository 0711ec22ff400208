"""Models of the installed transformers release: `transformers:bert`, `transformers:llama/LlamaForCausalLM`.

Everything is built from a reduced config with random weights; nothing is fetched.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from model_zoo.inputs import inputs_for
from model_zoo.inputs.facts import tree
from model_zoo.reduce import reduce_config
from model_zoo.sources import Source
from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel


class TransformersSource(Source):
    """Base models by model type, and any class of a type's modeling module as `type/ClassName`."""

    name: ClassVar[str] = "transformers"
    library: ClassVar[str | None] = "transformers"
    random_weights: ClassVar[bool] = True

    def names_impl(self) -> Sequence[str]:
        """Model types with a PyTorch base model, and `type/ClassName` for every class of an auto mapping."""
        base, heads = _base_classes(), _auto_classes()
        return [*base, *(f"{model_type}/{name}" for model_type in heads for name in sorted(heads[model_type]))]

    def has_impl(self, name: str) -> bool:
        """Also true for a class of the type's modeling module that no auto mapping lists."""
        model_type, _, class_name = name.partition("/")
        if not class_name:
            return model_type in _base_classes()
        return class_name in _auto_classes().get(model_type, ()) or class_name in _module_classes(model_type)

    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """Builds the class from the reduced config, in float32."""
        model_type, _, class_name = spec.name.partition("/")
        model_class = _model_class(model_type, class_name)
        module, config = _built(model_class, stock_config(model_type))
        inputs = inputs_for(module, config, seed)
        return BuiltModel(spec, module, (), inputs.kwargs, family=model_type, modality=inputs.modality, reduced=True)


def stock_config(model_type: str) -> Any:
    """The config that the type has by default."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]()


def _built(model_class: Any, stock: Any) -> tuple[Any, Any]:
    """The model and its reduced config: `stock` or, where the class wants but a part of it, that part."""
    wanted = getattr(model_class, "config_class", None)
    parts = [p for p in tree(stock) if p is not stock and wanted is not None and type(p) is wanted]
    config = plain(reduce_config(stock))
    try:
        return model_class(config).float().eval(), config
    except AttributeError:
        if not parts:
            raise
    config = plain(reduce_config(parts[0]))
    return model_class(config).float().eval(), config


def plain(config: Any) -> Any:
    """Switches off what a plain forward pass does not need: caches among the outputs, pretrained parts."""
    for part in tree(config):
        for name, value in (("use_cache", False), ("use_mems_eval", False), ("use_pretrained_backbone", False)):
            if hasattr(part, name):
                setattr(part, name, value)
    return config


@cache
def _base_classes() -> dict[str, str]:
    """Model type -> name of the base model's class."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return {t: c if isinstance(c, str) else c[0] for t, c in MODEL_MAPPING_NAMES.items()}


@cache
def _auto_classes() -> dict[str, frozenset[str]]:
    """Model type -> names of the classes that any of the auto mappings lists for it."""
    from transformers.models.auto import modeling_auto

    found: dict[str, set[str]] = {}
    for mapping in [m for n, m in vars(modeling_auto).items() if n.startswith("MODEL_") and n.endswith("_NAMES")]:
        for model_type, classes in mapping.items():
            found.setdefault(model_type, set()).update([classes] if isinstance(classes, str) else classes)
    return {t: frozenset(c) for t, c in found.items()}


def _modeling(model_type: str) -> Any:
    """The module that holds the type's PyTorch code: where one of its classes is defined."""
    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    listed = [_base_classes()[model_type]] if model_type in _base_classes() else sorted(_auto_classes()[model_type])
    found = getattr(transformers, listed[0], None)
    if found is not None:
        return importlib.import_module(found.__module__)
    package = model_type_to_module_name(model_type)  # a class that the library keeps to itself
    return importlib.import_module(f"transformers.models.{package}.modeling_{package}")


def _module_classes(model_type: str) -> list[str]:
    """Names of the model classes in the type's modeling module."""
    from transformers import PreTrainedModel

    if model_type not in _auto_classes():
        return []
    module = _modeling(model_type)
    return [
        n
        for n, c in vars(module).items()
        if isinstance(c, type) and issubclass(c, PreTrainedModel) and c.__module__ == module.__name__
    ]


def _model_class(model_type: str, class_name: str) -> Any:
    """The class; `UnknownModel` with near matches if the type has none of that name."""
    import transformers

    name = class_name or _base_classes()[model_type]
    known = sorted({*_auto_classes().get(model_type, ()), *_module_classes(model_type)})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        raise UnknownModel(
            f"unknown class {name} for transformers:{model_type}, which has {len(known)}; "
            f"did you mean {', '.join(f'transformers:{model_type}/{n}' for n in near)}?"
        )
    found = getattr(_modeling(model_type), name, None)
    return found if found is not None else getattr(transformers, name)
