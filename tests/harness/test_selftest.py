"""The selftest itself: that its device is faulty where it says so, and that its score cannot hide a miss."""

import io
import json
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from harness.backends import load_backend
from harness.backends.base import Backend, BackendError, Work
from harness.backends.reference import run_control, run_reference
from harness.backends.tree import Leaf
from harness.faulty import Faulty, Kind
from harness.faulty.floor import movement
from harness.faulty.recipes import RECIPES, all_recipes
from harness.faulty.score import Planted, Score
from harness.faulty.subjects import MODELS, single_ops
from harness.faulty.table import print_score
from harness.records import RowKey, Status
from harness.selftest import HONEST, SEED, deaths, examine, selftest
from model_zoo.sources import build

LINEAR = "python:harness.faulty.subjects:linear"
IN_PLACE = "python:harness.faulty.subjects:hardswish_in_place"


def run(mode: str, model: str = LINEAR) -> tuple[Backend, object]:
    backend = load_backend("faulty")
    backend.activate(mode, threads=1)
    key = RowKey(model=model, backend="faulty", mode=mode)
    return backend, backend.compile(backend.lower(Work(key, SEED, lambda: build(model, SEED))))


def outputs(mode: str, model: str = LINEAR) -> torch.Tensor:
    backend, compiled = run(mode, model)
    value = backend.run(compiled).leaves[0].value
    assert isinstance(value, torch.Tensor)
    return value


def test_every_kind_of_fault_has_a_recipe_and_every_recipe_its_name():
    assert {recipe.kind for recipe in RECIPES.values()} == set(Kind)
    assert len(RECIPES) == sum(1 for _ in all_recipes())
    assert Faulty.modes == ("none", *RECIPES)


def test_without_a_recipe_the_device_computes_as_the_reference_does():
    torch.testing.assert_close(outputs("none"), run_reference(build(LINEAR, SEED)).leaves[0].value)


def test_a_recipe_changes_the_calls_of_its_op_and_no_other():
    backend, compiled = run("wrong-constant:gelu:coefficient")
    backend.run(compiled)
    assert isinstance(backend, Faulty)
    assert dict(backend.hit) == {"aten::gelu": 1}
    assert not torch.equal(outputs("wrong-constant:gelu:coefficient"), outputs("none"))


def test_an_in_place_op_writes_the_fault_to_what_it_writes_to():
    backend, compiled = run("wrong-constant:hardswish:coefficient", IN_PLACE)
    backend.run(compiled)
    assert isinstance(backend, Faulty)
    assert set(backend.hit) == {"aten::hardswish_"}
    faulty, honest = (outputs(mode, IN_PLACE) for mode in (backend.mode, "none"))
    assert not torch.allclose(faulty, honest, rtol=1e-3)


def test_an_op_that_ran_on_the_cpu_is_no_op_of_the_device_whatever_is_claimed():
    backend, compiled = run("hidden-fallback:gelu")
    seen = backend.run(compiled)
    assert seen.fallback == ("aten::gelu",)
    assert "aten::gelu" not in seen.executed
    assert "aten::addmm" in seen.executed


def test_where_all_ran_on_the_cpu_nothing_was_executed():
    backend, compiled = run("hidden-fallback:all")
    with pytest.raises(BackendError) as raised:
        backend.run(compiled)
    assert raised.value.status is Status.NOT_EXECUTED


def test_what_has_no_effect_is_not_planted():
    recipes = {fault.recipe for fault in examine("python:harness.faulty.subjects:attention_masked")}
    scaled, mask = (f"argument-ignored:_scaled_dot_product_flash_attention_for_cpu:{x}" for x in ("scale", "mask"))
    assert mask in recipes
    assert scaled not in recipes  # this attention was given no scale to ignore


def test_the_floor_is_below_a_fault_and_above_rounding():
    built = build(LINEAR, SEED)
    reference, control = run_reference(built).leaves, run_control(built)
    honest = run("none")[0].run(run("none")[1]).leaves

    def moved(value: torch.Tensor) -> float | None:
        return movement([Leaf("", value)], honest, reference, control).in_floors

    value = honest[0].value
    rounded, wrong_row = value * (1 + 2**-23), value.clone()
    wrong_row[3] *= 1.001
    assert (moved(rounded) or 0) <= 1
    assert (moved(wrong_row) or 0) > 1
    assert moved(value.masked_fill(value == value.max(), torch.nan)) is None
    assert not movement(honest, honest, reference, control).any


def fault(status: Status, moved: float | None = 5.0, right: bool = True) -> Planted:
    return Planted("r", "corrupted", "timm:m", "float32", "m", ("aten::add.Tensor",), status, right, moved, "")


def test_a_missed_fault_counts_unless_it_is_under_the_floor():
    caught = [fault(Status.DIVERGENT)] * 150
    good = Score(tuple(caught), (), quick=True)
    assert good.ok
    assert not replace(good, planted=(*caught, *[fault(Status.PASS)] * 3)).ok
    assert not replace(good, planted=(*caught, *[fault(Status.PASS, None)] * 3)).ok
    assert replace(good, planted=(*caught, *[fault(Status.PASS, 0.9)] * 3)).ok


def test_a_floor_that_hides_many_faults_is_no_excuse():
    faults = [fault(Status.DIVERGENT)] * 80 + [fault(Status.PASS, 0.9)] * 20
    assert not Score(tuple(faults), (), quick=True).ok


def test_a_wrong_status_and_a_false_alarm_count():
    good = Score((fault(Status.DIVERGENT),) * 100, (), quick=True)
    assert not replace(good, planted=(*good.planted, *[fault(Status.ILL_CONDITIONED, right=False)] * 4)).ok
    assert not replace(good, honest=(fault(Status.DIVERGENT, None),)).ok


def test_a_full_selftest_must_plant_enough():
    assert not Score((fault(Status.DIVERGENT),) * 200, ()).ok  # of one op in one architecture


@pytest.mark.parametrize("model", single_ops()[1::12])
def test_faults_in_single_ops_are_caught_and_an_honest_device_passes(model: str):
    found = examine(model)
    planted = tuple(f for f in found if f.kind not in HONEST)
    score = Score(planted, tuple(f for f in found if f.kind in HONEST), quick=True)
    assert score.honest
    assert score.visible
    assert not score.false_alarms
    assert not score.survivors
    assert not score.misnamed


def test_a_model_in_bf16_is_judged_by_a_reference_in_bf16():
    found = examine("transformers:bert", 4, "bfloat16")
    assert {f.dtype for f in found} == {"bfloat16"}
    assert all(f.right or f.is_under_floor for f in found), found


def test_what_survives_is_named_and_counted_under_its_kind():
    survivor = replace(fault(Status.PASS), recipe="corrupted:addmm:row", model="timm:resnet10t")
    console = Console(record=True, width=120, file=io.StringIO())
    print_score(console, Score((fault(Status.DIVERGENT), survivor, fault(Status.PASS, 0.5)), (), quick=True))
    text = console.export_text()
    assert re.search(r"corrupted +3 +1 +1 +1 +1 *$", text, re.MULTILINE)
    assert "corrupted:addmm:row in timm:resnet10t: pass, moved 5 floors" in text
    assert text.endswith("not ok\n")


@pytest.mark.slow
def test_deaths_are_rows():
    found = {fault.recipe: fault for fault in deaths()}
    assert all(f.right for f in found.values()), found
    assert {f.status for f in found.values()} >= {
        Status.PASS,
        Status.TIMEOUT,
        Status.CRASH,
        Status.OUT_OF_MEMORY,
        Status.NOT_EXECUTED,
    }


@pytest.mark.slow
def test_the_command_prints_json_and_exits_by_the_score(capsys: pytest.CaptureFixture[str]):
    from harness.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["selftest", "--quick", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert stopped.value.code == 0, told["survivors"]
    assert told["ok"]
    assert told["visible"] >= 50
    assert told["false_alarms"] == []


@pytest.mark.slow
def test_no_planted_fault_survives():
    score = selftest()
    assert score.ok, [(f.recipe, f.model, f.status, f.movement) for f in (*score.survivors, *score.misnamed)]
    assert len({f.model for f in score.planted} & set(MODELS)) >= 20
