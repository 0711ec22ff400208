"""From a config to the rows to run, grouped by the reference run that they share."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.backends import load_backend
from harness.backends.base import Needs, Unavailable
from harness.records import RowKey
from harness.sweep.config import ConfigError, SweepConfig
from harness.sweep.messages import Task
from model_zoo.sources import resolve


@dataclass(frozen=True)
class Plan:
    """What a sweep runs."""

    tasks: tuple[Task, ...]
    routes: dict[str, str]
    """`backend/mode` -> how it is reached here."""
    versions: dict[str, str]
    """Versions of the packages behind the backends."""

    @property
    def keys(self) -> list[RowKey]:
        """Every row, in the order of the plan."""
        return [key for task in self.tasks for key in task.keys]


def make_plan(config: SweepConfig) -> Plan:
    """Resolves models and backends. `UnknownModel`, `UnknownBackend`, `Unavailable` and `ConfigError` in one line."""
    routes: dict[str, str] = {}
    versions: dict[str, str] = {}
    needs: dict[str, Needs] = {}
    chosen: list[tuple[str, str, str]] = []
    for choice in config.backends:
        backend = load_backend(choice.name)
        mode = choice.mode or backend.default_mode()
        found = backend.availability(mode)
        if not found.ok:
            hint = f"; {found.hint}" if found.hint else ""
            raise Unavailable(f"backend {choice.name}, mode {mode}, cannot run here: {found.route}{hint}")
        routes[f"{choice.name}/{mode}"] = found.route
        versions |= found.versions
        needs[choice.name] = backend.needs
        chosen.append((choice.name, mode, choice.dtype))
    if len(set(chosen)) < len(chosen):
        raise ConfigError("the config names one backend twice with the same mode and dtype; remove one")
    dtypes = dict.fromkeys(dtype for _, _, dtype in chosen)
    tasks = []
    for model in choose_models(config.models.include, config.models.exclude, config.models.limit):
        for workload, profile, dtype in itertools.product(config.workloads, config.profiles, dtypes):
            same = [(name, mode) for name, mode, d in chosen if d == dtype]
            shared: dict[str, Any] = {"model": model, "dtype": dtype, "profile": profile, "workload": workload}
            tasks.append(
                Task(
                    **shared,
                    seed=config.seed,
                    keys=tuple(RowKey(backend=name, mode=mode, **shared) for name, mode in same),
                    program_for=tuple(name for name, _ in same if needs[name] is Needs.PROGRAM),
                    weights=config.weights,
                    checks=tuple(config.checks),
                )
            )
    return Plan(tuple(tasks), routes, versions)


def choose_models(include: Sequence[str], exclude: Sequence[str], limit: int | None) -> list[str]:
    """Model ids that the patterns stand for, each once, in the order of `include`."""
    ids = dict.fromkeys(str(spec) for pattern in include for spec in resolve(pattern))
    kept = [i for i in ids if not any(fnmatch.fnmatchcase(i, pattern) for pattern in exclude)]
    if not kept:
        raise ConfigError(f"no model is left: {len(ids)} included, all of them excluded; loosen models.exclude")
    return kept[:limit]
