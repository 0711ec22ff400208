"""python:package.module:function: what it builds, and how it says no."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from model_zoo.sources import build, resolve
from model_zoo.spec import ZooError

FACTORIES = """
import torch
raise_on_import = None

def tuple_inputs(): return torch.nn.Linear(3, 2), (torch.randn(1, 3),)
def dict_inputs(): return torch.nn.Linear(3, 2), {"input": torch.ones(1, 3)}
def one_tensor(): return torch.nn.Linear(3, 2), torch.ones(1, 3)
def no_pair(): return torch.nn.Linear(3, 2)
def no_module(): return torch.relu, (torch.ones(1),)
def list_inputs(): return torch.nn.Linear(3, 2), [torch.ones(1, 3)]
def broken(): raise RuntimeError("my own fault\\nsecond line")
number = 3
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the working folder and gives its name, which no other test uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def to_file(name: str, text: str) -> str:
        file = tmp_path / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return name

    yield to_file
    for name in set(sys.modules) - before:
        if name.startswith("zoo_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [("tuple_inputs", 1, []), ("one_tensor", 1, []), ("dict_inputs", 0, ["input"])],
)
def test_it_builds_from_the_working_folder(write: Write, function: str, args: int, kwargs: list[str]) -> None:
    module = write("zoo_pkg.models", FACTORIES)
    built = build(f"python:{module}:{function}")
    assert (len(built.args), list(built.kwargs), built.family, built.modality) == (args, kwargs, function, "custom")
    assert built.module(*built.args, **built.kwargs).shape == (1, 2)
    assert not built.module.training


def test_weights_and_inputs_come_from_the_seed(write: Write) -> None:
    name = f"python:{write('zoo_seeded', FACTORIES)}:tuple_inputs"
    one, same, other = build(name, 1), build(name, 1), build(name, 2)
    assert torch.equal(one.module(*one.args), same.module(*same.args))
    assert not torch.equal(one.module(*one.args), other.module(*other.args))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("no_pair", "found Linear"),
        ("no_module", "found (builtin_function_or_method, tuple)"),
        ("list_inputs", "found (Linear, list)"),
        ("number", "number is not callable; expected a function, found int"),
    ],
)
def test_the_wrong_thing_is_named_in_one_line(write: Write, function: str, found: str) -> None:
    with pytest.raises(ZooError) as refused:
        build(f"python:{write('zoo_wrong', FACTORIES)}:{function}")
    assert str(refused.value).endswith(found)
    assert "\n" not in str(refused.value)


def test_what_the_factory_raises_passes_through(write: Write) -> None:
    with pytest.raises(RuntimeError, match="my own fault"):
        build(f"python:{write('zoo_broken', FACTORIES)}:broken")


def test_what_the_users_import_raises_passes_through(write: Write) -> None:
    name = write("zoo_imports", "import zoo_there_is_no_such_package\ndef f(): ...")
    with pytest.raises(ModuleNotFoundError, match="zoo_there_is_no_such_package"):
        build(f"python:{name}:f")


@pytest.mark.parametrize("ask", [resolve, build])
def test_a_missing_module_says_where_it_was_looked_for(write: Write, ask: Callable[[str], object]) -> None:
    write("zoo_pkg2.models", FACTORIES)
    with pytest.raises(ZooError, match=r"no module 'zoo_pkg2\.model'; looked in") as refused:
        ask("python:zoo_pkg2.model:f")
    assert str(Path.cwd()) in str(refused.value)


@pytest.mark.parametrize("ask", [resolve, build])
def test_a_missing_function_names_near_ones(write: Write, ask: Callable[[str], object]) -> None:
    name = write("zoo_near", FACTORIES)
    with pytest.raises(ZooError, match=r"has no 'tuple_input'; did you mean tuple_inputs"):
        ask(f"python:{name}:tuple_input")


@pytest.mark.parametrize("form", ["python:nothing", "python:a.b", "python:a:b:c", "python:a-b:c", "python:a.b:*"])
def test_another_form_is_refused(form: str) -> None:
    with pytest.raises(ZooError, match=r"another form than python:package\.module:function"):
        resolve(form)


def test_resolving_runs_nothing_of_the_users(write: Write) -> None:
    write("zoo_loud.__init__", "raise SystemExit('imported')")
    name = write("zoo_loud.models", "raise SystemExit('imported')\ndef f(): ...")
    (spec,) = resolve(f"python:{name}:f")
    assert str(spec) == f"python:{name}:f"
    assert "zoo_loud" not in sys.modules
    with pytest.raises(SystemExit):
        build(str(spec))


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import *",
        "def __getattr__(name): return print",
        "globals()['late'] = print",
        "if 1:\n late = print",
    ],
)
def test_names_that_only_running_shows_are_left_to_the_build(write: Write, text: str) -> None:
    name = write("zoo_late", text)
    assert resolve(f"python:{name}:late")


def test_folders_named_by_the_variable_come_first(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("driver.zoo_both", FACTORIES)
    write("zoo_both", "def tuple_inputs(): raise RuntimeError('the wrong folder')")
    monkeypatch.setenv("CALIPERS_PYTHON_PATH", str(tmp_path / "driver"))
    assert build("python:zoo_both:tuple_inputs").family == "tuple_inputs"
    monkeypatch.delenv("CALIPERS_PYTHON_PATH")
    del sys.modules["zoo_both"]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("driver")])
    with pytest.raises(RuntimeError, match="the wrong folder"):
        build("python:zoo_both:tuple_inputs")
