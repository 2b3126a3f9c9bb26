"""`explain` says for how long lags had been uneven when a group of `lag_aware` dealt by itself, and
what they were.
"""

from __future__ import annotations

import itertools
import re

import pytest

from equipoise.events.facts import Load
from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import explain
from equipoise.replay.verification import Verdict, verify
from tests.groups import Group

OPTIONS = {"deal_after_ms": 120_000}


@pytest.mark.parametrize("cross_topic", [False, True])
def test_explain_names_the_lags_at_the_move(cross_topic: bool) -> None:
    group = Group()
    options = {**OPTIONS, "cross_topic": cross_topic}
    group.starts("m1", "m2", stateful=2, stateless=4, assignor="lag_aware", probing_interval_ms=60_000, options=options)
    group.settles()
    for name, lags in (("m1", (100_000, 60_000)), ("m2", (3_000, 2_000))):
        member = group.members[name]
        held = sorted(task for task in member.active if task.subtopology == 1)
        member.load = Load(behind={**dict.fromkeys(member.active, 7), **dict(zip(held, lags, strict=True))})
    before = group.owners()
    for _ in itertools.takewhile(lambda _: group.owners() == before, range(100)):
        group.cycle()
    for member in group.members.values():
        member.load = Load(behind=dict.fromkeys(member.active, 7))
    group.settles()
    moved = [task for task, owner in group.owners().items() if before[task] != owner]
    assert len(moved) == 2
    given = next(task for task in moved if before[task] == "m1")
    log: list[Entry] = []
    for record in group.records:
        log += [record, *(each for each in group.decisions if each.caused_by == record.offset)]
    told = " ".join(explain(log, given).why_here)
    more = 7 if cross_topic else 0
    assert "lags have been uneven for deal_after_ms; dealt by them it falls to m2" in told
    numbers = re.search(r"Lags had been uneven for (\d) min \S+ s; records behind then: (.*?)\.", told)
    assert numbers is not None, told
    assert int(numbers[1]) in (2, 3)
    assert numbers[2] == f"{160_000 + more:,} for m1, {5_000 + more:,} for m2, 60,000 for {given}"
    assert "Lags had been" not in " ".join(explain(log, TaskId(0, 0)).why_here)
    assert verify(log).verdict is Verdict.IDENTICAL
