"""What the extra `member` installs is enough for a member; what needs more names the extra."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from equipoise import _extras
from equipoise.assignors import registry, unconfigured
from equipoise.events.errors import InputError

ROOT = Path(__file__).parents[4]
OF_MEMBERS = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'ortools', 'pandas', 'pyarrow', 'faust', 'rich', 'rich.cells')))\n"
DECIDE = ("embedded_worker", "following")
"""Modules of the member that lead, or fold what a leader does."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", OF_MEMBERS + code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_every_module_of_the_member_loads_without_a_solver() -> None:
    modules = sorted(path.stem for path in (ROOT / "equipoise" / "member").glob("*.py") if path.stem not in ("__init__", *DECIDE))
    loads = "\n".join(f"importlib.import_module('equipoise.member.{each}')" for each in modules)
    done = run(f"import importlib, equipoise; equipoise.Member\n{loads}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import equipoise.replay; equipoise.replay.verify", "equipoise.replay.verify needs the extra: pip install 'equipoise[lead]'"),
        ("from equipoise._extras import needed_by\nwith needed_by('leads'): import faust", "leads needs the extra: pip install 'equipoise[kafka]'"),
    ],
)
def test_names_that_need_more_say_what(code: str, said: str) -> None:
    assert run(code).stderr.rstrip().endswith(said)


def test_command_that_decides_names_the_extra(tmp_path: Path) -> None:
    done = run(f"from equipoise.cli import main; main(['demo', '--out', {str(tmp_path)!r}])")
    assert (done.returncode, done.stderr) == (2, "equipoise: this needs the extra: pip install 'equipoise[lead]'\n")


def test_every_package_that_an_extra_brings_is_known() -> None:
    """By the extra that names it, and the name of its module."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"faust-streaming": "faust", "prometheus-client": "prometheus_client"}
    for extra in ("lead", "member", "spark"):
        named = {text.partition(";")[0].split("=")[0].split(">")[0].strip() for text in extras[extra] if not text.startswith("equipoise")}
        assert {modules.get(name, name) for name in named} == {module for module, each in _extras.EXTRAS.items() if each == extra}
    assert _extras.EXTRAS["faust"] == "kafka"


def test_import_that_misses_another_package_is_that_error() -> None:
    assert importlib.util.find_spec("no_such_package") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), _extras.needed_by("this"):
        importlib.import_module("no_such_package")
    with pytest.raises(InputError, match=r"it needs the extra: pip install 'equipoise\[lead\]'"), _extras.needed_by("it"):
        raise ModuleNotFoundError(name="ortools.graph")


def test_group_that_nobody_has_configured_gets_the_latest_assignor() -> None:
    latest = registry.latest(unconfigured.ASSIGNOR)
    assert (latest.name, latest.version, latest.solver) == (unconfigured.ASSIGNOR, unconfigured.BEHAVIOUR_VERSION, unconfigured.SOLVER)


def test_commands_without_rich_print_plain_text() -> None:
    table = "from equipoise.cli.screen import Screen, Table; Screen().answer({}, Table(columns=('task', 'lag'), rows=[('0_1', 12)]))"
    progress = "import sys; sys.stderr.isatty = lambda: True\nwith Screen().progress('reads', 2) as advance: advance(2)"
    done = run(f"import sys; sys.stdout.isatty = lambda: True; {table}; {progress}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "task  lag\n0_1    12\n", "")
