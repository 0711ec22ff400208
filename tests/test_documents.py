"""What README and CONTRIBUTING show is true."""

import re
from pathlib import Path

import torch
import yaml

from harness.backends.base import Backend, Work
from harness.records import RowKey
from harness.sweep.config import SweepConfig, read_config
from model_zoo.spec import BuiltModel, ModelSpec

ROOT = Path(__file__).parent.parent


def test_the_backend_in_contributing_runs() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert code
    names: dict[str, object] = {}
    exec(code[1], names)
    cls = names["Meaningful"]
    assert isinstance(cls, type)
    assert issubclass(cls, Backend)
    backend = cls()
    backend.activate("eager", 1)
    built = BuiltModel(ModelSpec("python", "x:y"), torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    work = Work(RowKey(model="python:x:y", backend="meaningful", mode="eager"), 0, lambda: built)
    seen = backend.run(backend.compile(backend.lower(work)))
    assert torch.equal(seen.leaves[0].value, built.module(*built.args))


def test_every_config_is_valid() -> None:
    files = sorted((ROOT / "configs").glob("*.yaml"))
    assert files
    for file in files:
        read_config(file)


def test_the_demo_is_twenty_and_twenty() -> None:
    models = read_config(ROOT / "configs" / "demo.yaml").models.include
    assert [sum(m.startswith(s) for m in models) for s in ("timm:", "transformers:")] == [20, 20]
    assert len(set(models)) == 40


def test_the_sweep_in_the_readme_is_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        SweepConfig.model_validate(yaml.safe_load(block))
