"""The command line. Heavy imports happen inside the commands: `calipers --help` answers at once.

Exit codes: 0 as wished, 1 failures found, 2 wrong usage, 3 nothing could be measured.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import Abort, Exit, TyperException

if TYPE_CHECKING:
    from rich.console import Console

    from harness.records import Cause, Row
    from harness.store import Run

app = typer.Typer(
    name="calipers",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Measures how far a PyTorch backend is from the truth, over the models that people really run.",
    epilog="Example: calipers check timm:resnet18 --backend torchtpu",
)
zoo = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The models that can be run.")
app.add_typer(zoo, name="zoo")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]


@app.command(epilog="Example: calipers doctor --json")
def doctor(as_json: Json = False) -> None:
    """Say what can run here, and why not."""
    from harness.doctor import examine, print_examination

    found = examine()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_examination(_console(), found)
    if not any(mode["ok"] for backend in found["backends"] for mode in backend["modes"]):
        raise Exit(3)


@app.command(epilog="Example: calipers check transformers:llama --backend torchtpu")
def check(
    model: Annotated[str, typer.Argument(help="A model id, e.g. timm:resnet18 or python:mypkg.models:tiny.")],
    backend: Annotated[str, typer.Option(help="The backend under test; see `calipers doctor`.")],
    mode: Annotated[str | None, typer.Option(help="Its mode; by default the best one here.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    profile: Annotated[str, typer.Option(help="How inputs are drawn.")] = "gaussian",
    workload: Annotated[str, typer.Option(help="forward, training or decoding.")] = "forward",
    weights: Annotated[str, typer.Option(help="observable, or stock: as the library draws them.")] = "observable",
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and inputs.")] = 0,
    seconds: Annotated[float, typer.Option(help="Wall limit on each side.")] = 300,
    memory_gib: Annotated[float, typer.Option(help="Memory limit on each side.")] = 8,
    as_json: Json = False,
) -> None:
    """Run one model on one backend and print one page: does it run, which ops, how far from the truth, stage times."""
    from harness.sweep.config import one_model
    from harness.sweep.run import check as run_check
    from model_zoo.sources import resolve

    config = one_model(
        model,
        backend,
        mode,
        dtype=dtype,
        profile=profile,
        workload=workload,
        weights=weights,
        seed=seed,
        seconds=seconds,
        memory_gib=memory_gib,
    )
    if len(found := resolve(model)) > 1:
        _fail(f"{model} stands for {len(found)} models; name one, or sweep them with a config")
    console = _console(stderr=True)
    if console.is_terminal:
        with console.status(f"{model} on {backend} …"):
            run = run_check(config)
    else:
        run = run_check(config)
    row = run.rows[0].model_copy(update={"cause": _causes(run.rows)[1].get(0)})
    if as_json:
        typer.echo(row.model_dump_json(indent=1))
    else:
        from reports.terminal import print_check

        print_check(_console(), row, run.info)
    raise Exit(_exit_code([row]))


@app.command(epilog="Example: calipers sweep configs/demo.yaml --out runs/demo")
def sweep(
    config: Annotated[Path, typer.Argument(help="A sweep's config, YAML.")],
    out: Annotated[Path | None, typer.Option(help="The run folder; by default runs/NAME-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    ray_address: Annotated[str | None, typer.Option(help="A Ray cluster; by default Ray runs here.")] = None,
) -> None:
    """Run many models on backends, over Ray, and write a run folder with its page."""
    from harness.store import read_info
    from harness.sweep.config import ConfigError, read_config
    from harness.sweep.run import Listener
    from harness.sweep.run import sweep as run_sweep
    from reports.progress import SweepProgress
    from reports.terminal import print_summary

    if resume and out is None:
        raise ConfigError("--resume needs --out: the run folder to go on with")
    # Profiles that rotate by date stay those of the day on which the run began.
    loaded = read_config(config, today=read_info(out).started_at.date() if resume and out else None)
    folder = out or Path("runs") / f"{config.stem}-{datetime.now():%Y%m%d-%H%M%S}"
    command = f"calipers sweep {shlex.quote(str(config))} --out {shlex.quote(str(folder))}"
    console = _console(stderr=True)
    try:
        with SweepProgress(console) as progress:
            listener = Listener(progress.planned, progress.row, progress.stopping)
            run, _ = run_sweep(
                loaded, folder, resume=resume, ray_address=ray_address, command=command, listener=listener
            )
    except KeyboardInterrupt:
        _fail(f"interrupted; go on with: {command} --resume", code=1)
    if len(run.rows) < run.info.rows:
        _fail(f"stopped with {len(run.rows)} of {run.info.rows} rows closed; go on with: {command} --resume", code=1)
    page, causes, rows = _write_page(run, folder / "site")
    print_summary(_console(), run.info, rows, causes, page)
    raise Exit(_exit_code(rows))


@app.command(epilog="Example: calipers report runs/demo --out public")
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; by default RUN/site.")] = None,
) -> None:
    """Write the page of a run and print its summary."""
    from harness.store import read_run
    from reports.terminal import print_summary

    loaded = read_run(run)
    page, causes, rows = _write_page(loaded, out or run / "site")
    print_summary(_console(), loaded.info, rows, causes, page)


@app.command(epilog="Example: calipers selftest --quick")
def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="A sample of the models and ops.")] = False,
    as_json: Json = False,
) -> None:
    """Plant faults in the reference on purpose, and see whether the verdict finds each; exit 1 if one survives."""
    from harness.faulty.table import SelftestProgress, print_score
    from harness.selftest import selftest as run_selftest

    with SelftestProgress(_console(stderr=True)) as progress:
        found = run_selftest(quick, progress.model)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_score(_console(), found)
    raise Exit(int(not found.ok))


@zoo.command("list", epilog="Example: calipers zoo list 'timm:resnet*'")
def zoo_list(
    pattern: Annotated[str | None, typer.Argument(help="An id or glob; by default all sources.")] = None,
    as_json: Json = False,
) -> None:
    """List the model ids that a pattern stands for."""
    from model_zoo.sources import listable, resolve

    patterns = [pattern] if pattern else [f"{name}:*" for name in listable()]
    ids = [str(spec) for p in patterns for spec in resolve(p)]
    typer.echo(json.dumps(ids, indent=1) if as_json else "\n".join(ids))


def _write_page(run: Run, folder: Path) -> tuple[Path, list[Cause], list[Row]]:
    """Writes causes.json and the page; gives the page's path, the causes, and the rows with their cause."""
    from harness.store import write_causes
    from reports.page import write_site

    causes, ids = _causes(run.rows)
    rows = [row.model_copy(update={"cause": ids.get(index)}) for index, row in enumerate(run.rows)]
    page = write_site(folder, run.info, rows, causes, open_keys=run.open)
    write_causes(run.path, causes)
    return page, causes, rows


def _causes(rows: list[Row]) -> tuple[list[Cause], dict[int, str]]:
    from agents.cluster import causes_of
    from agents.fingerprint import fingerprint

    return causes_of(rows), {i: fingerprint(row) for i, row in enumerate(rows) if not row.status.is_pass}


def _exit_code(rows: list[Row]) -> int:
    """0 if every measured row passed, 1 if one did not, 3 if none was measured."""
    from harness.records import Status

    unmeasured = (Status.LOAD_ERROR, Status.INPUT_ERROR, Status.ENVIRONMENT_ERROR, Status.SKIPPED)
    measured = [row for row in rows if row.status not in unmeasured]
    if not measured:
        return 3
    return int(any(not row.status.is_pass for row in rows if row.status is not Status.SKIPPED))


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Quiet(Console):
        """A console whose reader may go away, as `head` does."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Quiet(stderr=stderr, highlight=False, soft_wrap=False)


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"calipers: {message}", err=True)
    raise Exit(code)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Exceptions whose message is meant for the user: one line, what was wrong, what was found, what to do."""
    from harness.backends import UnknownBackend
    from harness.backends.base import Unavailable
    from harness.store import StoreError
    from harness.sweep.cluster import ClusterError
    from harness.sweep.config import ConfigError
    from model_zoo.spec import ZooError
    from reports.page import RowsMissing

    return (UnknownBackend, Unavailable, StoreError, ClusterError, ConfigError, ZooError, RowsMissing)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits. No exception becomes a traceback unless CALIPERS_DEBUG is set."""
    sys.path.insert(0, str(Path.cwd()))  # `python:` models of the working folder
    try:
        code: Any = app(arguments, standalone_mode=False)
    except Exit as stop:
        code = stop.exit_code
    except TyperException as error:
        typer.echo(f"calipers: {error.format_message().rstrip('.')}; see `calipers --help`", err=True)
        code = 2
    except (Abort, KeyboardInterrupt):
        typer.echo("calipers: interrupted", err=True)
        code = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; say nothing at exit
        code = 0
    except Exception as error:
        if os.environ.get("CALIPERS_DEBUG"):
            raise
        expected = isinstance(error, (OSError, *_expected_errors()))
        first = " ".join(str(error).split())
        if isinstance(error, OSError) and error.strerror:
            first = f"cannot read or write {error.filename or 'the run folder'}: {error.strerror}"
        line = first if expected else f"a fault in calipers itself: {type(error).__name__}: {first[:300]}"
        typer.echo(f"calipers: {line}" + ("" if expected else "; set CALIPERS_DEBUG=1 for the traceback"), err=True)
        code = 2 if expected else 3
    sys.stdout.flush()
    raise SystemExit(code if isinstance(code, int) else 0)
