"""The user's own models: `python:package.module:function`, a factory that returns `(module, inputs)`.

The working folder is importable, and so are the folders named by the environment variable `CALIPERS_PYTHON_PATH`
(separated as in PATH), which tells a worker process where its driver was started.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

from model_zoo.sources import Source
from model_zoo.spec import BuiltModel, ModelSpec, ZooError

PATH_VARIABLE = "CALIPERS_PYTHON_PATH"


class PythonSource(Source):
    """Factories in modules that can be imported from the working folder.

    A factory takes no arguments and returns `(module, inputs)`; inputs are a tuple of arguments, a dict of keyword
    arguments, or one tensor. What it raises passes through.
    """

    name: ClassVar[str] = "python"
    can_list: ClassVar[bool] = False

    def resolve(self, pattern: str) -> list[ModelSpec]:
        """The one spec; `ZooError` if module or function is known to be missing. Runs none of the user's code."""
        module, function = _split(pattern)
        _extend_path()
        found = _find(module)
        if found is None:
            raise _no_module(pattern, module)
        names = _top_level_names(found)
        if names is not None and function not in names:
            raise _no_function(pattern, module, function, names)
        return [ModelSpec(self.name, pattern)]

    def names_impl(self) -> Sequence[str]:
        """None: a user's modules cannot be listed."""
        return []

    def build_impl(self, spec: ModelSpec, seed: int) -> BuiltModel:
        """Imports the module, calls the factory, and checks what it returned."""
        module_name, function = _split(spec.name)
        _extend_path()
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # it is the user's module that imports something missing
            raise _no_module(spec.name, module_name) from None
        if not hasattr(module, function):
            raise _no_function(spec.name, module_name, function, [n for n in vars(module) if not n.startswith("_")])
        factory = getattr(module, function)
        if not callable(factory):
            raise ZooError(f"{spec}: {function} is not callable; expected a function, found {_kind(factory)}")
        built, args, kwargs = _taken_apart(spec, factory())
        return BuiltModel(spec, built, args, kwargs, family=function, modality="custom")


def _split(name: str) -> tuple[str, str]:
    module, colon, function = name.partition(":")
    parts = [*module.split("."), function]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ZooError(f"model id 'python:{name}' has another form than python:package.module:function")
    return module, function


def _extend_path() -> None:
    """Puts the user's folders in front of sys.path, as `python -m` does with the working folder."""
    named = [f for f in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if f]
    wanted = list(dict.fromkeys([*named, str(Path.cwd())]))
    if sys.path[: len(wanted)] != wanted:
        sys.path[:] = [*wanted, *(p for p in sys.path if p not in wanted)]
        importlib.invalidate_caches()


def _find(module: str) -> ModuleSpec | None:
    """Where a module would be imported from. `importlib.util.find_spec` would import its parents; this does not."""
    path: Sequence[str] | None = None
    found: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        specs = (f.find_spec(full, path) for f in sys.meta_path if hasattr(f, "find_spec"))
        found = next((s for s in specs if s is not None), None)
        if found is None:
            return None
        path = found.submodule_search_locations
        if path is None and depth < len(parts):
            return None
    return found


def _top_level_names(found: ModuleSpec) -> list[str] | None:
    """Names that a module's source binds at its top level, or None where reading the source cannot tell."""
    if found.origin is None or not found.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(found.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the build will show it as Python does
    names = list(_bound(tree.body))
    return None if "*" in names or "__getattr__" in names else names


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.Expr) and "globals" in ast.dump(node):
            yield "*"
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id
                elif isinstance(
                    inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
                ):
                    yield from _bound([inner])
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "globals":
                    yield "*"


def _no_module(name: str, module: str) -> ZooError:
    where = ", ".join(dict.fromkeys([*os.environ.get(PATH_VARIABLE, "").split(os.pathsep), str(Path.cwd())])).strip(
        ", "
    )
    return ZooError(f"python:{name}: no module {module!r}; looked in {where} and in the installed packages")


def _no_function(name: str, module: str, function: str, names: Sequence[str]) -> ZooError:
    near = difflib.get_close_matches(function, names, n=3, cutoff=0.5)
    hint = "did you mean " + ", ".join(near) + "?" if near else "it has " + (", ".join(sorted(names)[:8]) or "no names")
    return ZooError(f"python:{name}: module {module} has no {function!r}; {hint}")


def _taken_apart(spec: ModelSpec, made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    wrong = f"{spec} returned the wrong thing: expected (module, inputs), inputs a tuple, a dict or a tensor; found "
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise ZooError(wrong + _kind(made))
    module, inputs = made
    if not isinstance(module, torch.nn.Module):
        raise ZooError(wrong + _kind(made))
    if isinstance(inputs, torch.Tensor):
        return module, (inputs,), {}
    if isinstance(inputs, tuple):
        return module, inputs, {}
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs):
        return module, (), inputs
    raise ZooError(wrong + _kind(made))


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(type(v).__name__ for v in value) + ")"
    return type(value).__name__
