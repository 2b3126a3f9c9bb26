"""Recorded inputs: of an imported log, with and without the actions of operators, and of
a log that equipoise led.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.decisions import MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LogOpened,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    PartitionsObserved,
    RestartIntended,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams import import_history
from equipoise.replay.inputs_reader import marked_windows, read_recorded_inputs
from equipoise.replay.recorded_inputs import ConfigurationChanged, Curve, ProcessEnded, ProcessStarted, RecordedInputs, TopologyChanged
from tests.groups import Group, joined, rejections
from tools.import_check import MemoryLog

SHIPPED = Path(__file__).parents[3] / "replay" / "data"


def imported(run: str, *, manifest: bool = True) -> list[FactRecord]:
    log = MemoryLog()
    import_history(SHIPPED / run, log)
    if not manifest:
        opened = log.records[0].event
        assert isinstance(opened, LogOpened)
        log.records[0] = attrs.evolve(log.records[0], event=attrs.evolve(opened, manifest=""))
    return log.records


def starts(found: RecordedInputs) -> list[ProcessStarted]:
    return [each for each in found.happenings if isinstance(each, ProcessStarted)]


def ends(found: RecordedInputs) -> list[ProcessEnded]:
    return [each for each in found.happenings if isinstance(each, ProcessEnded)]


# -- imported
# --------------------------------------------------------------------------------------------------


def test_supplied_actions_win() -> None:
    found = read_recorded_inputs(imported("rolling"), announce_closes=False)
    zero = found.start.at_ms
    assert found.imported
    assert [(each.at_ms - zero, each.member_id, each.incarnation, each.state_kept, each.pause_ms) for each in starts(found)] == [
        (2_980, "i1", 1, False, None),
        (2_980, "i2", 1, False, None),
        (2_980, "i3", 1, False, None),
        (138_584, "i1", 2, True, 2_001),
        (222_150, "i2", 2, True, 10_001),
        (305_807, "i3", 2, True, 18_000),
        (481_248, "i2", 3, False, 3_059),
    ]
    assert all(each.supplied and each.joined_ms > each.at_ms and each.capacity == 2 for each in starts(found))
    assert [(each.at_ms - zero, each.member_id, each.incarnation, each.how, each.inferred) for each in ends(found)] == [
        (136_214, "i1", 1, "closed", False),
        (211_678, "i2", 1, "closed", False),
        (287_239, "i3", 1, "closed", False),
        (478_130, "i2", 2, "killed", False),
        (808_161, "i3", 2, "closed", False),
    ]


def test_orderly_close_is_announced_by_default() -> None:
    for manifest, closes in ((True, 4), (False, 1)):  # with a manifest; without one a bounce looks like a crash
        records = imported("rolling", manifest=manifest)
        announced, at_once = read_recorded_inputs(records), read_recorded_inputs(records, announce_closes=False)
        assert [each.how for each in ends(announced) if each.how != "killed"] == ["announced"] * closes
        assert ends(at_once) == [attrs.evolve(each, how="closed") if each.how == "announced" else each for each in ends(announced)]
        assert (announced.announce_closes, at_once.announce_closes) == (True, False)


@pytest.mark.parametrize("run", ["scale-out", "rolling"])
def test_import_without_actions_infers_ends_within_a_second(run: str) -> None:
    told, inferred = read_recorded_inputs(imported(run)), read_recorded_inputs(imported(run, manifest=False))
    assert [(each.member_id, each.incarnation, each.state_kept) for each in starts(told)] == [
        (each.member_id, each.incarnation, each.state_kept) for each in starts(inferred)
    ]
    assert not any(each.supplied for each in starts(inferred))
    assert all(each.at_ms == each.joined_ms for each in starts(inferred))
    assert [(each.member_id, each.incarnation) for each in ends(told)] == [(each.member_id, each.incarnation) for each in ends(inferred)]
    for known, guessed in zip(ends(told), ends(inferred), strict=True):
        assert guessed.inferred
        assert known.done_ms is not None
        assert known.at_ms - 1_000 <= guessed.at_ms <= known.done_ms + 1_000
    assert not inferred.windows


def test_windows_have_measured_totals() -> None:
    records = imported("scale-out")
    found = read_recorded_inputs(records)
    assert [window.label for window in found.windows] == [
        "A1_scale_out_one_cold",
        "A2_scale_out_two_cold",
        "A3_kill_one",
        "A4_restart_with_old_state",
        "A5_graceful_close_default",
    ]
    moves = [window.measured["totals"]["active_moves"] for window in found.windows if window.measured is not None]
    assert moves == [18, 33, 28, 35, 33]
    assert found.windows[0].measured is not None
    assert found.windows[0].measured["cut_off"] is True
    assert found.end_ms >= found.windows[-1].end_ms
    opened = records[0].event
    assert isinstance(opened, LogOpened)
    assert marked_windows(opened.manifest) == found.windows


def test_growth_is_that_of_the_samples() -> None:
    start = read_recorded_inputs(imported("scale-out")).start
    task = TaskId(0, 0)
    last_ms = start.curves["orders-orders-store-changelog", 0].samples[-1][0]
    assert start.end_offset(task, start.at_ms) == 0
    assert start.end_offset(TaskId(2, 0), last_ms) == 0  # no state
    assert start.end_offset(TaskId(9, 0), last_ms) == 0  # no such sub-topology
    steady = [start.end_offset(task, last_ms - back * 60_000) for back in range(4)]
    assert steady == sorted(steady, reverse=True)
    assert all(150 < (steady[0] - steady[back]) / (back * 60) < 250 for back in (1, 2, 3)), "records a second"
    assert start.end_offset(task, last_ms + 60_000) - steady[0] == pytest.approx(steady[0] - steady[1], rel=0.05)


def test_curves() -> None:
    curve = Curve(((1_000, 10), (2_000, 30), (100_000, 30), (101_000, 90)))
    assert [curve.at(ms) for ms in (0, 1_000, 1_500, 2_000, 50_000, 100_500)] == [10, 10, 20, 30, 30, 60]
    assert curve.at(102_000) == 150  # 60 records in the last minute's samples, which span a second
    assert Curve(((5, 7),)).at(9) == 7
    assert Curve(((0, 100), (1_000, 40))).at(2_000) == 40  # a changelog never shrinks ahead


# -- led by equipoise
# --------------------------------------------------------------------------------------------------

CONFIG = GroupConfigured()
TOPOLOGY = TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=True, changelog_topics=("c",)),))


def join(member_id: str, incarnation: int = 1, **more: Any) -> MemberJoined:
    return MemberJoined(member_id=member_id, incarnation=incarnation, join_nonce=f"{member_id}-{incarnation}", **more)


def report(member_id: str, number: int, *, leaving: bool = False) -> LagReported:
    return LagReported(member_id=member_id, incarnation=1, number=number, assignment_epoch=0, leaving=leaving)


def native(*facts: tuple[int, Fact], expired: tuple[tuple[int, str], ...] = (), announce_closes: bool = True) -> RecordedInputs:
    """A log with its decisions: `expired` = (offset of the fact that caused it, member)."""
    records: list[FactRecord | DecisionRecord] = []
    told: list[tuple[int, Fact]] = [(0, CONFIG), (0, TOPOLOGY), *facts]
    for offset, (append_ms, fact) in enumerate(told):
        records.append(FactRecord("g", offset, append_ms, fact))
        for number, (caused_by, member_id) in enumerate(expired, start=1):
            if caused_by == offset:
                gone = MemberExpired(member_id=member_id, incarnation=1, cause="session_timeout", silent_ms=1)
                records.append(DecisionRecord("log", "g", number, caused_by, 0, 0, gone))
    return read_recorded_inputs(records, announce_closes=announce_closes)


def test_native_log_gives_how_members_ended() -> None:
    facts: tuple[tuple[int, Fact], ...] = (
        (1_000, join("m1", lags={TaskId(0, 0): 5})),
        (1_000, join("m2")),
        (1_000, join("m3")),
        (1_000, join("m4")),
        (2_000, LeaveIntended(member_id="m1", incarnation=1)),
        (3_000, report("m2", 1)),
        (4_000, report("m1", 1, leaving=True)),
        (5_000, report("m3", 1, leaving=True)),
        (6_000, LeaveCancelled(member_id="m3", incarnation=1)),
        (7_000, MemberLeft(member_id="m1", incarnation=1)),
        (8_000, MemberLeft(member_id="m3", incarnation=1)),
        (40_000, PartitionsObserved(end_offsets={"c": {0: 5}})),
        (41_000, join("m4", 2, lags={TaskId(0, 0): 5})),
    )
    found, at_once = native(*facts, expired=((13, "m2"),)), native(*facts, expired=((13, "m2"),), announce_closes=False)
    assert not found.imported
    assert [(each.member_id, each.at_ms, each.how, each.inferred) for each in ends(found)] == [
        ("m4", 1_000, "killed", True),  # superseded: last heard when it joined
        ("m1", 2_000, "announced", False),
        ("m2", 3_000, "killed", True),
        ("m3", 8_000, "announced", False),  # it had taken its intent back, and left all the same
    ]
    assert [(each.member_id, each.at_ms) for each in ends(at_once) if each.how == "closed"] == [("m1", 2_000), ("m3", 8_000)]
    assert [(each.member_id, each.incarnation, each.state_kept) for each in starts(found)] == [
        ("m1", 1, True),
        ("m2", 1, False),
        ("m3", 1, False),
        ("m4", 1, False),
        ("m4", 2, True),
    ]
    assert (found.start.at_ms, found.end_ms, found.windows) == (0, 41_000, ())


def test_proven_end_is_witnessed_unless_the_process_was_gone_before() -> None:
    found = native(
        (1_000, join("m1")),
        (1_000, join("m2")),
        (1_000, join("m3")),
        (2_000, report("m1", 1)),
        (3_000, MemberEnded(member_id="m1", incarnation=1, proof="process 7 has ended")),
        (4_000, report("m2", 1)),
        (5_000, join("m2", 2)),  # the supervisor was quicker than the witness
        (6_000, MemberEnded(member_id="m2", incarnation=1, proof="process 8 has ended")),
        (7_000, MemberLeft(member_id="m3", incarnation=1)),
        (8_000, MemberEnded(member_id="m3", incarnation=1, proof="process 9 has ended")),
    )
    assert [(each.at_ms, each.member_id, each.incarnation, each.how, each.inferred) for each in ends(found)] == [
        (3_000, "m1", 1, "witnessed", False),
        (4_000, "m2", 1, "killed", True),
        (7_000, "m3", 1, "announced", False),
    ]


def test_later_configurations_and_topologies_are_happenings() -> None:
    later = attrs.evolve(CONFIG, assignor="cooperative")
    wider = attrs.evolve(TOPOLOGY, epoch=2)
    found = native((5, later), (6, wider))
    assert found.happenings == (ConfigurationChanged(at_ms=5, config=later), TopologyChanged(at_ms=6, topology=wider))
    assert (found.start.config, found.start.topology) == (CONFIG, TOPOLOGY)


def test_read_recorded_inputs_of_a_log_without_the_group_is_refused() -> None:
    with pytest.raises(InputError, match="no fact of any group"):
        read_recorded_inputs([])
    with pytest.raises(InputError, match="no TopologyDeclared fact of g"):
        read_recorded_inputs([FactRecord("g", 0, 0, CONFIG)], group="g")
    with pytest.raises(InputError, match="--group: the log holds several groups, 'g' and 'h' among them; name one"):
        read_recorded_inputs([FactRecord("g", 0, 0, CONFIG), FactRecord("h", 1, 0, CONFIG)])
    for manifest, problem in (("{", "not JSON"), ("[]", "not a JSON object")):
        with pytest.raises(InputError, match=rf"LogOpened\.manifest: {problem}"):
            read_recorded_inputs([FactRecord("", 0, 0, LogOpened(log_id="l", manifest=manifest))])
    both = [FactRecord("g", 0, 0, CONFIG), FactRecord("h", 1, 7, CONFIG), FactRecord("h", 2, 8, TOPOLOGY), FactRecord("g", 3, 9, TOPOLOGY)]
    assert read_recorded_inputs(both, group="h").start.at_ms == 7


def entries_of(group: Group) -> Iterator[Entry]:
    """Facts and decisions in stored order."""
    for record in group.records:
        yield record
        yield from (decision for decision in group.decisions if decision.caused_by == record.offset)


def test_join_that_was_rejected_starts_and_ends_no_process() -> None:
    """Before the group has a configuration, and later one of an incarnation that is gone."""
    group = Group()
    assert rejections(group.fact(joined("m1", 3))) == ["not_configured"]
    group.starts(stateful=1)
    group.join("m1", 5)
    group.cycle()
    assert rejections(group.fact(joined("m1", 4), after_ms=500)) != []
    group.cycle()
    group.members["m1"].leaves()
    for _ in range(4):
        group.cycle()
    happened = [each for each in read_recorded_inputs(entries_of(group)).happenings if isinstance(each, ProcessStarted | ProcessEnded)]
    assert [(type(each), each.incarnation) for each in happened] == [(ProcessStarted, 5), (ProcessEnded, 5)]
    (ended,) = (each for each in happened if isinstance(each, ProcessEnded))
    assert ended.how == "announced"


def test_restart_in_the_log_is_a_restart_with_its_stated_time() -> None:
    intent = RestartIntended(member_id="m1", incarnation=1, back_within_ms=9_000)
    found = native(
        (1_000, join("m1")),
        (1_000, join("m2")),
        (2_000, intent),
        (3_000, intent),
        (4_000, MemberLeft(member_id="m1", incarnation=1)),
        (5_000, RestartIntended(member_id="m2", incarnation=1)),
        (6_000, LeaveCancelled(member_id="m2", incarnation=1)),
        (7_000, MemberLeft(member_id="m2", incarnation=1)),
    )
    assert [(each.at_ms, each.member_id, each.how, each.back_within_ms) for each in ends(found)] == [
        (2_000, "m1", "restarting", 9_000),
        (7_000, "m2", "announced", None),
    ]
    assert [each.how for each in ends(found.with_closes(False))] == ["restarting", "closed"]


def test_closes_with_a_start_soon_after_are_restarts() -> None:
    found = read_recorded_inputs(imported("rolling")).with_restarts(30_000)
    assert [(each.member_id, each.incarnation, each.how, each.back_within_ms) for each in ends(found)] == [
        ("i1", 1, "restarting", 30_000),
        ("i2", 1, "restarting", 30_000),
        ("i3", 1, "restarting", 30_000),
        ("i2", 2, "killed", None),
        ("i3", 2, "announced", None),
    ]
    assert [each.how for each in ends(found.with_restarts(30_000))] == [each.how for each in ends(found)]
    sooner = read_recorded_inputs(imported("rolling")).with_restarts(5_000)
    assert [each.how for each in ends(sooner)] == ["restarting", "announced", "announced", "killed", "announced"]
