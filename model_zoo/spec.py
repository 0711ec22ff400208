"""ModelSpec: an id that rebuilds the same model anywhere, and what building it gives.

>>> ModelSpec.parse("timm:resnet18").source
'timm'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ID = re.compile(r"(?P<source>[a-z][a-z0-9_-]*):(?P<name>[^\s].*)")


class ZooError(Exception):
    """A model id that cannot be used; the message is one line: what was wrong, what was found, what to do."""


class UnknownModel(ZooError):
    """No model of that name; the message holds near matches."""


class InputsUnknown(ZooError):
    """No inputs could be made that the model's forward accepts."""


@dataclass(frozen=True, order=True)
class ModelSpec:
    """A model id, taken apart: `source:name`.

    `timm:resnet18`, `transformers:llama/LlamaForCausalLM`, `python:package.module:function`.
    """

    source: str
    name: str

    @classmethod
    def parse(cls, model_id: str) -> ModelSpec:
        """Takes `source:name` apart; `ZooError` if the text has another form."""
        match = _ID.fullmatch(model_id.strip())
        if match is None:
            raise ZooError(
                f"model id {model_id!r} has no source; write source:name, as in timm:resnet18 or transformers:bert"
            )
        return cls(match["source"], match["name"])

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"


@dataclass(frozen=True)
class BuiltModel:
    """A model that is ready to run: `module(*args, **kwargs)`, in eval mode, on the CPU.

    The same spec and seed give the same parameters, buffers and inputs in any process.
    """

    spec: ModelSpec
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    """Architecture family: what a summary groups by (`resnet`, `llama`)."""
    modality: str = "custom"
    """One of `MODALITIES`."""
    reduced: bool = False
    """Whether it is smaller than the stock model of its name."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.module.parameters())


MODALITIES = ("image", "text", "text-to-text", "audio", "video", "multimodal", "time-series", "custom")
"""What can go into a model."""
