"""A log in which settings were changed, one change was undone, and another one is under way."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.decisions import Decision
from equipoise.events.facts import ChangePlanned, ExpectedCost, GroupConfigured, LogOpened
from equipoise.events.records import Entry
from equipoise.log import open_log
from equipoise.statemachine.machine import GroupMachine
from tests.groups import GROUP, Group


def entries_of(group: Group) -> Iterable[Entry]:
    for record in group.records:
        yield record
        yield from (each for each in group.decisions if each.caused_by == record.offset)


def settings(group: Group, **changed: Any) -> GroupConfigured:
    assert group.state.config is not None
    return attrs.evolve(group.state.config, knobs=attrs.evolve(group.state.settings, **changed))


def cycles(group: Group, count: int) -> list[Decision]:
    return [decision for _ in range(count) for decision in group.cycle()]


@functools.cache
def changed_group() -> Group:
    """A change as expected; one that moved less; one that is undone; settings without a plan,
    refused ones, and a change under way.
    """
    group = Group().starts("m1", "m2", stateful=4)
    group.settles()
    rest = ExpectedCost(metric="rest_ms", median=0, low_50=0, high_50=0, low_95=0, high_95=0)
    group.fact(ChangePlanned(change_id="a", kind="configure", what="max_warmups 2 -> 3", why="a test", expected=(rest,)))
    group.fact(settings(group, max_warmups=3))
    cycles(group, 8)
    moves = ExpectedCost(metric="moves", median=6, low_50=5, high_50=7, low_95=5, high_95=9)
    group.fact(ChangePlanned(change_id="less", kind="other", what="a host is replaced", expected=(moves,)))
    cycles(group, 8)
    before = settings(group)
    group.fact(ChangePlanned(change_id="b", kind="configure", what="num_standbys 0 -> 1", expected=(rest,), or_undo=True))
    for member in group.members.values():
        member.restores, member.copies = 1_000, {task: member.copies[task] for task in member.active}
    group.fact(settings(group, num_standbys=1))
    cycles(group, 6)
    assert group.state.change is not None
    assert group.state.change.undoes
    group.fact(before)
    group.fact(settings(group, max_warmups=5))
    group.fact(settings(group, max_step_ms=3_600_000))
    group.fact(ChangePlanned(change_id="c", kind="join", what="2 more members", most_unavailable_task_ms=500))
    return group


def write_changed(path: Path, last_ms: int | None = None) -> Path:
    """Writes the log of `changed_group`. `last_ms`: the time of its last fact; None: as it is."""
    records = changed_group().records
    later_ms = 0 if last_ms is None else last_ms - records[-1].append_ms
    machine = GroupMachine()
    with open_log(path, "w") as log:
        for record in records:
            stored = log.append_fact("" if isinstance(record.event, LogOpened) else GROUP, record.append_ms + later_ms, record.event)
            log.append_decisions(machine.step(stored))
    return path
