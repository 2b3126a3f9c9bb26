"""Changelog fragments have names that towncrier reads, and their text fits the changelog."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.release import notes_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changes"
TYPES = [each["directory"] for each in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]["type"]]
FRAGMENTS = sorted(path for path in FOLDER.iterdir() if path.name not in ("template.md", ".gitignore"))


def is_fragment_name(name: str) -> bool:
    return re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(TYPES)})\.md", name) is not None


def test_is_fragment_name_needs_a_plus_and_a_known_type() -> None:
    assert is_fragment_name("+exactly-once.fixed.md")
    assert not any(map(is_fragment_name, ["exactly-once.fixed.md", "+exactly-once.feature.md", "+exactly-once.md", "+exactly-once.fixed.rst"]))


def test_fragments_have_a_known_type_and_short_lines() -> None:
    """There are none directly after a release."""
    for path in FRAGMENTS:
        assert is_fragment_name(path.name), f"{path.name}: name it +SLUG.TYPE.md, with TYPE one of {', '.join(TYPES)}"
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines, path.name
        assert [line for line in lines if len(line) > 100] == [], path.name


@pytest.mark.skipif(importlib.util.find_spec("towncrier") is None, reason="needs towncrier, of the extra dev")
def test_towncrier_renders_every_fragment() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--date", "2030-01-01"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "## [9.9.9] - 2030-01-01" in done.stdout
    words = " ".join(done.stdout.split())
    assert [path.name for path in FRAGMENTS if " ".join(path.read_text(encoding="utf-8").split()) not in words] == []


def test_version_of_the_project_has_its_entry_which_is_the_text_of_its_tag() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert len(notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version).splitlines()) > 10


def test_changelog_has_the_line_below_which_towncrier_writes() -> None:
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count("\n<!-- towncrier: releases -->\n") == 1
