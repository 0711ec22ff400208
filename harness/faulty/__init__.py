"""A backend that is wrong on purpose, for `calipers selftest`: the CPU with one fault planted by a recipe.

>>> from harness.faulty.recipes import RECIPES
>>> RECIPES["wrong-constant:native_layer_norm:eps"].kind
<Kind.WRONG_CONSTANT: 'wrong-constant'>
"""

from harness.faulty.backend import Faulty
from harness.faulty.recipe import Kind, Recipe

__all__ = ["Faulty", "Kind", "Recipe"]
