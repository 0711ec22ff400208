"""Judges known divergences on one backend, in a process of its own: `BACKEND FILE...` gives a JSON line per case."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import torch
import yaml

from harness.backends import load_backend
from harness.backends.base import Backend, BackendError, Needs, Work, one_line
from harness.backends.double import ControlUnavailable, run_control
from harness.backends.program import Program
from harness.backends.reference import run_reference
from harness.backends.tree import Leaf
from harness.numerics import References, judge
from harness.numerics.second_look import second_look
from harness.records import RowKey
from model_zoo.spec import BuiltModel, ModelSpec

MODES = {"openvino": "convert", "onnxruntime": "export", "inductor": "compile", "torchtpu": "lowering"}


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


def observed(backend: Backend, case: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """What the backend gives; raises `BackendError`."""
    program = None
    if backend.needs is Needs.PROGRAM:
        built = build(case)
        program = Program.capture(built.module, built.args, built.kwargs)
    key = RowKey(model=f"python:cases:{case['id']}", backend=backend.name, mode=backend.mode)
    work = Work(key, 0, lambda: build(case), program)
    return backend.run(backend.compile(backend.lower(work))).leaves


def verdict(backend: Backend, case: Mapping[str, Any]) -> dict[str, str]:
    """What Calipers says of a case: status, op, message."""
    built = build(case)
    try:
        device = observed(backend, case)
    except BackendError as error:
        return {"status": error.status.value, "op": error.op or "", "message": error.message}
    try:
        control = run_control(built)
    except ControlUnavailable:
        control = None
    references = References(run_reference(built).leaves, control)
    found = judge(device, references)
    if not found.status.is_pass or case["truth"] == "reference":
        found = second_look(built, references, device)
    return {"status": found.status.value, "op": found.op or "", "message": found.message}


def main(name: str, *paths: str) -> Iterator[str]:
    """A JSON line per case of that backend; those of the backend `any` are judged too."""
    backend = load_backend(name)
    available = backend.availability(MODES.get(name, backend.modes[0]))
    if not available.ok:
        yield json.dumps({"unavailable": available.route})
        return
    backend.activate(MODES.get(name, backend.modes[0]), threads=1)
    for path in paths:
        for case in cases(Path(path)):
            if case["backend"] in (name, "any"):
                try:
                    said = verdict(backend, case)
                except Exception as error:
                    said = {"status": "", "op": "", "message": one_line(error)}
                yield json.dumps({"id": case["id"], **said})


if __name__ == "__main__":
    for line in main(*sys.argv[1:]):
        print(line, flush=True)
