"""Known divergences of the backends: each is judged as what it is, and nothing else is filed.

`tests/cases/divergences.yaml` is ours; a second file of the same format is read where there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.backends.base import BackendError
from harness.backends.double import ControlUnavailable, run_control
from harness.backends.reference import run_reference
from harness.backends.tree import Leaf
from harness.numerics import References, judge
from harness.numerics.second_look import second_look
from harness.records import Status
from tests.harness.numerics.divergence_worker import MODES, Given, build, cases

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
OURS = ROOT / "tests/cases/divergences.yaml"
OTHERS = Path(os.environ.get("CALIPERS_CASES", ROOT.parent / "shared/cases/divergences.yaml"))
FILES = tuple(path for path in (OURS, OTHERS) if path.exists())

WRONG = {Status.DIVERGENT, Status.NON_FINITE, Status.CONTRACT}
PASSES = {Status.PASS, Status.PASS_WITH_FALLBACK}
LOUD = {Status.UNSUPPORTED_OP, Status.LOWERING_ERROR, Status.COMPILE_ERROR, Status.RUNTIME_ERROR}
EXPECTED = {
    "bug": WRONG,
    "contract": {Status.CONTRACT},
    "gap": LOUD,
    "reference": {Status.REFERENCE_SUSPECT},
    "benign": PASSES,
    "silent": PASSES,
    "ill": {Status.ILL_CONDITIONED, *PASSES},
}
"""What a truth may be judged as."""
NAMES_THE_OP = ("gap", "reference")


def pairs() -> list[Any]:
    """Every case on every backend that it is about; what is wrong on the reference shows on any, itself included."""
    found = []
    for path in FILES:
        for case in cases(path):
            for backend in ("reference", "inductor") if case["backend"] == "any" else (case["backend"],):
                found.append(pytest.param(case, backend, id=f"{case['id']}-{backend}"))
    return found


@cache
def run(backend: str) -> Given:
    """What a backend gives for its cases, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "given.pt")
        command = [sys.executable, "-m", "tests.harness.numerics.divergence_worker", backend, out, *FILES]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found = torch.load(out, weights_only=False)
    assert isinstance(found, Given)
    return found


def judged(case: dict[str, Any], device: tuple[Leaf, ...]) -> tuple[Status, str | None, str]:
    """Status, op and message of the verdict: as in a sweep, with a second look at what fails or looks odd."""
    built = build(case)
    try:
        control = run_control(built)
    except ControlUnavailable:
        control = None
    references = References(run_reference(built).leaves, control)
    verdict = judge(device, references)
    if verdict.needs_second_look:
        verdict = second_look(built, references, device)
    return verdict.status, verdict.op, verdict.message


def missing_feature(case: dict[str, Any]) -> str:
    """The feature of the processor that a case needs and this one lacks, or nothing."""
    named = re.search(r"/proc/cpuinfo (\w+)", case.get("note", ""))
    if named is None:
        return ""
    flags = Path("/proc/cpuinfo")
    return "" if flags.exists() and named[1] in flags.read_text().split() else named[1]


def right_here(case: dict[str, Any]) -> bool:
    """Whether this processor's kernels make no error on a case in which those of others do. Asked without `judge`."""
    built = build(case)
    pairs = zip(run_reference(built).leaves, run_control(built), strict=True)
    return all(torch.allclose(own.value.double(), true.value, rtol=0.05, equal_nan=True) for own, true in pairs)


def op_of(text: str) -> str:
    """An op's bare name: `aten::amax.out` and `aten.amax` are one."""
    return text.replace("::", ".").split(".")[1].rstrip("_") if "." in text.replace("::", ".") else text


@pytest.mark.parametrize(("case", "backend"), pairs())
def test_a_known_divergence_is_judged_as_what_it_is(case: dict[str, Any], backend: str) -> None:
    if feature := missing_feature(case):
        pytest.skip(f"needs a processor with {feature}")
    if case["truth"] == "reference" and right_here(case):
        pytest.skip(f"PyTorch's {torch.backends.cpu.get_cpu_capability()} kernels are right on it")
    found = run(backend)
    if found.unavailable:
        pytest.skip(f"{backend}: {found.unavailable}")
    result = found.results[case["id"]]
    if isinstance(result, BackendError):
        status, op, message = result.status, result.op, result.message
    else:
        status, op, message = judged(case, result)
    assert status in EXPECTED[case["truth"]], message
    if case["truth"] in NAMES_THE_OP:
        assert op_of(op or "") == op_of(case["op"]), message


def test_our_cases_can_be_built_and_cover_every_backend() -> None:
    ours = cases(OURS)
    for case in ours:
        built = build(case)
        built.module(*built.args)
    assert len({case["id"] for case in ours}) == len(ours)
    assert {case["truth"] for case in ours} <= set(EXPECTED)
    assert {case["backend"] for case in ours} == {*MODES, "any"}
