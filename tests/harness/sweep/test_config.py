from datetime import date, timedelta
from pathlib import Path

import pytest

from harness.sweep.config import ConfigError, read_config

GOOD = """\
models:
  include: ["timm:resnet*"]
  limit: 3
backends: [torchtpu, {name: inductor, dtype: bfloat16, mode: compile}]
limits: {seconds: 60}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(written(folder, text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_backend_may_be_a_name_alone(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, GOOD))
    assert [(b.name, b.mode, b.dtype) for b in config.backends] == [
        ("torchtpu", None, "float32"),
        ("inductor", "compile", "bfloat16"),
    ]
    assert config.limits.seconds == 60
    assert config.limits.memory_gib == 8


def test_an_unknown_key_is_named_with_its_line_and_the_near_one(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("limit: 3", "limitt: 3"))
    assert "sweep.yaml: line 3: unknown key models.limitt; did you mean limit?" in message


def test_an_unknown_key_at_the_top_is_named(tmp_path: Path) -> None:
    assert "line 6: unknown key seeds; did you mean seed?" in refused(tmp_path, GOOD + "seeds: 1\n")


def test_malformed_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    assert "sweep.yaml: line 2, column" in refused(tmp_path, "models: [\nbackends: ]: {")


def test_a_value_of_the_wrong_kind_is_named_with_its_line(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD.replace("seconds: 60", "seconds: -1"))
    assert "line 5: limits.seconds: Input should be greater than 0 (found -1)" in message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "the key backends is missing" in refused(tmp_path, 'models: {include: ["timm:resnet18"]}\n')


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    assert "expected keys such as models and backends" in refused(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "nothing.yaml")


def test_yaml_cannot_construct_objects(tmp_path: Path) -> None:
    assert "malformed YAML" in refused(tmp_path, 'models: !!python/object/apply:os.system ["true"]\n')


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (GOOD + "profiles: [gaussian, gaussian]\n", "profiles: names gaussian twice"),
        (GOOD + "profiles: []\n", "profiles"),
        (GOOD + "seed: 9223372036854775808\n", "seed: Input should be less than"),
        (GOOD + "seed: 1\nseed: 2\n", "line 7: the key seed stands there twice"),
        (GOOD.replace("60", ".inf"), "limits.seconds"),
        ("models: " + "[" * 5000 + "\n", "malformed YAML"),
    ],
)
def test_what_could_not_be_run_is_refused(tmp_path: Path, text: str, part: str) -> None:
    assert part in refused(tmp_path, text)


def test_a_value_that_is_shown_is_cut(tmp_path: Path) -> None:
    assert len(refused(tmp_path, GOOD + f"seed: {'x' * 10_000}\n")) < 400


def test_an_unknown_profile_is_named_with_its_line_and_the_near_one(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "profiles:\n- gaussian\n- ofset\n")
    assert "line 8: profiles.1: no such profile; did you mean offset? known: gaussian, offset, " in message
    assert message.endswith("(found 'ofset')")


def test_profiles_rotate_by_date_and_are_recorded_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD + "profiles: {rotate: 3}\n")
    day = date(2026, 12, 1)
    nights = [read_config(file, day + timedelta(n)).model_dump(mode="json")["profiles"] for n in range(7)]
    assert all(night[0] == "gaussian" and len(night) == 3 for night in nights)
    assert len({name for night in nights for name in night}) == 12
    assert read_config(file, day).profiles == nights[0] != nights[1]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("{rotate: 2}", "line 6: profiles: cannot rotate 2 profiles a night: 3 at least"),
        ("{rotat: 3}", "line 6: profiles: must be a list of names, or {rotate: N} for N of them a night"),
        ("{rotate: many}", "must be a list of names"),
        ("offset", "line 6: profiles"),
    ],
)
def test_a_rotation_that_makes_no_sense_is_refused(tmp_path: Path, value: str, part: str) -> None:
    assert part in refused(tmp_path, GOOD + f"profiles: {value}\n")
