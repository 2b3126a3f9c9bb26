"""docs/states.md equals the transition table, and the table is complete: every phase names every
fact of a group. docs/architecture.md has the tables of commits.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from equipoise.events.facts import Fact, LogOpened
from equipoise.statemachine.state import GroupPhase
from equipoise.statemachine.transitions import TRANSITIONS
from tools import commit_tables
from tools.state_diagram import render


def test_page_is_generated_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "states.md"
    assert page.read_text() == render(), "run `make states`"


def test_phase_table_has_every_fact() -> None:
    assert set(TRANSITIONS) == set(GroupPhase)
    for phase, table in TRANSITIONS.items():
        assert set(table) == set(get_args(Fact)) - {LogOpened}, phase


def test_tables_of_commits_are_those_of_the_code() -> None:
    page = commit_tables.PAGE.read_text()
    assert commit_tables.BEGIN in page
    assert page == commit_tables.written(page), "run `make states`"
