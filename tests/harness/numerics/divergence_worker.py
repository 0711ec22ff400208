"""Runs known divergences on one backend, in a process of its own: `BACKEND OUT FILE...` pickles what it gave to OUT."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import torch
import yaml

from harness.backends import load_backend
from harness.backends.base import BackendError, Needs, Work
from harness.backends.program import Program
from harness.backends.tree import Leaf
from harness.records import RowKey
from model_zoo.spec import BuiltModel, ModelSpec

MODES = {"openvino": "convert", "onnxruntime": "export", "inductor": "compile", "torchtpu": "lowering"}


@dataclass(frozen=True)
class Given:
    """What a backend gave for each case, by id; or why it cannot run here."""

    results: dict[str, tuple[Leaf, ...] | BackendError]
    unavailable: str = ""


class Function(torch.nn.Module):
    """A case's function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def cases(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of known divergences."""
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return found


def build(case: Mapping[str, Any]) -> BuiltModel:
    """The model and the inputs of a case, the same every time."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(case["code"], names)
    return BuiltModel(ModelSpec("python", f"cases:{case['id']}"), Function(names["f"]).eval(), tuple(names["inputs"]))


def given(name: str, paths: list[str]) -> Given:
    """Runs every case of that backend, and those of the backend `any`."""
    backend = load_backend(name)
    mode = MODES.get(name, backend.modes[0])
    available = backend.availability(mode)
    if not available.ok:
        return Given({}, available.route)
    work = {}
    for case in (case for path in paths for case in cases(Path(path))):
        if case["backend"] in (name, "any"):
            built = build(case)  # before the backend is loaded: torch_tpu then wants a TPU to seed
            program = None
            if backend.needs is Needs.PROGRAM:
                program = Program.capture(built.module, built.args, built.kwargs)
            key = RowKey(model=str(built.spec), backend=name, mode=mode)
            work[case["id"]] = Work(key, 0, lambda built=built: built, program)  # type: ignore[misc]
    backend.activate(mode, threads=1)
    results: dict[str, tuple[Leaf, ...] | BackendError] = {}
    for name, task in work.items():
        try:
            results[name] = backend.run(backend.compile(backend.lower(task))).leaves
        except BackendError as error:
            results[name] = error
    return Given(results)


if __name__ == "__main__":
    # Under its own name, not as `__main__`, so that the reader can unpickle it.
    from tests.harness.numerics import divergence_worker

    torch.save(divergence_worker.given(sys.argv[1], sys.argv[3:]), sys.argv[2])
