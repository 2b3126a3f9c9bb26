"""explain and show while a member restarts (docs/protocol.md#m12)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from equipoise.cli.group_tables import members_table, view_parts
from equipoise.cli.screen import Table
from equipoise.events.facts import Load
from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import Explanation, explain
from equipoise.replay.group_view import view_of
from equipoise.replay.timelines import build_timeline
from tests.groups import Group

MINE = TaskId(0, 0)


def running(**settings: int) -> Group:
    group = Group().starts("m1", "m2", stateful=4, acceptable_recovery_lag=100, **settings)
    group.settles()
    for member in group.members.values():
        member.load = Load(restored_records_per_s=5_000.0)
    group.cycle()
    assert group.state.owner[MINE] == "m1"
    return group


def entries(group: Group) -> Iterator[Entry]:
    for record in group.records:
        yield record
        yield from (each for each in group.decisions if each.caused_by == record.offset)


def explained(group: Group) -> Explanation:
    return explain(list(entries(group)), MINE)


def states(group: Group) -> dict[str, str]:
    table = members_table(view_of(group.machine))
    return {str(row[0]): str(row[2]) for row in table.rows}


def shown_lags(group: Group) -> dict[str, set[str]]:
    """Owner -> what `status --all` says about its copies."""
    table = view_parts(view_of(group.machine))[-1]
    assert isinstance(table, Table)
    lags: dict[str, set[str]] = {}
    for row in table.rows:
        lags.setdefault(str(row[1]), set()).add(str(row[2]))
    return lags


def until_away(group: Group) -> None:
    for _ in itertools.takewhile(lambda _: not group.state.is_away("m1"), range(9)):
        group.cycle()
    assert group.state.is_away("m1")


def test_explain_task_that_waits_names_the_times_and_the_other_cost() -> None:
    group = running()
    group.members["m1"].restarts(20_000)
    until_away(group)
    group.pass_ms(3_000)
    text = " ".join(explained(group).what_next)
    assert "m1 restarts: it left" in text
    assert "is expected within 20.0 s, as it stated" in text
    assert "100,000 records would have to be restored elsewhere, 20.0 s" in text
    assert states(group)["m1"].startswith("AWAY, expected back within 1")
    assert shown_lags(group) == {"m1": {"away"}, "m2": {"runs it"}}


def test_explain_lent_task_names_its_home() -> None:
    group = running(num_standbys=1)
    group.members["m1"].restarts()
    until_away(group)
    text = " ".join(explained(group).what_next)
    assert "m1 has lent it to m2, which was caught up; m1 restarts" in text
    assert any(step.reason == "lent" for move in explained(group).moves for step in move.steps)


def test_explain_and_show_a_turn_that_has_not_come() -> None:
    group = running()
    group.members["m2"].restarts(20_000)
    group.cycle()
    group.members["m1"].restarts(20_000)
    group.cycle()
    assert "m1 wants to restart, and waits until the restarts before it are over" in " ".join(explained(group).what_next)
    assert states(group)["m1"] == "STABLE, waits for its turn to restart"


def test_timeline_has_nobody_for_a_task_that_waits_and_an_end_for_its_member() -> None:
    group = running()
    old = group.members["m1"]
    old.restarts(20_000)
    until_away(group)
    left_ms = group.append_ms
    group.pass_ms(3_000)
    group.join("m1", 2, lags=dict(sorted(old.copies.items())))
    group.settles()
    found = build_timeline(list(entries(group)))
    stretches = [(each.member_id, each.condition.value) for each in found.intervals if each.task == MINE]
    assert stretches[-3:] == [("m1", "running"), (None, "nobody"), ("m1", "running")]
    (waited,) = [each for each in found.intervals if each.task == MINE and each.member_id is None and each.from_ms > group.records[1].append_ms]
    assert waited.from_ms <= left_ms
    assert waited.to_ms - waited.from_ms >= 3_000
    assert [(life.incarnation, life.how) for life in found.lifelines if life.member_id == "m1"] == [(1, "restarting"), (2, "")]
