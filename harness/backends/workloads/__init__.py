"""Workloads: what is done with a model besides one forward. Each is a module around the model, and runs like one.

>>> from model_zoo.sources import build
>>> step = as_workload(build("timm:resnet18"), "training")
>>> sorted(step.module(*step.args))
['grad', 'loss', 'updated']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.backends.workloads.base import Workload, WorkloadUnfit
from harness.backends.workloads.decoding import decoding
from harness.backends.workloads.training import training

if TYPE_CHECKING:
    from model_zoo.spec import BuiltModel

WORKLOADS = ("forward", "training", "decoding")
"""One forward; one training step; greedy decoding with a cache, the tokens given."""

__all__ = ["WORKLOADS", "Workload", "WorkloadUnfit", "as_workload"]


def as_workload(built: BuiltModel, workload: str) -> BuiltModel:
    """The model with a module that does that workload in place of its own; `WorkloadUnfit` where it cannot.

    Give it the model as it was built and `cast` what comes back: what a workload draws or chooses is then the same in
    every dtype. The same model gives the same workload in any process.
    """
    if workload == "forward":
        return built
    if workload == "training":
        return training(built)
    if workload == "decoding":
        return decoding(built)
    raise ValueError(f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}")
