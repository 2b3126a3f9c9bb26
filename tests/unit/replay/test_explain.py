"""explain: the three answers, each kind with the numbers that its decision used."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import attrs
import pytest

from equipoise.events.decisions import AssignmentIssued, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import (
    AssignmentObserved,
    Fact,
    GroupRejoined,
    LagReported,
    MemberJoined,
    PartitionsObserved,
    ProbingTick,
    RejoinedMember,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.log import open_log
from equipoise.replay.explanation import explain
from equipoise.replay.importers.kafka_streams.importer import import_history
from equipoise.replay.owners import Condition
from tests.groups import Group
from tests.unit.replay.lived import BACK_MS, KILLED_MS, TOPOLOGY, configured, decided, lived, task

DATA = Path(__file__).parents[3] / "replay" / "data"


def moves_of(state: str) -> list[tuple[DecisionRecord, TaskId, str | None, str]]:
    """(decision, task, source, destination) of every step of that kind in the lived log, in its
    order.
    """
    found = []
    for entry in lived():
        if isinstance(entry, DecisionRecord) and isinstance(entry.decision, AssignmentIssued):
            for move in entry.decision.moves:
                if move.state == state and move.destination is not None:
                    found.append((entry, move.task, move.source, move.destination))  # noqa: PERF401 reads better than one expression of four lines
    return found


def test_explain_owner_names_decision_reason_and_lags() -> None:
    warming = moves_of("warming")[0]
    granted = next(each for each in moves_of("granted") if each[1] == warming[1] and each[3] == warming[3])
    answer = explain(lived(), warming[1], at_offset=granted[0].caused_by)
    text = " ".join(answer.why_here)
    assert f"decision {granted[0].number}" in text
    assert f"offset {granted[0].caused_by}" in text
    assert f"{warming[2]} has more than its share; m4 has less" in text
    assert "within acceptable_recovery_lag = 1,000" in text
    lags = {candidate.member_id: candidate.lag for candidate in answer.candidates}
    assert set(lags) == {"m1", "m2", "m3", "m4"}
    assert lags["m4"] is None, "when it was decided the cold joiner had no copy"
    assert [candidate.member_id for candidate in answer.candidates if candidate.owns_it] == [warming[2]]


def test_explain_task_granted_cold_had_no_copy_then() -> None:
    task = next(each[1] for each in moves_of("granted") if each[2] is None)
    text = " ".join(explain(lived(), task, at_offset=next(each[0].caused_by for each in moves_of("granted") if each[1] == task)).why_here)
    assert "It had no copy then, and " in text
    assert "Its copy was" not in text


def test_explain_move_has_each_state_its_time_and_restored_records() -> None:
    warming = moves_of("warming")[0]
    answer = explain(lived(), warming[1])
    move = next(each for each in answer.moves if each.destination == "m4")
    states = [step.state for step in move.steps]
    assert states[-3:] == ["warming", "revoking", "granted"]
    assert move.outcome == "granted"
    assert move.began_ms <= move.steps[-1].append_ms
    spent = [move.spent_ms(state, answer.append_ms) for state in ("waiting", "warming", "revoking")]
    assert sum(spent) == move.steps[-1].append_ms - move.began_ms
    assert spent[1] > 0
    assert spent[2] > 0
    restored = move.restored_records
    assert restored is not None
    assert 395_000 < restored < 420_000


def test_explain_waiting_task_names_the_slots_in_use() -> None:
    first = moves_of("warming")[0][0]
    begun = {each[1] for each in moves_of("warming") if each[0] == first}
    late = next(each for each in moves_of("warming") if each[1] not in begun and each[3] == "m4")
    assert late[0].caused_by > first.caused_by
    answer = explain(lived(), late[1], at_offset=late[0].caused_by - 2)
    text = " ".join(answer.what_next)
    assert "waits since" in text
    assert "2 of max_warmups = 2 are taken" in text
    assert {slot.task for slot in answer.slots} <= begun
    assert len(answer.slots) == 2
    assert all(slot.member_id == "m4" for slot in answer.slots)
    moved = explain(lived(), late[1])
    assert next(move for move in moved.moves if move.destination == "m4").spent_ms("waiting", 0) > 0


def test_explain_warming_task_says_progress() -> None:
    start, which, source, _ = moves_of("warming")[0]
    end = next(each for each in moves_of("revoking") if each[1] == which)[0]
    answer = explain(lived(), which, at_offset=(start.caused_by + 2 * end.caused_by) // 3)
    text = " ".join(answer.what_next)
    assert f"to take it over from {source}" in text
    assert "counts as caught up at 1,000" in text
    assert "at its 50,000 records/s" in text
    assert "the slot goes to another task" in text


def test_explain_revoking_task_names_its_owner() -> None:
    start, which, source, _ = next(each for each in moves_of("revoking") if each[3] == "m4")
    answer = explain(lived(), which, at_offset=start.caused_by)
    text = " ".join(answer.what_next)
    assert f"the moment {source} has let go" in text
    assert "revocation_timeout_ms = 60,000" in text
    assert answer.row.state == "revoking"


def test_explain_task_of_dead_member_says_how_long_it_stopped() -> None:
    expiry = next(entry for entry in lived() if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberExpired))
    granted = next(each for each in moves_of("granted") if each[0].caused_by == expiry.caused_by)
    answer = explain(lived(), granted[1], at_offset=expiry.caused_by)
    assert any("not heard of for its session timeout" in sentence for sentence in answer.why_here)
    silent = [interval for interval in answer.stopped if interval.condition is Condition.SILENT]
    assert len(silent) == 1
    assert silent[0].member_id == "m2"
    assert KILLED_MS - 3_000 <= silent[0].from_ms <= KILLED_MS + 100
    assert silent[0].to_ms == answer.append_ms


def test_explain_returned_task_says_so() -> None:
    back = next(each for each in moves_of("granted") if each[3] == "m2" and each[2] is not None)
    answer = explain(lived(), back[1])
    assert answer.moves[-1].began_ms >= BACK_MS
    assert any("is back and had it before" in sentence for sentence in answer.why_here)


def test_explain_settled_task_says_why() -> None:
    answer = explain(lived(), task("0_0"))
    assert len(answer.what_next) == 1
    assert "It stays where it is" in answer.what_next[0]
    assert "the group is balanced" in answer.what_next[0]
    assert answer.slots == ()


def test_explain_before_first_round_names_the_wait() -> None:
    join = MemberJoined(member_id="m1", incarnation=1, join_nonce="a")
    gathering = decided((1_000, configured()), (1_001, TOPOLOGY), (1_002, join))
    assert "waits another 3.0 s for more members" in explain(gathering, task("0_0")).why_here[0]
    empty = gathering[:3]
    assert "the group has no members" in explain(empty, task("0_0")).why_here[0]


def test_explain_hold_says_why() -> None:
    joins = [MemberJoined(member_id="m1", incarnation=number, join_nonce=str(number), session_timeout_ms=8_000) for number in (1, 2)]
    entries = decided((1_000, configured(initial_delay_ms=0)), (1_001, TOPOLOGY), (1_002, joins[0]), (1_500, joins[1]))
    text = " ".join(explain(entries, task("1_0")).what_next)
    assert "taken by force, so m1 waits 8.0 s" in text


def test_explain_under_kafka_streams_names_probing_round_and_turn() -> None:
    kafka = attrs.evolve(configured(initial_delay_ms=0), assignor="kafka_streams", behaviour_version=1, solver="")
    ends = PartitionsObserved(end_offsets={"store": dict.fromkeys(range(12), 50_000)})
    joins = [MemberJoined(member_id=name, incarnation=1, join_nonce=name, session_timeout_ms=90_000) for name in ("m1", "m2")]
    topology = attrs.evolve(TOPOLOGY, subtopologies=TOPOLOGY.subtopologies[:1])
    waits: list[tuple[int, Fact]] = [(1_000, kafka), (1_001, topology), (1_002, ends), (1_003, joins[0]), (1_500, joins[1])]
    text = " ".join(explain(decided(*waits), task("0_1")).what_next)
    assert "It is to move to m2: m2 has 50,000 records to restore; the next probing round looks again, in 1 min 00 s." in text
    text = " ".join(explain(decided(*waits), task("0_5")).what_next)
    assert "for a warm-up slot" in text

    ready = LagReported("m2", 1, 1, assignment_epoch=1, lags={task("0_1"): 0, task("0_3"): 0})
    ticks: list[tuple[int, Fact]] = [(1_600 + 1_000 * second, ProbingTick()) for second in range(61)]
    let_go = LagReported("m1", 1, 1, assignment_epoch=2, lags={})
    text = " ".join(explain(decided(*waits, (1_600, ready), *ticks, (63_000, let_go)), task("0_1")).why_here)
    assert "Why m2: in the order of ids it is the turn of m2, wherever it runs now" in text


def test_explain_task_with_which_a_consumer_came_says_so() -> None:
    topology = TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=False, source_topics=("clicks",)),))
    consumer = RejoinedMember(member_id="c1", incarnation=1, client="c1-77", topology_epoch=1, held=(task("0_1"),))
    rejoined = GroupRejoined(generation=4, protocol="cooperative-sticky", members=(consumer,))
    answer = explain(decided((1_000, configured()), (1_000, topology), (1_100, rejoined)), task("0_1"))
    assert answer.why_here == ("c1 came with 0_1: it had it before this log led the group, and no decision has moved it since.",)
    assert answer.sources == ("clicks/1",)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """A recorded group that Kafka Streams led."""
    with open_log(tmp_path_factory.mktemp("imported") / "scale-out.jsonl", "w") as log:
        with log.transaction():
            import_history(DATA / "scale-out", log)
        return list(log.read())


def test_explain_recorded_group_has_its_leaders_moves_and_ours(observed: list[Entry]) -> None:
    answer = explain(observed, task("0_3"))
    rounds = [entry.event for entry in observed if isinstance(entry, FactRecord) and isinstance(entry.event, AssignmentObserved)]
    owners = [next((member.member_id for member in each.members if task("0_3") in member.active), None) for each in rounds]
    had = [owner for owner in owners if owner is not None]
    changes = [(before, after) for before, after in itertools.pairwise(had) if before != after]
    assert [(move.source, move.destination) for move in answer.moves] == [(None, had[0]), *changes]
    assert all(move.steps[0].state == "observed" for move in answer.moves)
    assert any("its own leader gave it to it in generation" in sentence for sentence in answer.why_here)
    assert any("equipoise would" in sentence for sentence in answer.what_next)


def test_explain_recorded_unassigned_task_says_so(observed: list[Entry]) -> None:
    rounds = [entry for entry in observed if isinstance(entry, FactRecord) and isinstance(entry.event, AssignmentObserved)]
    for record in rounds:
        assert isinstance(record.event, AssignmentObserved)
        given = {each for member in record.event.members for each in member.active}
        if task("2_4") not in given:
            answer = explain(observed, task("2_4"), at_offset=record.offset)
            assert f"its own leader gave it to nobody in generation {record.event.generation}" in answer.why_here[0]
            return
    raise AssertionError("2_4 is withheld in the recorded run")


@pytest.mark.slow
def test_explain_any_task_and_offset_gives_json(observed: list[Entry]) -> None:
    for entries in (list(lived()), observed):
        offsets = [entry.offset for entry in entries if isinstance(entry, FactRecord)]
        for at_offset in (*offsets[5 :: len(offsets) // 12], offsets[-1]):
            for which in ("0_0", "0_7", "1_2"):
                document = json.loads(json.dumps(explain(entries, task(which), at_offset=at_offset).document(), allow_nan=False))
                assert document["task"] == which
                assert document["why_here"]
                assert not any("None" in sentence or "{" in sentence for sentence in (*document["why_here"], *document["what_next"]))


def test_explain_unknown_task_is_input_error() -> None:
    with pytest.raises(InputError, match=r"no task 7_0 at offset \d+; it has 0_0 to 0_11, 1_0 to 1_2"):
        explain(lived(), task("7_0"))


def cooperative_log(**options: int) -> list[Entry]:
    """m1 and m2 run three tasks each; m2 dies, and a second after it is out m3 joins."""
    group = Group().starts("m1", stateless=6, assignor="cooperative", options=options)
    group.join("m2")
    for _ in range(3):
        group.cycle()
    del group.members["m2"]
    while "m2" in group.state.members:
        group.cycle()
    group.join("m3", eager=True)
    decided_by: dict[int, list[DecisionRecord]] = {}
    for decision in group.decisions:
        decided_by.setdefault(decision.caused_by, []).append(decision)
    return [entry for record in group.records for entry in (record, *decided_by.get(record.offset, ()))]


def test_explain_lost_task_waits_for_member() -> None:
    log = cooperative_log()
    told = [explain(log, TaskId(1, partition)) for partition in range(6)]
    lost = [each for each in told if each.row.owner is None]
    assert len(lost) == 3
    for each in lost:
        (why,) = each.why_here
        assert "m2 had it and is gone since" in why
        assert "for another" in why
        assert "it is kept for it" in why


def test_explain_slow_warm_up_says_measurement_and_waiting() -> None:
    group = Group().starts("m1", stateful=9, max_warmups=1, warmup_stall_ms=9_000)
    group.settles()
    group.join("slow", restores=100)
    group.cycle()
    group.join("fast", restores=5_000)
    (task,) = group.state.members["slow"].warmup

    def what_next() -> str:
        log: list[Entry] = []
        for record in group.records:
            log += [record, *(decision for decision in group.decisions if decision.caused_by == record.offset)]
        return " ".join(explain(log, task).what_next)

    assert "5 copies wait for a slot. In 9.0 s its speed is measured: one that could be ready in half of its time gets the slot." in what_next()
    while task in group.state.members["slow"].warmup:
        group.cycle()
    told = what_next()
    assert "It is to move to slow, but the last warm-up on slow stalled, or gave its slot to a copy that will be ready far sooner; back-off." in told
    assert "slow restores slowly and gave a slot to a copy that will be ready far sooner. No warm-up begins on it for another" in told


def test_explain_back_off_names_no_warm_up_slot() -> None:
    group = Group().starts("m1", stateless=6, assignor="cooperative")
    group.join("m2")
    group.join("m3")
    log: list[Entry] = []
    for record in group.records:
        log += [record, *(decision for decision in group.decisions if decision.caused_by == record.offset)]
    told = " ".join(line for partition in range(6) for line in explain(log, TaskId(1, partition)).what_next)
    assert "tasks were moved for balance just now; the next such move waits; the leader looks again in" in told
    assert "warm-up slot" not in told
