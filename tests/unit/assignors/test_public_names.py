"""What the author of an assignor imports comes from `equipoise.assignors`, whatever its layout."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equipoise.assignors

ROOT = Path(__file__).parents[3]
ENTRY_POINTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["equipoise.assignors"]


@pytest.mark.parametrize("name", equipoise.assignors.__all__)
def test_public_name_loads(name: str) -> None:
    assert getattr(equipoise.assignors, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'equipoise\.assignors' has no attribute 'Wish'"):
        equipoise.assignors.Wish  # noqa: B018


def test_importing_the_problem_does_not_load_the_solver() -> None:
    """The solver takes a second to load, which `--help` need not wait for."""
    code = "import sys; from equipoise.assignors import AssignmentProblem, Plan; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "place"), ENTRY_POINTS.items())
def test_entry_point_names_the_class_that_its_package_exports(name: str, place: str) -> None:
    module, _, attribute = place.partition(":")
    assert module == f"equipoise.assignors.{name}"
    assert attribute in importlib.import_module(module).__all__
    assert getattr(importlib.import_module(module), attribute).name == name
