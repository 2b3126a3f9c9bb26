"""Ids in tables are written without thousands separators."""

from __future__ import annotations

from equipoise.cli.group_tables import members_table
from equipoise.cli.screen import plain
from equipoise.cli.timeline import lifelines_table
from equipoise.replay.group_view import view_of
from equipoise.replay.timelines import build_timeline
from tests.groups import Group

INCARNATION = 1_795_210_722_814_257


def test_incarnations_in_tables_have_no_thousands_separators() -> None:
    group = Group().starts(stateful=2)
    group.join("m1", INCARNATION)
    group.tick()
    for table in (members_table(view_of(group.machine)), lifelines_table(build_timeline([*group.records, *group.decisions]))):
        assert str(INCARNATION) in plain(table)
