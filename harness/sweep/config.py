"""A sweep's config: YAML, checked by pydantic, faults named with file and line."""

from __future__ import annotations

import difflib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from model_zoo.profiles import PROFILES, near, rotation


class ConfigError(Exception):
    """A config that cannot be used; one line with file, line, what was found and what is known."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Models(_Section):
    """Which models a sweep takes: ids or globs, in this order, each once."""

    include: list[str] = Field(min_length=1)
    exclude: list[str] = []
    limit: int | None = Field(default=None, ge=1)
    """Takes the first so many."""


class BackendChoice(_Section):
    """A backend, and how it is to be run. Written as a name alone, everything else is the default."""

    name: str
    mode: str | None = None
    """None: the backend's best mode on this machine."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


class Limits(_Section):
    """What one model may take, on each side, before it is stopped."""

    seconds: float = Field(default=300, gt=0, le=1e6)
    memory_gib: float = Field(default=8, gt=0, le=1e6)


def _known(profile: str) -> str:
    if profile not in PROFILES:
        hint = f"did you mean {' or '.join(near(profile))}? " if near(profile) else ""
        raise ValueError(f"no such profile; {hint}known: {', '.join(PROFILES)}")
    return profile


class SweepConfig(_Section):
    """The config of a sweep, defaults filled in."""

    models: Models
    backends: list[BackendChoice] = Field(min_length=1)
    profiles: list[Annotated[str, AfterValidator(_known)]] = Field(default=["gaussian"], min_length=1)
    """Names, or `{rotate: 3}` for so many a night, chosen by the date on which the config is read."""
    workloads: list[Literal["forward", "training", "decoding"]] = Field(default=["forward"], min_length=1)
    weights: Literal["observable", "stock"] = "observable"
    """How random weights are drawn: so that a fault shows (`model_zoo.weights`), or as the library draws them."""
    checks: list[Literal["observability", "second-input", "determinism", "gate"]] = ["observability", "second-input"]
    """What is looked at besides the outputs: how many ops a verdict could see at fault, once per graph; whether the
    outputs change with the inputs; whether each side gives the same results when run again; whether the errors over
    several inputs are distributed as the reference's are, for rows in 16 bits."""
    limits: Limits = Limits()
    workers: Literal["auto"] | int = "auto"
    """How many workers are active at once; auto: one per CPU."""
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("backends", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return [{"name": v} if isinstance(v, str) else v for v in value] if isinstance(value, list) else value

    @field_validator("profiles", mode="before")
    @classmethod
    def _rotated(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        if set(value) != {"rotate"} or type(value["rotate"]) is not int:
            raise ValueError("must be a list of names, or {rotate: N} for N of them a night")
        today = (info.context or {}).get("today") or datetime.now(UTC).date()
        return list(rotation(today, value["rotate"]))

    @field_validator("profiles", "workloads", "checks")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if doubled := next((v for v in value if value.count(v) > 1), None):
            raise ValueError(f"names {doubled} twice")
        return value

    @field_validator("workers")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value != "auto" and value < 1:
            raise ValueError("must be auto or at least 1")
        return value


def read_config(file: Path, today: date | None = None) -> SweepConfig:
    """Reads and checks a config file; `ConfigError` names file and line.

    `today` decides which profiles a rotation gives: the present day in UTC, or that on which a run to resume began.
    """
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no config at {file}: there is no such file; see configs/demo.yaml for one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {file}: {error}") from error
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except RecursionError as error:
        raise ConfigError(f"{file}: malformed YAML: nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{file}: {line}malformed YAML: {problem}") from error
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{file}: line 1: expected keys such as models and backends, found {found}")
    if doubled := _doubled_key(tree):
        raise ConfigError(f"{file}: line {doubled.start_mark.line + 1}: the key {doubled.value} stands there twice")
    try:
        return SweepConfig.model_validate(data, context={"today": today})
    except ValidationError as error:
        raise ConfigError(_explained(file, tree, error)) from error


def one_model(
    model: str,
    backend: str,
    mode: str | None,
    *,
    dtype: str,
    profile: str,
    workload: str,
    weights: str,
    seed: int,
    seconds: float,
    memory_gib: float,
) -> SweepConfig:
    """The config that `calipers check` stands for; `ConfigError` names the flag that is wrong."""
    data = {
        "models": {"include": [model]},
        "backends": [{"name": backend, "mode": mode, "dtype": dtype}],
        "profiles": [profile],
        "workloads": [workload],
        "weights": weights,
        "checks": ["observability", "second-input", "determinism"],
        "limits": {"seconds": seconds, "memory_gib": memory_gib},
        "seed": seed,
    }
    try:
        return SweepConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        flag = {"profiles": "profile", "workloads": "workload"}.get(str(first["loc"][0]), str(first["loc"][-1]))
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--{flag.replace('_', '-')}: {message} (found {_cut(first['input'])})") from error


def _explained(file: Path, tree: yaml.Node | None, error: ValidationError) -> str:
    first = error.errors()[0]
    path = tuple(first["loc"])
    line = _line_of(tree, path)
    where = ".".join(str(p) for p in path)
    if first["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{file}: line {line}: unknown key {where}; {hint}known here: {', '.join(known)}"
    if first["type"] == "missing":
        return f"{file}: line {line}: the key {where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{file}: line {line}: {where}: {message} (found {_cut(first['input'])})"


def _cut(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def _doubled_key(node: yaml.Node | None) -> yaml.ScalarNode | None:
    """The second of two equal keys at the top or one level below, of which YAML would silently take the last."""
    if not isinstance(node, yaml.MappingNode):
        return None
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            return key  # type: ignore[no-any-return]
        seen.add(key.value)
        if doubled := _doubled_key(value):
            return doubled
    return None


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {"models": Models, "backends": BackendChoice, "limits": Limits}
    section = sections.get(str(path[0]), SweepConfig) if path else SweepConfig
    return list(section.model_fields)


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """Line, from 1, of the deepest part of `path` that the file has."""
    if node is None:
        return 1
    line = node.start_mark.line + 1
    if path and isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == path[0]:
                return _line_of(value, path[1:]) if len(path) > 1 else key.start_mark.line + 1
    if path and isinstance(node, yaml.SequenceNode) and isinstance(path[0], int) and path[0] < len(node.value):
        return _line_of(node.value[path[0]], path[1:])
    return line
