"""`make release`, up to its builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import release
from tools.release import NotReadyError, check_ready, notes_of, pythons, set_version

CHANGELOG = """# Changelog

<!-- towncrier: releases -->

## [0.2.0] - 2026-12-01

### Added

- A second thing.

## [0.1.0] - 2026-11-01

- The first thing.
"""

VERSIONED = ("pyproject.toml", "java/streams-assignor/pom.xml", "java/broker-assignor/pom.xml")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((release.ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "first"], ["tag", "v0.0.9"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def test_version_is_written_where_it_stands_and_nowhere_else(checkout: Path) -> None:
    before = {name: (checkout / name).read_text().splitlines() for name in VERSIONED}
    set_version("7.8.9")
    for name, lines in before.items():
        after = (checkout / name).read_text().splitlines()
        changed = [new.strip() for old, new in zip(lines, after, strict=True) if old != new]
        assert changed == (['version = "7.8.9"'] if name == "pyproject.toml" else ["<version>7.8.9</version>"])


def test_file_without_a_version_is_named(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(NotReadyError, match=r"pyproject\.toml: has no version where it is looked for"):
        set_version("7.8.9")


def test_release_begins_only_from_what_is_committed_and_not_tagged(checkout: Path) -> None:
    check_ready("0.1.0")
    check_ready("0.1.0rc2")
    for version in ("0.1", "v0.1.0", "0.1.0-beta", ""):
        with pytest.raises(NotReadyError, match=r"write it as 1\.2\.3"):
            check_ready(version)
    with pytest.raises(NotReadyError, match=r"the tag v0\.0\.9 exists: name the next version"):
        check_ready("0.0.9")
    (checkout / "forgotten.txt").write_text("x")
    with pytest.raises(NotReadyError, match=r"commit or remove them\n.*forgotten\.txt"):
        check_ready("0.1.0")


def test_notes_are_the_entry_of_the_version() -> None:
    assert notes_of(CHANGELOG, "0.2.0") == "### Added\n\n- A second thing."
    assert notes_of(CHANGELOG, "0.1.0") == "- The first thing."
    for version in ("0.3.0", "0.1"):
        with pytest.raises(NotReadyError, match="has no entry"):
            notes_of(CHANGELOG, version)


def test_this_python_is_one_of_those_that_a_release_is_tried_on() -> None:
    assert "3.11" in dict(pythons())
