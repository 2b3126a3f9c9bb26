"""How a group converges after a change of members: `high_availability` and `kafka_streams` in the
simulated cluster.

The changes are those of Kafka's TaskAssignorConvergenceTest. Members have one thread, copies
restore within a probing interval, and the group may have two warm-ups. Ids are UUIDs, drawn again
for each run, because Kafka assigns tasks in the order of ids. Values are means over all runs.

*Rounds* counts the rounds that evaluate copies, up to the last change of owner: probing rounds,
and rounds triggered by a ready copy. Rounds that only hand a task over are not counted. Standbys
that make room for the joiner move after that.
"""

from __future__ import annotations

import random
import statistics
import uuid

import attrs

from equipoise.events.settings import GroupSettings
from tests.change_cost import ChangeCost, change_cost

OURS, KAFKA = "high_availability", "kafka_streams"
DRAWS = 3
WARMUPS = 2
PROBING_MS = 20_000
"""Shorter than Kafka's ten minutes, to save time. Restores take a second, so the result is the
same.
"""


@attrs.frozen
class Case:
    """A group of `tasks` stateful tasks and a change of its members."""

    tasks: int
    members: int
    standbys: int
    event: str
    joiners: int
    leavers: int


CASES = (
    Case(60, 6, 0, "one joins", 1, 0),
    Case(60, 6, 0, "one leaves", 0, 1),
    Case(60, 6, 1, "one joins", 1, 0),
    Case(120, 10, 0, "one joins", 1, 0),
    Case(120, 10, 1, "one joins", 1, 0),
    Case(120, 10, 1, "one leaves", 0, 1),
    Case(120, 10, 0, "one replaced", 1, 1),
)


def ids(seed: int, count: int) -> list[str]:
    """Process ids as Kafka makes them."""
    dice = random.Random(seed)
    return [str(uuid.UUID(int=dice.getrandbits(128), version=4)) for _ in range(count)]


def measured(case: Case, assignor: str, draws: int = DRAWS) -> list[ChangeCost]:
    """The cost of one run per draw of ids."""
    return [
        change_cost(
            tasks=case.tasks,
            members=case.members,
            joiners=case.joiners,
            leavers=case.leavers,
            assignor=assignor,
            ids=ids(seed, case.members + case.joiners),
            settings=GroupSettings(num_standbys=case.standbys, max_warmups=WARMUPS, probing_interval_ms=PROBING_MS),
            seed=seed,
        )
        for seed in range(1, draws + 1)
    ]


def rows_of(case: Case, draws: int = DRAWS) -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    ours, kafka = measured(case, OURS, draws), measured(case, KAFKA, draws)
    fewest = statistics.mean(each.fewest for each in ours)
    fewest_rounds = -(-fewest // WARMUPS) + 1
    group = f"{case.tasks} tasks, {case.members} members, {case.standbys} standbys, {case.event}"
    compared = (
        ("owners changed", [each.changed for each in ours], [each.changed for each in kafka], f"goal: at most {fewest:g}, the fewest"),
        ("rounds", [each.rounds_of_owners for each in ours], [each.rounds_of_owners for each in kafka], f"goal: at most {fewest_rounds:g}"),
        ("rounds until at rest", [each.looking_rounds for each in ours], [each.looking_rounds for each in kafka], ""),
        ("changes of owner on the way", [each.moves for each in ours], [each.moves for each in kafka], f"fewest {fewest:g}"),
    )
    return [
        (f"{group}: {what}", round(statistics.mean(mine), 1), f"{goal}{goal and '; '}{KAFKA} {statistics.mean(theirs):.1f}")
        for what, mine, theirs, goal in compared
    ]


def run() -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    return [row for case in CASES for row in rows_of(case)]
