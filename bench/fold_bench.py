"""The cost of one lag report: decoding and folding it, relative to a bare unpack of the same bytes,
and as the group grows; and of a heartbeat that changes nothing, relative to such a report.

Baselines in the same run: `msgpack.unpackb` of the same payload (a floor: it checks nothing), and
the same group with fewer members.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import msgpack

from equipoise.assignors import registry
from equipoise.events import codec
from equipoise.events.facts import Fact, GroupConfigured, LagReported, MemberJoined, MemberUnchanged, Subtopology, TopologyDeclared
from equipoise.events.records import FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, TaskId
from equipoise.statemachine.machine import GroupMachine

REPORTS = 20_000
ROUNDS = 5
LAGS: dict[TaskId, Lag] = {TaskId(0, partition): partition * 1_000 for partition in range(20)}


def _group(members: int, tasks: int) -> tuple[GroupMachine, int]:
    """A machine with `members` members and `tasks` tasks that has not begun to assign (the delay is
    long), and the next offset.
    """
    machine = GroupMachine()
    assignor = registry.load("high_availability", 1)
    settings = GroupSettings(initial_delay_ms=10**9, checkpoint_every_records=0)
    events: list[Fact] = [
        GroupConfigured(solver=assignor.solver, knobs=settings),
        TopologyDeclared(epoch=0, subtopologies=(Subtopology(subtopology=0, partitions=tasks, stateful=True),)),
        *(MemberJoined(member_id=f"m{index}", incarnation=1, join_nonce=f"n{index}") for index in range(members)),
    ]
    for offset, event in enumerate(events):
        machine.step(codec.make_record("g", offset, 0, event))
    return machine, len(events)


def _payloads() -> list[codec.Encoded]:
    reports = (LagReported(member_id="m0", incarnation=1, number=number, assignment_epoch=0, lags=LAGS) for number in range(REPORTS * ROUNDS))
    return [codec.encode(report) for report in reports]


def _unchanged() -> list[codec.Encoded]:
    """Heartbeats of 3 members, after one report of each."""
    reports = [codec.encode(LagReported(member_id=f"m{index}", incarnation=1, number=0, assignment_epoch=0, lags=LAGS)) for index in range(3)]
    said = [codec.encode(MemberUnchanged(member_id=f"m{index}", incarnation=1, report=0)) for index in range(3)]
    return [*reports, *(said[number % 3] for number in range(REPORTS * ROUNDS - 3))]


def _best_us(run: Callable[[int], None]) -> float:
    """Microseconds a report in the best of ROUNDS rounds, because noise only adds time."""
    best = float("inf")
    for number in range(ROUNDS):
        begin = time.perf_counter()
        run(number)
        best = min(best, time.perf_counter() - begin)
    return best / REPORTS * 1e6


def _folding_us(members: int, tasks: int, payloads: list[codec.Encoded]) -> float:
    machine, first = _group(members, tasks)

    def fold(number: int) -> None:
        begin = number * REPORTS
        for index in range(begin, begin + REPORTS):
            kind, version, payload = payloads[index]
            machine.step(FactRecord("g", first + index, index, codec.decode_lenient(kind, version, payload), 0))

    return _best_us(fold)


def run() -> list[tuple[str, float, str]]:
    payloads = _payloads()
    unpackb = msgpack.unpackb

    def bare(number: int) -> None:
        for _, _, payload in payloads[number * REPORTS : (number + 1) * REPORTS]:
            unpackb(payload)

    gc.disable()
    try:
        bare_us = _best_us(bare)
        small_us = _folding_us(3, 60, payloads)
        large_us = _folding_us(3_000, 60_000, payloads)
        unchanged_us = _folding_us(3, 60, _unchanged())
    finally:
        gc.enable()
    grown = f"{large_us:.1f} us over {small_us:.1f} us; goal: at most 1.3"
    return [
        ("decode + fold a 20-lag report / bare unpackb", small_us / bare_us, f"{small_us:.1f} us over {bare_us:.1f} us; goal: at most 8"),
        (
            "decode + fold a heartbeat that changes nothing / a 20-lag report",
            unchanged_us / small_us,
            f"{unchanged_us:.1f} us over {small_us:.1f} us; goal: at most 0.35",
        ),
        ("a report in 3,000 members and 60,000 tasks / in 3 and 60", large_us / small_us, grown),
    ]
