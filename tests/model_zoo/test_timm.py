"""The timm source: its names, and that what it builds is small, runs, and comes from the seed alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from model_zoo.sources import build, resolve, source
from model_zoo.sources.timm import architectures
from model_zoo.spec import UnknownModel


def run(model_id: str) -> torch.Tensor:
    built = build(model_id)
    with torch.no_grad():
        output = built.module(*built.args, **built.kwargs)
    assert isinstance(output, torch.Tensor)
    return output


def test_the_names_read_from_the_source_are_those_that_timm_lists() -> None:
    import timm

    assert source("timm").names() == sorted(timm.list_models())


def test_a_name_resolves_without_importing_timm() -> None:
    script = (
        "from model_zoo.sources import resolve; import sys; print(*resolve('timm:resnet1?'), "
        "'timm' in sys.modules, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["timm:resnet18", "False", "False"]


def test_an_unknown_name_is_told_its_neighbours() -> None:
    with pytest.raises(UnknownModel, match=r"did you mean .*timm:resnet18"):
        resolve("timm:resnet_18")


def test_a_tag_must_exist() -> None:
    assert [str(s) for s in resolve("timm:test_vit.r160_in1k")] == ["timm:test_vit.r160_in1k"]
    assert build("timm:test_vit.r160_in1k").family == "vision_transformer"
    with pytest.raises(UnknownModel, match=r"no model timm:test_vit.nonsense: Invalid"):
        build("timm:test_vit.nonsense")


@pytest.mark.parametrize(
    ("name", "family", "size", "reduced"),
    [
        ("test_resnet", "resnet", 96, True),  # takes any size
        ("test_vit", "vision_transformer", 96, True),  # is made for a size
        ("deit_tiny_patch16_224", "deit", 96, True),
        ("vit_small_patch14_dinov2", "vision_transformer", 98, True),  # patches of 14 must fill the image
        ("efficientformer_l1", "efficientformer", 224, False),  # cannot be made for another
        ("halonet26t", "byoanet", 256, False),  # has a least size
    ],
)
def test_it_runs_at_the_least_size(name: str, family: str, size: int, reduced: bool) -> None:
    built = build(f"timm:{name}")
    assert (built.family, built.modality, built.reduced) == (family, "image", reduced)
    assert built.args[0].shape == (2, 3, size, size)
    with torch.no_grad():
        assert built.module(*built.args).isfinite().all()
    assert not built.module.training


def test_the_output_depends_on_the_seed_and_on_no_process() -> None:
    script = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; "
        "from model_zoo.sources import build; b = build('timm:test_vit', 3); "
        "print(b.module(*b.args).double().sum().item())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    torch.rand(11)  # whatever happened before in this process
    one, other = build("timm:test_vit", 3), build("timm:test_vit", 4)
    assert one.module(*one.args).double().sum().item() == pytest.approx(float(told.stdout), abs=1e-4)
    assert other.module(*other.args).double().sum().item() != pytest.approx(float(told.stdout), abs=1e-4)
    assert not torch.equal(one.args[0], other.args[0])
    assert not torch.equal(next(one.module.parameters()), next(other.module.parameters()))


# fmt: off
_SMALL = [
    "test", "atto", "femto", "zepto", "pico", "nano", "xxs", "xxtiny", "xtiny", "tiny", "mini", "micro", "xs",
    "lite", "050", "00[24]", "small", "_s(?![a-z])", "b0", "[a-z_]0", r"r?1[89](?!\d)", "26",
]
# fmt: on
_LARGE = (
    r"(medium|base|large|huge|giant|gigantic|xlarge|xxlarge|so\d+m2?|[1-9]b|_x?x?l2?|_b|_m|b[5-9]|_x|1\d[1-9]|[2-9]\d\d[a-z]*"
    r"|1024|1280|1536)(?![a-z0-9])"
)


def _rank(name: str) -> tuple[int, int, str]:
    """A guess at how large a model is, from its name."""
    small = (i for i, token in enumerate(_SMALL) if re.search(token, name))
    return (len(re.findall(_LARGE, name)), min(small, default=len(_SMALL)), name)


@pytest.mark.slow
def test_two_hundred_models_of_every_architecture_run_on_the_reference() -> None:
    """The smallest of each architecture file, then the next, until 200 ran; none may fail."""
    from harness.backends.reference import run_reference

    by_family: dict[str, list[str]] = {}
    for name, family in architectures().items():
        by_family.setdefault(family, []).append(name)
    for names in by_family.values():
        names.sort(key=_rank)
    queue = [names[turn] for turn in range(4) for names in by_family.values() if len(names) > turn]
    ran: list[str] = []
    failed: dict[str, str] = {}
    for name in queue:
        if len(ran) >= 200 + len(failed):
            break
        try:
            leaves = run_reference(build(f"timm:{name}")).leaves
            assert any(isinstance(leaf.value, torch.Tensor) and leaf.value.isfinite().all() for leaf in leaves)
            ran.append(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    families = {architectures()[name] for name in ran}
    print(f"{len(ran)} timm models of {len(families)} of {len(by_family)} architecture files ran")
    assert not failed
    assert len(ran) >= 200
    assert len(families) == len(by_family)
