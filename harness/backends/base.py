"""What a backend is: public verbs that check, and `*_impl` hooks that do.

A new backend subclasses `Backend`, implements `availability_impl`, `run_impl` and, where it has such steps,
`lower_impl` and `compile_impl`, and is named under the entry point group `calipers.backends`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from harness.records import RowKey, Stage, Status

if TYPE_CHECKING:
    from harness.backends.program import Program
    from harness.backends.tree import Aliases, Leaf
    from model_zoo.spec import BuiltModel

T = TypeVar("T")


class BackendError(Exception):
    """A failure of a backend as data: status, one line for a person, the op where it is known."""

    def __init__(self, status: Status, message: str, *, op: str | None = None, detail: str = "") -> None:
        super().__init__(status, message)
        self.status, self.message, self.op, self.detail = status, message, op, detail

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.status, self.message, self.op, self.detail))


def _rebuilt(status: Status, message: str, op: str | None, detail: str) -> BackendError:
    return BackendError(status, message, op=op, detail=detail)


class Unavailable(Exception):
    """The backend cannot be used here; the message is one line: what is missing and what to do."""


class Needs(enum.Enum):
    """What a backend is given to run."""

    PROGRAM = "program"
    """The ATen graph that the reference worker exported."""
    MODULE = "module"
    """The module itself, built again in the backend's worker from model id and seed."""


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run here, and how."""

    ok: bool
    route: str
    """How it is reached (`lowering, run on XLA:CPU`), or why it cannot be."""
    hint: str = ""
    """What to do if it cannot."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that make up the backend's build."""


@dataclass(frozen=True)
class Work:
    """One model to run.

    `program` is set for a backend that needs one; `build` makes module and inputs anew for one that needs the module.
    """

    key: RowKey
    seed: int
    build: Callable[[], BuiltModel]
    program: Program | None = None


@dataclass(frozen=True)
class Observation:
    """What one run gave."""

    leaves: tuple[Leaf, ...]
    """The output tree, flat, each leaf with its path; tensors on the CPU."""
    executed: Mapping[str, int]
    """ATen overloads (`aten::add.Tensor`) that really ran on the device, and how often."""
    fallback: tuple[str, ...] = ()
    """Overloads that ran on the CPU instead."""
    aliases: Aliases | None = None
    """Which outputs share memory with an input, where the backend can tell."""
    substituted: tuple[str, ...] = ()
    """What the route could not run and the harness replaced by an equal form, a line each."""


class Backend(ABC):
    """A backend under test. The verbs are called in the order activate, then per model lower, compile, run.

    One instance lives in one worker process and sees one model at a time.
    """

    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]]
    needs: ClassVar[Needs] = Needs.PROGRAM
    restart_after_error: ClassVar[bool] = True
    """Whether a failed row may leave the process in a state that would fail the next one."""
    off_cpu: ClassVar[bool] = False
    """Whether `run_impl` computes nothing with PyTorch's CPU kernels, so that an op seen there fell back."""

    def __init__(self) -> None:
        self.mode = ""
        self.threads = 1

    def availability(self, mode: str | None = None) -> Availability:
        """Whether `mode` (or any, if None) can run here. Cheap: asks for packages and devices, loads neither."""
        if mode is not None and mode not in self.modes:
            return Availability(False, f"{self.name} has no mode {mode!r}", f"modes: {', '.join(self.modes)}")
        return self.availability_impl(mode)

    def default_mode(self) -> str:
        """The mode used when none is named: the first that can run here, else the first."""
        return next((m for m in self.modes if self.availability_impl(m).ok), self.modes[0])

    def activate(self, mode: str, threads: int) -> None:
        """Prepares this process for `mode`, with that many CPU threads; `Unavailable` if it cannot be."""
        found = self.availability(mode)
        if not found.ok:
            raise Unavailable(f"backend {self.name}, mode {mode}: {found.route}; {found.hint}".rstrip("; "))
        self.mode, self.threads = mode, threads
        self.activate_impl()

    def lower(self, work: Work) -> object:
        """Translates the model into the backend's form; what it gives goes to `compile`. Raises `BackendError`."""
        if self.needs is Needs.PROGRAM and work.program is None:
            raise ValueError(f"backend {self.name} needs an exported program and got none")
        return self._guarded(Stage.LOWER, lambda: self.lower_impl(work))

    def compile(self, lowered: object) -> object:
        """Compiles what `lower` gave; what it gives goes to `run`. Raises `BackendError`."""
        return self._guarded(Stage.COMPILE, lambda: self.compile_impl(lowered))

    def run(self, compiled: object, inputs: Sequence[Any] | None = None) -> Observation:
        """Executes what `compile` gave, once. Raises `BackendError`, also when no op was executed on the device.

        `inputs` are flat input leaves (`pytree.tree_leaves((args, kwargs))`) to use in place of the work's own, of the
        same shapes and dtypes.
        """
        seen = self._witnessed(lambda: self._guarded(Stage.RUN, lambda: self.run_impl(compiled, inputs)))
        if not sum(seen.executed.values()):
            raise BackendError(Status.NOT_EXECUTED, f"{self.name} gave outputs but executed no op on the device")
        return seen

    def _witnessed(self, run: Callable[[], Observation]) -> Observation:
        if not self.off_cpu:
            return run()
        from harness.backends.witness import Witness, corrected

        with Witness() as witness:
            seen = run()
        return corrected(seen, witness.counts, self.name)

    def _guarded(self, stage: Stage, call: Callable[[], T]) -> T:
        try:
            return call()
        except (BackendError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise self.classify(stage, error) from error

    def classify(self, stage: Stage, error: BaseException) -> BackendError:
        """Turns whatever the backend raised in `stage` into a `BackendError`."""
        if is_out_of_memory(error):
            return BackendError(Status.OUT_OF_MEMORY, f"memory limit reached in stage {stage}: {one_line(error)}")
        return self.classify_impl(stage, error)

    # Hooks.

    @abstractmethod
    def availability_impl(self, mode: str | None) -> Availability:
        """See `availability`; `mode` is one of `modes` or None."""

    def activate_impl(self) -> None:
        """Loads what the backend needs, once per process. `self.mode` and `self.threads` are set."""

    def lower_impl(self, work: Work) -> object:
        """See `lower`. By default there is nothing to translate."""
        return work

    def compile_impl(self, lowered: object) -> object:
        """See `compile`. By default there is nothing to compile."""
        return lowered

    @abstractmethod
    def run_impl(self, compiled: Any, inputs: Sequence[Any] | None = None) -> Observation:
        """See `run`."""

    def classify_impl(self, stage: Stage, error: BaseException) -> BackendError:
        """See `classify`. By default the stage decides."""
        status = {
            Stage.LOWER: Status.LOWERING_ERROR,
            Stage.COMPILE: Status.COMPILE_ERROR,
        }.get(stage, Status.RUNTIME_ERROR)
        return BackendError(status, one_line(error), detail=traceback_tail(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, in any of the forms that Python, PyTorch and XLA have for it."""
    if isinstance(error, MemoryError):
        return True
    text = text_of(error)
    return any(sign in text for sign in ("can't allocate memory", "RESOURCE_EXHAUSTED", "out of memory", "bad_alloc"))


def text_of(error: BaseException) -> str:
    """What an exception says; empty if it cannot say it."""
    try:
        return str(error)
    except Exception:
        return ""


def one_line(error: BaseException, limit: int = 300) -> str:
    """`Type: first line` of an exception, cut at `limit` characters."""
    text = text_of(error).strip()
    first = text.splitlines()[0].strip() if text else ""
    line = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return line if len(line) <= limit else line[: limit - 1] + "…"


def traceback_tail(error: BaseException, frames: int = 6) -> str:
    """The last frames of an exception's traceback and the beginning of what it says, for `Row.detail`."""
    import traceback

    where = "".join(traceback.format_tb(error.__traceback__, limit=-frames))[-3000:]
    return f"{where}{type(error).__name__}: {text_of(error)[:1000]}"
