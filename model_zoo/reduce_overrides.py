"""What the names of a config's fields do not tell: reduced values per model type, each with its reason."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {}
"""Model type -> fields and their reduced values; applied to every config of that type in a tree."""

STOCK: dict[str, tuple[str, ...]] = {}
"""Model type -> fields that keep their stock value."""
