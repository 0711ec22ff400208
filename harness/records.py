"""The words of Calipers as data: what a row is, what can become of it, and what a run was made with.

The ground floor: every room imports this file and it imports none of ours.

>>> Status("divergent").blames_backend
True
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

FORMAT_VERSION = 1
"""Version of the run folder's format, written into run.json; a reader refuses a later one."""


class Record(BaseModel):
    """Base of everything that is written to disk: immutable, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Stage(StrEnum):
    """A step in the life of a row, in the order in which they happen."""

    BUILD = "build"
    """The model and its inputs are made from the model id and the seed."""
    REFERENCE = "reference"
    """The reference runs: eager, CPU, the model's own dtype."""
    CONTROL = "control"
    """A control of the reference runs: fp64, or the second path."""
    OBSERVABILITY = "observability"
    """How many of the model's ops the verdict could see at fault is measured, once per graph."""
    EXPORT = "export"
    """The model is exported to an ATen graph."""
    LOWER = "lower"
    """The backend translates the graph into its own form."""
    COMPILE = "compile"
    """The backend compiles that form."""
    RUN = "run"
    """The backend executes it."""
    JUDGE = "judge"
    """The outputs are compared."""

    @property
    def is_backends(self) -> bool:
        """Whether what goes wrong in this stage is the backend's doing."""
        return self in (Stage.LOWER, Stage.COMPILE, Stage.RUN)


class Status(StrEnum):
    """What became of a row. Never a bare "error": the value says what happened, `Row.stage` where."""

    PASS = "pass"
    """The backend ran every op, and its outputs are within the error budget."""
    PASS_WITH_FALLBACK = "pass_with_fallback"
    """Within the budget, but some ops ran on the CPU and not on the device."""

    LOAD_ERROR = "load_error"
    """The model could not be built: an exception in its constructor, a missing package, a bad checkpoint."""
    INPUT_ERROR = "input_error"
    """No inputs could be made that the model's forward accepts."""
    REFERENCE_ERROR = "reference_error"
    """The model raises on the CPU reference."""
    REFERENCE_SUSPECT = "reference_suspect"
    """The reference disagrees with its own controls: the finding is about the CPU, not about the backend."""
    ILL_CONDITIONED = "ill_conditioned"
    """The model amplifies rounding so far that the two sides cannot be told apart."""
    ENVIRONMENT_ERROR = "environment_error"
    """The machine, the installation or the harness failed, not the model and not the backend."""
    SKIPPED = "skipped"
    """Not measured, for the reason in the message: a limit of the route or of the configuration."""

    UNSUPPORTED_OP = "unsupported_op"
    """The backend has no implementation for an op, and says so."""
    LOWERING_ERROR = "lowering_error"
    """The backend raised while it translated the graph."""
    COMPILE_ERROR = "compile_error"
    """The backend raised while it compiled."""
    RUNTIME_ERROR = "runtime_error"
    """The backend raised while it ran."""
    DYNAMIC_SHAPE = "dynamic_shape"
    """The backend refused a shape that depends on data or changes between calls."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit was reached, in the stage named by the row."""
    TIMEOUT = "timeout"
    """The wall limit was reached, in the stage named by the row."""
    CRASH = "crash"
    """The process died (signal, abort, exit), in the stage named by the row."""
    NOT_EXECUTED = "not_executed"
    """The backend gave outputs without having executed an op on the device."""
    CONTRACT = "contract"
    """Shape, dtype or structure of the outputs differ, or one side accepts what the other rejects."""
    NON_FINITE = "non_finite"
    """NaN or inf stand in other places than on the reference."""
    DIVERGENT = "divergent"
    """The outputs are outside the error budget."""

    @property
    def is_pass(self) -> bool:
        """Whether the row shows a working model."""
        return self in (Status.PASS, Status.PASS_WITH_FALLBACK)

    @property
    def blames_backend(self) -> bool:
        """Whether the status by itself is a fault of the backend (see `Row.at_fault` for the last word)."""
        return not self.is_pass and self not in _NOT_THE_BACKENDS


_NOT_THE_BACKENDS = frozenset(
    {
        Status.LOAD_ERROR,
        Status.INPUT_ERROR,
        Status.REFERENCE_ERROR,
        Status.REFERENCE_SUSPECT,
        Status.ILL_CONDITIONED,
        Status.ENVIRONMENT_ERROR,
        Status.SKIPPED,
    }
)


class Fault(StrEnum):
    """Whose fault a row that did not pass is."""

    NONE = "none"
    """The row passed, or was not measured."""
    BACKEND = "backend"
    MODEL = "model"
    """The model failed before the backend saw it."""
    REFERENCE = "reference"
    ENVIRONMENT = "environment"


def fault_of(status: Status, stage: Stage | None) -> Fault:
    """Whose fault it is. A crash, a hang or memory exhausted before the backend's first stage is the model's.

    >>> fault_of(Status.CRASH, Stage.REFERENCE), fault_of(Status.CRASH, Stage.RUN)
    (<Fault.MODEL: 'model'>, <Fault.BACKEND: 'backend'>)
    """
    if status.is_pass or status in (Status.SKIPPED, Status.ILL_CONDITIONED):
        return Fault.NONE
    if status is Status.ENVIRONMENT_ERROR:
        return Fault.ENVIRONMENT
    if status is Status.REFERENCE_SUSPECT:
        return Fault.REFERENCE
    if status in (Status.LOAD_ERROR, Status.INPUT_ERROR, Status.REFERENCE_ERROR):
        return Fault.MODEL
    if status in (Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY) and stage and not stage.is_backends:
        return Fault.ENVIRONMENT if stage is Stage.JUDGE else Fault.MODEL
    return Fault.BACKEND


class NumericClass(StrEnum):
    """How an output of the device relates to the reference's."""

    IDENTICAL = "identical"
    """Bit for bit the same."""
    WITHIN_BUDGET = "within_budget"
    """Different, by no more than rounding explains."""
    MORE_PRECISE = "more_precise"
    """Closer to fp64 than the reference is."""
    ILL_CONDITIONED = "ill_conditioned"
    """Rounding alone moves this output so far that no verdict is possible."""
    DIVERGENT = "divergent"
    """Further from fp64 than the budget allows."""


class Metrics(Record):
    """The numbers that decided a verdict, for the worst leaf of the output tree. Absent where not measured.

    Errors are absolute differences in the output's own unit; ratios have no unit.
    """

    rule: str | None = None
    """The rule that a failing verdict broke first: `mask`, `element`, `rms`, `max`, `row`, `systematic`, `collapse`, or
    `jump` and `reference` where rounding moves the output so far that there is no verdict."""

    leaf: str | None = None
    """Path of the worst leaf in the output tree, e.g. `.logits` or `[0]['past'][1]`."""
    index: tuple[int, ...] | None = None
    """Index of the worst element in that leaf."""
    device_value: float | None = None
    reference_value: float | None = None
    control_value: float | None = None
    """The three values at that index; the control is fp64."""
    worst_in_budgets: float | None = None
    """Worst element's error against fp64, in units of the budget: above 1 is out of budget."""
    elements_over: int | None = None
    """How many elements of all leaves are out of budget."""
    elements_explained: int | None = None
    """How many elements differ as the reference itself does when its ops are rounded another way."""
    elements: int | None = None
    """How many elements were compared."""
    runs: int | None = None
    """How many runs of the reference, on another path or rounded another way, the budget was taken from, if several."""
    rms_ratio: float | None = None
    """RMS error of the device over RMS error of the reference, both against fp64 and floored at rounding."""
    reference_rms: float | None = None
    device_rms: float | None = None
    """RMS error against fp64 over the RMS of the fp64 output (relative)."""
    unit_rms: float | None = None
    """Likewise of the run that is the unit: the reference, or the CPU in the device's lower precision."""
    device_bias: float | None = None
    unit_bias: float | None = None
    """Mean error against fp64 over the RMS of the fp64 output."""
    max_ratio: float | None = None
    """Greatest error of the device over greatest error of the unit, both floored at rounding."""
    equivalence: float | None = None
    """R = |device - reference| / |lower - reference|, where the device computes in a lower precision."""
    row: tuple[int, ...] | None = None
    """Index of the first element of the worst row."""
    row_in_limits: float | None = None
    """That row's RMS error, common factor or common summand, in units of what passes."""
    scale_error: float | None = None
    """Slope of the device's error on the fp64 values: 0.01 where all are 1 % too large."""
    offset_error: float | None = None
    """Mean of the device's error over the RMS of the fp64 values."""
    systematic_in_limits: float | None = None
    """The leaf's common factor or summand, weighted by the budget, in units of what passes."""
    amplification: float | None = None
    """Epsilons by which the reference's outputs move when each floating input moves by one. For show, of failures."""
    max_abs: float | None = None
    """Greatest |device - reference|. For show."""
    max_rel: float | None = None
    """max_abs over the greatest |reference|. For show."""
    cosine: float | None = None
    """Cosine similarity of device and reference, lowest over the leaves. For show: blind to scale and to a bad row."""


class RowKey(Record):
    """What makes a row: two rows of one run never share a key."""

    model: str
    backend: str
    mode: str
    dtype: str = "float32"
    profile: str = "gaussian"
    workload: str = "forward"

    def __str__(self) -> str:
        text = f"{self.model} on {self.backend}/{self.mode} {self.dtype} {self.profile}"
        return text if self.workload == "forward" else f"{text} {self.workload}"


class Row(Record):
    """One row of `results.parquet`: one model on one backend in one mode, dtype and profile."""

    model: str
    backend: str
    mode: str
    dtype: str
    profile: str
    workload: str = "forward"
    """What was run: `forward`, `training` (loss, gradients, an optimizer step) or `decoding` (greedy, with a cache)."""
    status: Status
    stage: Stage | None = None
    """Where it ended, if it did not pass."""
    at_fault: Fault = Fault.NONE
    numeric_class: NumericClass | None = None
    op: str | None = None
    """The ATen overload at fault, e.g. `aten::hypot.out`, where it is known."""
    message: str = ""
    """One line for a person: what happened. Empty for a plain pass."""
    detail: str = ""
    """More of it: the end of a traceback, the tail of a dead worker's log."""
    cause: str | None = None
    """Fingerprint of the cause that this row belongs to."""
    family: str = ""
    """Architecture family, e.g. `resnet`, `bert`: what the summary groups by."""
    source: str = ""
    """Origin of the model: `timm`, `transformers`, `python`, ..."""
    modality: str = ""
    """What goes in: `image`, `text`, `text-to-text`, `audio`, `video`, `multimodal`, `time-series`, `custom`."""
    reduced: bool = False
    parameters: int | None = None
    route: str = ""
    """How the backend was really reached, e.g. `lowering, run on XLA:CPU (jaxlib 0.10.2)`."""
    op_counts: dict[str, int] = Field(default_factory=dict)
    """ATen overloads executed on the device, and how often; on the reference, if the backend did not get so far."""
    fallback_ops: tuple[str, ...] = ()
    """Ops that ran on the CPU and not on the device."""
    substituted: tuple[str, ...] = ()
    """What the route could not run and the harness replaced by an equal form."""
    metrics: Metrics = Field(default_factory=Metrics)
    weights: str = "observable"
    """How parameters came about: `observable` (random, variance-preserving), `stock` (as the library draws them),
    `given` (the model's own)."""
    observability: float | None = None
    """Share of the floating-point op calls whose output, 1 % off, moves the model's output beyond its budget."""
    hidden_states: bool = False
    """Whether the verdict was on hidden states too, as the outputs alone show too little."""
    isa: str = ""
    """Instruction set that PyTorch's CPU kernels were dispatched to on the reference's machine, e.g. `AVX2`."""
    findings: tuple[str, ...] = ()
    """What else was found, a line each: a side that is not the same when run again, a reference that stands apart."""
    stage_seconds: dict[Stage, float] = Field(default_factory=dict)
    seconds: float = 0.0
    """Wall time of the row in its workers, without waiting for one."""
    peak_memory_mib: float | None = None
    seed: int = 0
    attempts: int = 1
    """How often the row was started, resumes and re-runs alone included."""
    closed_at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @field_validator("op", "message", "detail", mode="before")
    @classmethod
    def _writable(cls, text: Any) -> Any:
        """A model's words may hold half a character, which no file takes."""
        return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text

    @property
    def key(self) -> RowKey:
        """The key of this row."""
        return RowKey(**{name: getattr(self, name) for name in RowKey.model_fields})

    @property
    def command(self) -> str:
        """The command that runs this row again."""
        parts = ["calipers check", _quoted(self.model), "--backend", self.backend, "--mode", self.mode]
        flags = (
            ("--dtype", self.dtype, "float32"),
            ("--profile", self.profile, "gaussian"),
            ("--workload", self.workload, "forward"),
            ("--weights", self.weights, "observable"),
        )
        for flag, value, default in flags:
            parts += [flag, value] if value != default else []
        parts += ["--seed", str(self.seed)] if self.seed else []
        return " ".join(parts)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


class Opened(Record):
    """Journal line: a row starts now."""

    event: Literal["opened"] = "opened"
    key: RowKey
    attempt: int = 1
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class Closed(Record):
    """Journal line: a row ended, and this is what became of it."""

    event: Literal["closed"] = "closed"
    row: Row


JournalLine = Annotated[Opened | Closed, Field(discriminator="event")]
journal_line: TypeAdapter[Opened | Closed] = TypeAdapter(JournalLine)
"""Parses one line of journal.jsonl: `journal_line.validate_json(line)`."""


class Machine(Record):
    """The machine that a run was made on, as far as numbers depend on it."""

    processor: str
    isa: tuple[str, ...] = ()
    """Vector extensions that kernels choose by, e.g. avx2, avx512f, amx_bf16."""
    cpu_capability: str = ""
    """The ISA that PyTorch's kernels were dispatched to."""
    cores: int
    memory_gib: float
    system: str
    python: str


class RunInfo(Record):
    """run.json: everything that is needed to run it again."""

    format_version: int = FORMAT_VERSION
    calipers: str
    """Version of the harness."""
    config: dict[str, Any]
    """The sweep's config as it was used, defaults filled in."""
    command: str = ""
    seed: int = 0
    rows: int
    """Number of rows planned: what the report must find."""
    versions: dict[str, str] = Field(default_factory=dict)
    machine: Machine
    threads: int = 1
    """CPU threads per worker."""
    workers: int = 1
    """Workers that were active at once."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that change numbers or routes."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Backend -> how it was reached."""
    started_at: datetime
    finished_at: datetime | None = None
    wall_seconds: float = 0.0
    """Time spent sweeping, resumes added up."""


class Cause(Record):
    """A group of failing rows with one fingerprint."""

    id: str
    backend: str
    status: Status
    op: str | None = None
    message: str
    """The normalised message that the rows share."""
    models: tuple[str, ...]
    """The models that it hits."""
