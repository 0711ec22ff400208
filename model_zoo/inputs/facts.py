"""What a config says about the inputs of its model, sub-configs included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from model_zoo.reduce_names import TOKEN

_VISION = ("vision_config", "image_model_config", "backbone_config", "vision_model_config", "thinker_config")
_AUDIO = ("audio_config", "encoder_config", "audio_encoder_config", "acoustic_tokenizer_encoder_config")


def tree(config: Any) -> Iterator[Any]:
    """A config and its sub-configs, the outer before the inner."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from tree(value)


def ints(value: Any) -> list[int]:
    """The integers in a value or a nest of lists."""
    if isinstance(value, list | tuple):
        return [i for v in value for i in ints(v)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


@dataclass(frozen=True)
class Facts:
    """Answers about one config."""

    config: Any

    def find(self, *names: str, default: Any = None) -> Any:
        """The first field of these names that is set, the outermost config first."""
        for config in tree(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def number(self, *names: str, default: int) -> int:
        """Like `find`, the first integer of the value."""
        for config in tree(self.config):
            for name in names:
                value = getattr(config, name, None)
                if found := ints(value):
                    return found[0]
        return default

    @property
    def text(self) -> Any:
        """The config of the text decoder, or the config itself."""
        get = getattr(self.config, "get_text_config", None)
        return get() if get else self.config

    @property
    def vision(self) -> Facts:
        """The part that looks at images."""
        return self._part(_VISION)

    @property
    def audio(self) -> Facts:
        """The part that listens."""
        return self._part(_AUDIO)

    def _part(self, names: tuple[str, ...]) -> Facts:
        for config in tree(self.config):
            for name in names:
                part = getattr(config, name, None)
                if hasattr(part, "model_type"):
                    return Facts(part)
        return self

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return Facts(self.text).number("vocab_size", "text_vocab_size", "src_vocab_size", default=0) or self.number(
            "vocab_size", "text_encoder_vocab_size", default=256
        )

    @property
    def special(self) -> set[int]:
        """Ids with a meaning of their own: padding, ends, placeholders."""
        return {i for c in tree(self.config) for n, v in vars(c).items() if TOKEN.search(n) for i in ints(v)}

    @property
    def channels(self) -> int:
        """Image channels."""
        return self.number("num_channels", "in_chans", "input_channels", default=3)

    @property
    def image(self) -> tuple[int, int]:
        """Image height and width."""
        size = ints(self.find("image_size", "input_size", "img_size", default=64)) or [64]
        return (size[0], size[1]) if len(size) > 1 else (size[0], size[0])

    @property
    def patch(self) -> int:
        """Side of a patch."""
        return self.number("patch_size", default=16)
