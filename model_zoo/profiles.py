"""The words of input profiles: how a model's inputs are drawn, and which night draws them how. Imports no torch.

>>> near("offsett")
['offset']
"""

from __future__ import annotations

import difflib
from datetime import date
from enum import StrEnum

WEEK = 7
"""Nights after which a rotation has shown every profile."""


class Profile(StrEnum):
    """How the inputs of a model are drawn. Each aims at faults that N(0, 1) does not show."""

    GAUSSIAN = "gaussian"
    """Continuous values from N(0, 1), token ids uniform: as the source drew them."""
    OFFSET = "offset"
    """1e3 plus the gaussian draw: a one-pass variance loses its digits."""
    TINY = "tiny"
    """The gaussian draw times 1e-20: squares are subnormal, and a device may flush them to zero."""
    HUGE = "huge"
    """The gaussian draw times 1e15: a product of three overflows."""
    LARGE_LOGITS = "large-logits"
    """The gaussian draw times 100: exp overflows unless the maximum is subtracted first, softmax saturates."""
    INTEGER_EDGES = "integer-edges"
    """Integers at the edges of their dtype and of 32 bits, negative ones too; as token ids they are out of range."""
    NON_FINITE = "non-finite"
    """NaN, +inf and -inf in every row of the batch but the last, and negative zeros in all."""
    MASKED_ROWS = "masked-rows"
    """The first row of every mask shuts out everything, the last its first half."""
    ODD_SIZES = "odd-sizes"
    """Heights, widths and lengths that no tile or vector divides, each the next smaller prime."""
    SINGLE_ELEMENT = "single-element"
    """A batch of one, of length one where the model takes it."""
    NON_CONTIGUOUS = "non-contiguous"
    """The same values with the strides of a transposed tensor."""
    CHANNELS_LAST = "channels-last"
    """The same images with the channels last in memory."""

    @property
    def expects_rejection(self) -> bool:
        """Whether a model may be right to refuse such inputs; then the backend must refuse them too."""
        return self is Profile.INTEGER_EDGES


PROFILES = tuple(profile.value for profile in Profile)
"""Names of all profiles, `gaussian` first."""


def near(name: str) -> list[str]:
    """Names of profiles that `name` may have meant, the likeliest first."""
    return difflib.get_close_matches(name.lower().replace("_", "-"), PROFILES, n=2, cutoff=0.5)


def rotation(day: date, per_night: int) -> tuple[str, ...]:
    """The profiles of one night: `gaussian`, and others in turn, so that any seven nights in a row show every one.

    `ValueError` where `per_night` is too few for that, or more than there are.

    >>> rotation(date(2026, 11, 30), 3)
    ('gaussian', 'integer-edges', 'non-finite')
    """
    others = PROFILES[1:]
    least = 1 + -(-len(others) // WEEK)
    if not least <= per_night <= len(PROFILES):
        raise ValueError(
            f"cannot rotate {per_night} profiles a night: {least} at least, for a week to show all {len(PROFILES)}, "
            f"and {len(PROFILES)} at most"
        )
    start = day.toordinal() * (per_night - 1)
    return (PROFILES[0], *(others[(start + i) % len(others)] for i in range(per_night - 1)))
