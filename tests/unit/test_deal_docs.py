"""docs/assignors.md on a group of `lag_aware` that deals by itself: the table equals what the state
machine decides, for consumers that process so many records a second.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from equipoise.events.facts import Load
from equipoise.events.tasks import TaskId
from tests.groups import HEARTBEAT_MS, Group

PAGE = Path(__file__).parents[2] / "docs" / "assignors.md"
COLUMNS = ("lags", "`deal_after_ms`", "partitions moved", "stopped, in all", "longest lag of a consumer", "records waiting, mean")
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|--:|--:|--:|--:|--:|\n"
CONSUMERS = ("c1", "c2", "c3", "c4")
PARTITIONS = 16
PROCESSED = 5_000
"""Records/s of a consumer."""
USUAL, HOT, SPIKE = 800, 2_000, 6_000
"""Records/s written to a partition."""
MINUTE_S, MINUTES = 60, 70
SETTINGS_MS = (0, 60_000, 300_000)

Rates = Callable[[int, int, set[int]], int]
"""Second, partition and the partitions that one consumer has at first -> records/s written."""


def hot_for_long(second: int, partition: int, of_one: set[int]) -> int:
    """Those of one consumer, from the 10th minute to the 40th."""
    return HOT if partition in of_one and 10 <= second // MINUTE_S < 40 else USUAL


def spikes(second: int, partition: int, of_one: set[int]) -> int:
    """For 2 minutes of 4, one partition."""
    number, minute = divmod(second // MINUTE_S, 4)
    return SPIKE if minute < 2 and random.Random(number).randrange(PARTITIONS) == partition else USUAL


WORKLOADS: dict[str, Rates] = {"the four partitions of one consumer are hot for 30 min": hot_for_long, "some partition is hot for 2 min of 4": spikes}


@attrs.frozen
class Outcome:
    """`moved`: changes of owner. `stopped_s`: partition-seconds in which no consumer had one.
    `longest`: most records that a consumer was behind. `waiting`: records of all, on average.
    """

    moved: int
    stopped_s: int
    longest: int
    waiting: int

    @property
    def cells(self) -> str:
        return f"{self.moved} | {self.stopped_s} s | {self.longest:,} | {self.waiting:,}"


def outcome(rates: Rates, deal_after_ms: int) -> Outcome:
    """What happens in MINUTES, in steps between two reports, to consumers that process their
    partitions with equal shares.
    """
    group = Group(watched=False)
    options = {"deal_after_ms": deal_after_ms} if deal_after_ms else {}
    group.starts(*CONSUMERS, stateless=PARTITIONS, assignor="lag_aware", probing_interval_ms=60_000, options=options)
    group.settles()
    moved, step_s = len(group.moves("granted")), HEARTBEAT_MS // 1_000
    lags = {TaskId(1, number): 0 for number in range(PARTITIONS)}
    of_one = {task.partition for task in group.members[CONSUMERS[0]].active}
    stopped_s = longest = waiting = 0
    for second in range(0, MINUTES * MINUTE_S, step_s):
        for task in lags:
            lags[task] += rates(second, task.partition, of_one) * step_s
        owners = group.owners()
        stopped_s += (len(lags) - len(owners)) * step_s
        for member in group.members.values():
            left, mine = PROCESSED * step_s, sorted(member.active, key=lags.__getitem__)
            for place, task in enumerate(mine):
                done = min(lags[task], left // (len(mine) - place))
                lags[task] -= done
                left -= done
            longest = max(longest, sum(lags[task] for task in mine))
            member.load = Load(behind={task: lags[task] for task in sorted(mine)})
        waiting += sum(lags.values()) * step_s
        group.cycle()
    return Outcome(len(group.moves("granted")) - moved, stopped_s, longest, waiting // (MINUTES * MINUTE_S))


@pytest.mark.docs
def test_table_of_deals_equals_the_decisions(rewrite: bool) -> None:
    found = {(name, after_ms): outcome(rates, after_ms) for name, rates in WORKLOADS.items() for after_ms in SETTINGS_MS}
    hot, short = ({after_ms: found[name, after_ms] for after_ms in SETTINGS_MS} for name in WORKLOADS)
    assert hot[0].moved == short[0].moved == short[300_000].moved == 0, "off, or uneven for less"
    assert 0 < hot[300_000].moved < PARTITIONS / 2
    assert hot[300_000].longest < hot[0].longest / 2
    assert hot[300_000].waiting < hot[0].waiting / 2
    assert short[60_000].moved > 0, "moves for what is over soon"
    rows = "".join(f"| {name} | {after_ms:,} | {each.cells} |\n" for (name, after_ms), each in found.items())
    page = PAGE.read_text(encoding="utf-8")
    wanted = re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + rows, page)
    assert HEAD in page
    if rewrite:
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        pytest.fail("docs/assignors.md is not what is decided now; `pytest --rewrite` writes\n" + rows)
