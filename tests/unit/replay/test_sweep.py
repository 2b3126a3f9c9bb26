"""Configurations from a grid and from TOML; errors name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.replay.whatif.evaluate import Configuration
from equipoise.replay.whatif.sweep import MOST_CONFIGURATIONS, configurations_of, grid, read_configurations


def test_grid_is_every_combination_last_fastest() -> None:
    found = grid({"max_warmups": [1, 2], "assignor": ["learner"], "options.strict": [True, False]})
    assert [each.name for each in found] == [
        "max_warmups=1 assignor=learner options.strict=true",
        "max_warmups=1 assignor=learner options.strict=false",
        "max_warmups=2 assignor=learner options.strict=true",
        "max_warmups=2 assignor=learner options.strict=false",
    ]
    assert found[2] == Configuration(name=found[2].name, assignor="learner", settings={"max_warmups": 2, "options": {"strict": True}})


def test_grid_empty_or_too_large_is_refused() -> None:
    with pytest.raises(InputError, match="max_warmups has no values"):
        grid({"max_warmups": []})
    with pytest.raises(InputError, match=f"at most {MOST_CONFIGURATIONS:,}"):
        grid({"max_warmups": list(range(1, 102)), "num_standbys": list(range(10))})


def test_configuration_without_name_gets_the_file_name(tmp_path: Path) -> None:
    path = tmp_path / "calm.toml"
    settings = '[knobs]\nmax_warmups = 1\noptions = { strict = true }\nrack_aware_tags = ["zone"]\n'
    path.write_text(f'assignor = "learner"\nannounce_closes = false\n{settings}')
    assert read_configurations(path) == [
        Configuration(
            name="calm",
            assignor="learner",
            announce_closes=False,
            settings={"max_warmups": 1, "rack_aware_tags": ("zone",), "options": {"strict": True}},
        )
    ]


def test_configurations_of_sweep_and_list() -> None:
    swept = configurations_of({"name": "bold", "knobs": {"num_standbys": 1}, "sweep": {"max_warmups": [1, 2]}}, "file")
    assert swept == [
        Configuration(name="bold max_warmups=1", settings={"num_standbys": 1, "max_warmups": 1}),
        Configuration(name="bold max_warmups=2", settings={"num_standbys": 1, "max_warmups": 2}),
    ]
    several = configurations_of({"assignor": "learner", "configuration": [{"name": "a"}, {"name": "b", "knobs": {"max_warmups": 9}}]}, "file")
    assert several == [
        Configuration(name="a", assignor="learner"),
        Configuration(name="b", assignor="learner", settings={"max_warmups": 9}),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_warmups = 1", "there is no 'max_warmups'.*settings go into"),
        ("name = 1", "name: is 1, and has to be text"),
        ("announce_closes = 'no'", "announce_closes: is 'no'"),
        ("knobs = 1", "knobs: is 1"),
        ("[sweep]\nmax_warmups = 1", "list of values"),
        ("[configuration]\nname = 'a'", r"\[\[configuration\]\]"),
        ("[[configuration]]\nassignor = 'a'", "configuration 1: name is missing"),
        ("[[configuration]]\nnam = 'a'", "configuration 1: there is no 'nam'"),
        ("[knobs]\noptions = 1", "knobs.options"),
        ("[", "no TOML"),
    ],
)
def test_sweep_file_error_names_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"wrong.toml: .*{told}"):
        read_configurations(path)


def test_sweep_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        read_configurations(tmp_path / "none.toml")
