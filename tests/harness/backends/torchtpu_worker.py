"""A process that runs programs on TorchTPU's lowering route, one after another, as a backend's worker does.

torch_tpu cannot be unloaded, and once it is loaded torch.manual_seed asks for a TPU: the tests keep it out of theirs.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.backends.base import BackendError, Observation, Work
from harness.backends.program import Program
from harness.records import RowKey, Stage


@dataclass(frozen=True)
class Outcome:
    """What became of one program."""

    observation: Observation | None = None
    error: BackendError | None = None
    stage: Stage | None = None

    @property
    def values(self) -> list[Any]:
        """The output's leaves; fails with the backend's error if there are none."""
        if self.observation is None:
            raise AssertionError(f"{self.stage}: {self.error}")
        return [leaf.value for leaf in self.observation.leaves]


class Function(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def capture(function: Callable[..., Any], *inputs: Any) -> Program:
    """Exports a function, or a module."""
    module = function if isinstance(function, torch.nn.Module) else Function(function)
    return Program.capture(module.eval(), inputs, {})


def run_all(programs: dict[str, Program], folder: Path) -> dict[str, Outcome]:
    """Runs the programs in one fresh process, in order; they travel there as bytes."""
    (folder / "programs").write_bytes(pickle.dumps(programs))
    done = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: dict[str, Outcome] = pickle.loads((folder / "outcomes").read_bytes())
    return outcomes


def run_one(backend: Any, name: str, program: Program) -> Outcome:
    """One program through all stages."""
    stage = Stage.LOWER
    key = RowKey(model=f"python:tests:{name}", backend="torchtpu", mode="lowering")
    try:
        lowered = backend.lower(Work(key, 0, build=_no_build, program=program))
        stage = Stage.COMPILE
        compiled = backend.compile(lowered)
        stage = Stage.RUN
        return Outcome(observation=backend.run(compiled))
    except BackendError as error:
        return Outcome(error=error, stage=stage)


def _no_build() -> Any:
    raise AssertionError("a backend that needs the program must not build the model")


def main(folder: Path) -> None:
    """The process's own code."""
    import os

    from harness.backends import load_backend
    from tests.harness.backends.torchtpu_worker import run_one as run  # pickles must not name __main__

    backend = load_backend("torchtpu")
    backend.activate("lowering", threads=1)
    programs = pickle.loads((folder / "programs").read_bytes())
    outcomes = {name: run(backend, name, program) for name, program in programs.items()}
    (folder / "outcomes").write_bytes(pickle.dumps(outcomes))
    os._exit(0)  # the half-loaded TPU runtime does not shut down cleanly


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main(Path(sys.argv[1]))
