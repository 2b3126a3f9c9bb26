"""Assignors by name and behaviour version: built in, and through the entry-point group, real
packages' metadata included.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise.assignors import registry
from equipoise.assignors.high_availability import HighAvailability
from equipoise.events.errors import InputError

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with one module and one entry point where Python finds it, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.available.cache_clear()

    def put(source: str, target: str) -> None:
        (tmp_path / "their_assignors.py").write_text(source)
        metadata = tmp_path / "their_assignors-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-assignors\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\ntheirs = their_assignors:{target}\n")
        importlib.invalidate_caches()

    yield put
    sys.modules.pop("their_assignors", None)
    registry.available.cache_clear()


THEIRS = """
from equipoise.assignors.high_availability import HighAvailability

class Theirs(HighAvailability):
    name = "theirs"
    version = 3

class Usurper(HighAvailability):
    pass

def broken():
    raise ValueError("no licence")

def ends():
    raise SystemExit("no licence")
"""


def test_built_in():
    assert isinstance(registry.load("high_availability", 1), HighAvailability)
    assert registry.latest("high_availability").version == 3


def test_available_has_every_version():
    newest = {name: max(number for known, number in registry.available() if known == name) for name, _ in registry.available()}
    of_three = dict.fromkeys(("cooperative", "high_availability", "learner", "load_balanced"), 3)
    assert newest == {**of_three, "kafka_connect": 2, "kafka_streams": 1, "lag_aware": 2}
    for name, version in registry.available():
        assert all((name, earlier) in registry.available() for earlier in range(1, version))
        assert (registry.load(name, version).name, registry.load(name, version).version) == (name, version)


@pytest.mark.parametrize(("name", "version"), [("high_availability", 99), ("nobody", 1)])
def test_unknown_assignor_is_refused_with_those_installed(name: str, version: int):
    known = "high_availability version 1, 2 and 3"
    with pytest.raises(InputError, match=rf"^assignor: '{name}' version {version} is not installed; here are .*{known}"):
        registry.load(name, version)
    with pytest.raises(InputError, match="not installed"):
        registry.latest("nobody")


def test_third_party_is_loaded(install: Install):
    install(THEIRS, "Theirs")
    assert registry.load("theirs", 3).name == "theirs"
    assert ("theirs", 3) in registry.available()
    assert list(registry.available()) == sorted(registry.available())
    assert registry.latest("theirs").version == 3


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("Usurper", "high_availability version 3 is taken; raise its version or rename it"),
        ("broken", "no licence; mend or uninstall the package that declares it"),
        ("ends", "SystemExit: no licence; mend or uninstall the package that declares it"),
        ("Missing", "mend or uninstall the package that declares it"),
    ],
)
def test_unusable_entry_point_is_named(install: Install, target: str, complaint: str):
    install(THEIRS, target)
    with pytest.raises(InputError, match=rf"^entry point theirs = their_assignors:{target}: .*{complaint}$"):
        registry.available()
