"""Known divergences of the backends: each is judged as what it is, and nothing else is filed.

`tests/cases/divergences.yaml` is ours; a second file of the same format is read where there is one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.records import Status
from tests.harness.numerics.divergence_worker import MODES, build, cases

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
def said(backend: str) -> dict[str, dict[str, str]]:
    """What Calipers says of each case on a backend, or `unavailable`."""
    command = [sys.executable, "-m", "tests.harness.numerics.divergence_worker", backend, *map(str, FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if lines and "unavailable" in lines[0]:
        return {"unavailable": lines[0]}
    assert done.returncode == 0, done.stderr[-2000:]
    return {line["id"]: line for line in lines}


def missing_feature(case: dict[str, Any]) -> str:
    """The feature of the processor that a case needs and this one lacks, or nothing."""
    named = re.search(r"/proc/cpuinfo (\w+)", case.get("note", ""))
    if named is None:
        return ""
    flags = Path("/proc/cpuinfo")
    return "" if flags.exists() and named[1] in flags.read_text().split() else named[1]


def op_of(text: str) -> str:
    """An op's bare name: `aten::amax.out` and `aten.amax` are one."""
    return text.replace("::", ".").split(".")[1].rstrip("_") if "." in text.replace("::", ".") else text


@pytest.mark.parametrize(("case", "backend"), pairs())
def test_a_known_divergence_is_judged_as_what_it_is(case: dict[str, Any], backend: str) -> None:
    if feature := missing_feature(case):
        pytest.skip(f"needs a processor with {feature}")
    found = said(backend)
    if "unavailable" in found:
        pytest.skip(f"{backend}: {found['unavailable']['unavailable']}")
    verdict = found[case["id"]]
    assert verdict["status"], verdict["message"]
    assert Status(verdict["status"]) in EXPECTED[case["truth"]], verdict
    if case["truth"] in NAMES_THE_OP:
        assert op_of(verdict["op"]) == op_of(case["op"]), verdict


def test_our_cases_can_be_built_and_cover_every_truth_and_backend() -> None:
    ours = cases(OURS)
    for case in ours:
        built = build(case)
        built.module(*built.args)
    assert len({case["id"] for case in ours}) == len(ours)
    assert {case["truth"] for case in ours} == set(EXPECTED)
    assert {case["backend"] for case in ours} == {*MODES, "any"}
