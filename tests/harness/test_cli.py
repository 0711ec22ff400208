"""The command line as a user meets it: one line and exit code 2 for wrong input, JSON that is JSON, no slow imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = 'models: {include: ["python:mine:good"]}\nbackends: [reference]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def good():\n    return torch.nn.Linear(4, 3), (torch.randn(2, 4),)\n"
        "def broken():\n    raise ValueError('no such luck')\n"
    )
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def calipers(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["check", "timm:resnet19", "--backend", "torchtpu"], "unknown model timm:resnet19"),
        (["check", "transformers:lama", "--backend", "torchtpu"], "transformers:llama"),
        (["check", "resnet18", "--backend", "torchtpu"], "has no source; write source:name"),
        (["check", "hugging:resnet18", "--backend", "torchtpu"], "unknown source 'hugging'"),
        (["check", "python:nowhere.to:be", "--backend", "reference"], "nowhere"),
        (["check", "python:mine:god", "--backend", "reference"], "good"),
        (["check", "timm:resnet18", "--backend", "torchtpv"], "did you mean torchtpu?"),
        (["check", "timm:resnet18", "--backend", "torchtpu", "--mode", "device"], "no TPU"),
        (["check", "timm:resnet18", "--backend", "torchtpu", "--mode", "warp"], "has no mode 'warp'"),
        (["check", "timm:resnet18", "--backend", "torchtpu", "--dtype", "int3"], "--dtype: Input should be 'float32'"),
        (["check", "timm:resnet*", "--backend", "torchtpu"], "name one, or sweep them"),
        (["check", "timm:resnet18"], "--backend"),
        (["sweep", "nothing.yaml"], "no such file"),
        (["sweep", "malformed.yaml"], "malformed.yaml: line 1"),
        (["sweep", "unknown_key.yaml"], "unknown_key.yaml: line 3: unknown key sed; did you mean seed?"),
        (["sweep", "good.yaml", "--out", "taken"], "taken is not empty and holds no run"),
        (["sweep", "good.yaml", "--resume"], "--resume needs --out"),
        (["sweep", "good.yaml", "--out", "taken", "--resume"], "taken is no run folder"),
        (["sweep", "good.yaml", "--out", "new", "--ray-address", "127.0.0.1:1"], "cannot reach Ray at 127.0.0.1:1"),
        (["sweep", "good.yaml", "--out", "new", "--ray-address", "nowhere"], "'nowhere' is no Ray address"),
        (["sweep", "good.yaml", "--out", "good.yaml"], "good.yaml"),
        (["check", "timm:resnet18", "--backend", "torchtpu", "--memory-gib", "inf"], "--memory-gib"),
        (["report", "taken"], "taken is no run folder: no run.json in it (found thesis.tex)"),
        (["report", "nothing"], "there is no such folder"),
        (["zoo", "list", "timm:nothing*"], "unknown model timm:nothing*"),
        (["swep"], "swep"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(folder: Path, arguments: list[str], line: str) -> None:
    (folder / "malformed.yaml").write_text("models: [}\n")
    (folder / "unknown_key.yaml").write_text(GOOD + "sed: 1\n")
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.tex").touch()
    ended = calipers(folder, *arguments)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert line in ended.stderr
    assert not (folder / "new").exists()
    assert [p.name for p in (folder / "taken").iterdir()] == ["thesis.tex"]


def test_a_missing_extra_is_one_line_that_says_what_to_install(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, importlib.metadata\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name.startswith('torch_tpu') else real(name, *a)\n"
        "version = importlib.metadata.version\n"
        "def without(name):\n"
        "    if name.replace('-', '_') == 'torch_tpu': raise importlib.metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "importlib.metadata.version = without\n"
    )
    command = [sys.executable, "-m", "harness", "check", "timm:resnet18", "--backend", "torchtpu"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(folder)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert "torch_tpu is not installed" in ended.stderr
    assert "calipers[tpu]" in ended.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom harness.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'ray', 'pydantic', 'rich', 'pandas', 'pyarrow', 'jinja2', 'timm', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", [["doctor"], ["check"], ["sweep"], ["report"], ["zoo"], ["zoo", "list"]])
def test_every_command_has_help_with_an_example(folder: Path, command: list[str]) -> None:
    shown = calipers(folder, *command, "--help")
    assert shown.returncode == 0
    assert "Example: calipers " in shown.stdout or command == ["zoo"]


def test_check_prints_one_json_object_even_after_a_crash(folder: Path) -> None:
    (folder / "mine.py").write_text("import os\ndef good():\n    os._exit(0)\n")
    ended = calipers(folder, "check", "python:mine:good", "--backend", "reference", "--json")
    found = json.loads(ended.stdout)
    assert (found["status"], found["stage"], ended.returncode) == ("crash", "build", 1)
    for name in ("model", "backend", "numeric_class", "op", "message", "metrics", "stage_seconds"):
        assert name in found


def test_check_that_could_measure_nothing_exits_with_3(folder: Path) -> None:
    ended = calipers(folder, "check", "python:mine:broken", "--backend", "reference")
    assert ended.returncode == 3
    assert "ValueError: no such luck" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_sweep_leaves_a_run_folder_with_results_and_a_page(folder: Path) -> None:
    ended = calipers(folder, "sweep", "good.yaml", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert {p.name for p in (folder / "run").iterdir()} == {
        "run.json", "journal.jsonl", "results.parquet", "causes.json", "site",
    }  # fmt: skip
    assert "python:mine:good" in (folder / "run" / "site" / "index.html").read_text()
    again = calipers(folder, "sweep", "good.yaml", "--out", "run")
    assert (again.returncode, "holds another run" in again.stderr) == (2, True)
    shown = calipers(folder, "report", "run", "--out", "elsewhere")
    assert shown.returncode == 0
    assert (folder / "elsewhere" / "index.html").exists()


def test_a_page_that_cannot_be_written_is_one_line(folder: Path) -> None:
    calipers(folder, "sweep", "good.yaml", "--out", "run")
    ended = calipers(folder, "report", "run", "--out", "good.yaml")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "good.yaml" in ended.stderr


def test_doctor_says_what_can_run_as_json(folder: Path) -> None:
    found = json.loads(calipers(folder, "doctor", "--json").stdout)
    modes = {(b["backend"], m["mode"]): m["ok"] for b in found["backends"] for m in b["modes"]}
    assert modes["reference", "eager"]
    assert not modes["torchtpu", "device"]


def test_zoo_list_as_json(folder: Path) -> None:
    found = json.loads(calipers(folder, "zoo", "list", "timm:resnet1*", "--json").stdout)
    assert "timm:resnet18" in found
    assert "timm:resnet50" not in found
