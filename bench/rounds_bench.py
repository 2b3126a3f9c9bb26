"""What one change costs in a large group at rest: a join, a leave, an intent to leave, each with
the round that it causes, joins that come together, and a snapshot and its restore. In seconds of
CPU.

Group: every task has state, every member runs its share and has reported that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from equipoise.assignors import registry
from equipoise.events import codec
from equipoise.events.decisions import AssignmentIssued
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    LeaveIntended,
    LogOpened,
    MemberJoined,
    MemberLeft,
    PartitionsObserved,
    ProbingTick,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel
from equipoise.statemachine.machine import GroupMachine

SIZES = ((1_000, 10_000), (10_000, 100_000))
EACH = 5
"""Changes of each kind; the quickest counts, because noise only adds time."""
STATE = 50_000
JOINS, DELAY_MS = 100, 100


class _Group:
    """A group, fact by fact."""

    def __init__(self, members: int, tasks: int) -> None:
        self.machine = GroupMachine()
        self.rounds = 0
        self._offset = self._now_ms = 0
        assignor = registry.latest("high_availability")
        settings = GroupSettings(max_warmups=200, checkpoint_every_records=0)
        topic = Subtopology(subtopology=0, partitions=tasks, stateful=True, source_topics=("in",), changelog_topics=("log",))
        self._config = GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=settings)
        self.step(LogOpened(log_id="bench", partitions=1))
        self.step(self._config)
        self.step(TopologyDeclared(epoch=1, subtopologies=(topic,)))
        self.step(PartitionsObserved(end_offsets={"log": dict.fromkeys(range(tasks), STATE)}))
        for index in range(members):
            self.join(f"m{index:05}")
        for _ in range(settings.initial_delay_ms // settings.max_step_ms):
            self.first_round_s = self.step(ProbingTick(), after_ms=settings.max_step_ms)
        for name, member in self.machine.state.members.items():
            active = tuple(sorted(member.active))
            self.step(LagReported(name, 1, 0, member.issued_epoch, held=active, lags=dict.fromkeys(active, LagSentinel.ACTIVE)))

    def step(self, fact: Fact, *, after_ms: int = 0) -> float:
        """Folds the fact; returns the CPU seconds that it took."""
        self._now_ms += after_ms
        record = codec.make_record("" if isinstance(fact, LogOpened) else "g", self._offset, self._now_ms, fact)
        self._offset += 1
        begin = time.process_time()
        decisions = self.machine.step(record)
        taken_s = time.process_time() - begin
        self.rounds += any(isinstance(each.decision, AssignmentIssued) for each in decisions)
        return taken_s

    def together(self, joins: int, delay_ms: int) -> tuple[float, int]:
        """CPU seconds and rounds of so many joins within a moment, with this `join_delay_ms`."""
        self.step(attrs.evolve(self._config, knobs=attrs.evolve(self._config.knobs, join_delay_ms=delay_ms)))
        before = self.rounds
        taken_s = sum([self.join(f"{delay_ms}-{index}") for index in range(joins)])
        return taken_s + self.step(ProbingTick(), after_ms=delay_ms), self.rounds - before

    def join(self, name: str) -> float:
        return self.step(MemberJoined(member_id=name, incarnation=1, session_timeout_ms=10**7, topology_epoch=1, join_nonce=name))


def _seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def _measured(members: int, tasks: int) -> tuple[dict[str, float], _Group]:
    """What was done -> its CPU seconds, and the group."""
    group = _Group(members, tasks)
    machine = group.machine
    names = [f"m{index:05}" for index in range(2 * EACH)]
    snapshot = machine.snapshot()
    return {
        "first round": group.first_round_s,
        "snapshot": min(_seconds(machine.snapshot) for _ in range(EACH)),
        "restore": min(_seconds(lambda: GroupMachine.restore(snapshot)) for _ in range(EACH)),
        "join": min(group.join(f"new{index}") for index in range(EACH)),
        "leave": min(group.step(MemberLeft(member_id=name, incarnation=1)) for name in names[:EACH]),
        "intent": min(group.step(LeaveIntended(member_id=name, incarnation=1)) for name in names[EACH:]),
    }, group


def run() -> list[tuple[str, float, str]]:
    (small, small_group), (large, large_group) = (_measured(*size) for size in SIZES)
    one_by_one_s, one_by_one = small_group.together(JOINS, 0)
    small_s, _ = small_group.together(JOINS, DELAY_MS)
    large_s, rounds = large_group.together(JOINS, DELAY_MS)
    together = f"{small_s:.2f} s over {one_by_one_s:.2f} s; 10,000 members and 100,000 tasks {large_s:.2f} s; goal: at most 0.1"
    rounds_note = f"{one_by_one} one by one in 1,000 members and 10,000 tasks; goal: at most 1"
    rows = [
        (f"rounds of {JOINS} joins together, 10,000 members and 100,000 tasks", float(rounds), rounds_note),
        (f"{JOINS} joins together, over one by one, 1,000 members and 10,000 tasks", small_s / one_by_one_s, together),
    ]
    for what, limit_s in (("first round", None), ("join", 1), ("leave", 1), ("intent", 1), ("snapshot", None), ("restore", 1)):
        taken = f"{large[what]:.2f} s of CPU; 1,000 members and 10,000 tasks {small[what]:.3f} s"
        goal = "" if limit_s is None else f"; goal: at most {limit_s}"
        rows.append((f"{what}, 10,000 members and 100,000 tasks, over 1 s", large[what], taken + goal))
    growth = f"{large['join']:.2f} s over {small['join']:.3f} s; goal: at most 20, ten times as many of both"
    return [*rows, ("a join, over the same in 1,000 members and 10,000 tasks", large["join"] / small["join"], growth)]
