"""Backends, one file each, found by the entry point group `calipers.backends`.

>>> "torchtpu" in backend_names()
True
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from harness.backends.base import Backend

GROUP = "calipers.backends"


class UnknownBackend(Exception):
    """No backend of that name; the message names the installed ones."""


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def backend_names() -> list[str]:
    """Names of the installed backends, without loading one."""
    return sorted(_entry_points())


def load_backend(name: str) -> Backend:
    """A fresh instance of the backend of that name; `UnknownBackend` if there is none.

    Loading a backend's file imports neither its package nor its device.
    """
    point = _entry_points().get(name)
    if point is None:
        near = difflib.get_close_matches(name, backend_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownBackend(f"unknown backend {name!r}; {hint}installed: {', '.join(backend_names())}")
    loaded: type[Backend] = point.load()
    return loaded()
