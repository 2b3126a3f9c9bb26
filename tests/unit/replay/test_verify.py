"""verify: an unchanged log is identical; a change, a gap or an addition is found at its place; a
log that cannot be judged is reported.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, Checkpointed, MemberAssigned, MemberExpired
from equipoise.events.errors import DamagedError
from equipoise.events.facts import LagReported, LogOpened, MemberJoined
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.machine import GroupMachine
from tests.unit.replay.lived import TOPOLOGY, configured, decided, lived, write


def first(entries: Iterable[Entry], kind: type, *, wanted: Callable[[Any], bool] = lambda decision: True) -> int:
    """Index of the first decision of that kind that is wanted."""
    return next(
        index
        for index, entry in enumerate(entries)
        if isinstance(entry, DecisionRecord) and isinstance(entry.decision, kind) and wanted(entry.decision)
    )


def evolve(thing: Any, **changes: Any) -> Any:
    return attrs.evolve(thing, **changes)


def replaced(entries: Iterable[Entry], index: int, entry: Entry) -> list[Entry]:
    changed = list(entries)
    changed[index] = entry
    return changed


def changed_decision(entries: tuple[Entry, ...], index: int, **changes: Any) -> list[Entry]:
    entry = entries[index]
    assert isinstance(entry, DecisionRecord)
    return replaced(entries, index, evolve(entry, decision=evolve(entry.decision, **changes)))


def test_verify_unchanged_log_is_identical() -> None:
    entries = lived()
    verification = verify(entries)
    (group,) = verification.groups
    decisions = [entry for entry in entries if isinstance(entry, DecisionRecord)]
    assert verification.verdict is Verdict.IDENTICAL
    assert verification.verdict.exit_code == 0
    assert (group.compared, group.facts, group.not_yet_written) == (len(decisions), len(entries) - len(decisions) - 1, 0)
    assert group.checkpoints == sum(isinstance(entry.decision, Checkpointed) for entry in decisions) > 1
    assert verification.records == len(entries)


def test_verify_changed_decision_is_found_at_its_place() -> None:
    entries = lived()
    changes: list[tuple[type, dict[str, Any], str]] = [
        (MemberExpired, {"silent_ms": 1}, "m2.expired"),
        (BalanceEvaluated, {"imbalance_before": 77}, "group.verdict"),
        (AssignmentIssued, {"cause": "probing"}, "group.generation"),
        (MemberAssigned, {"standby": (TOPOLOGY_TASK,)}, "m1.standby"),
        (Checkpointed, {"state_sha256": "0" * 64}, "state hash"),
    ]
    for kind, change, place in changes:
        index = first(entries, kind)
        entry = entries[index]
        assert isinstance(entry, DecisionRecord)
        verification = verify(changed_decision(entries, index, **change))
        divergence = verification.groups[0].divergence
        assert verification.verdict is Verdict.DIVERGENCE
        assert verification.verdict.exit_code == 1
        assert divergence is not None
        assert (divergence.offset, divergence.number) == (entry.caused_by, entry.number)
        assert divergence.fact is not None
        assert divergence.fact.offset == entry.caused_by
        assert divergence.recomputed == entry
        assert [difference.place for difference in divergence.differences] == [place]


TOPOLOGY_TASK = next(
    entry.decision.active[0] for entry in lived() if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberAssigned)
)


def test_verify_difference_names_member_and_sides() -> None:
    entries = lived()
    index = first(entries, MemberAssigned, wanted=lambda told: len(told.active) > 1)
    entry = entries[index]
    assert isinstance(entry, DecisionRecord)
    told = entry.decision
    assert isinstance(told, MemberAssigned)
    divergence = verify(changed_decision(entries, index, active=told.active[1:], tokens=told.tokens[1:])).groups[0].divergence
    assert divergence is not None
    found = {difference.place: difference for difference in divergence.differences}
    assert set(found) == {f"{told.member_id}.active", f"{told.member_id}.tokens"}
    assert str(told.active[0]) in found[f"{told.member_id}.active"].recomputed
    assert str(told.active[0]) not in found[f"{told.member_id}.active"].stored
    assert "active" in divergence.problem


@pytest.mark.parametrize("field", ["log_id", "caused_by", "index", "fact_checksum"])
def test_verify_compares_envelope(field: str) -> None:
    entries = lived()
    index = first(entries, MemberExpired)
    entry = entries[index]
    assert isinstance(entry, DecisionRecord)
    other = "x" if field == "log_id" else getattr(entry, field) + 1
    divergence = verify(replaced(entries, index, evolve(entry, **{field: other}))).groups[0].divergence
    assert divergence is not None
    assert divergence.offset == entry.caused_by
    assert field in divergence.problem


def test_verify_changed_fact_is_a_divergence() -> None:
    entries = lived()
    index = next(i for i, entry in enumerate(entries) if isinstance(entry, FactRecord) and isinstance(entry.event, MemberJoined))
    cause = first(entries, MemberExpired)
    expiry = entries[cause]
    assert isinstance(expiry, DecisionRecord)
    fact_index = next(i for i, entry in enumerate(entries) if isinstance(entry, FactRecord) and entry.offset == expiry.caused_by)
    fact = entries[fact_index]
    assert isinstance(fact, FactRecord)
    changed = replaced(entries, fact_index, make_record(fact.group, fact.offset, fact.append_ms + 1, fact.event))
    divergence = verify(changed).groups[0].divergence
    assert divergence is not None
    assert divergence.offset == fact.offset
    assert index < fact_index


def test_verify_missing_or_extra_decision_is_divergence() -> None:
    entries = list(lived())
    index = first(entries, AssignmentIssued)
    gone = entries[index]
    assert isinstance(gone, DecisionRecord)
    missing = verify(entries[:index] + entries[index + 1 :]).groups[0].divergence
    assert missing is not None
    assert (missing.number, missing.offset) == (gone.number, gone.caused_by)
    assert "missing" in missing.problem
    last = next(entry for entry in reversed(entries) if isinstance(entry, DecisionRecord))
    extra = verify([*entries, attrs.evolve(last, number=last.number + 1, index=last.index + 1)]).groups[0].divergence
    assert extra is not None
    assert extra.number == last.number + 1
    assert extra.recomputed is None


def test_verify_unwritten_decisions_are_counted() -> None:
    entries = lived()
    index = max(i for i, entry in enumerate(entries) if isinstance(entry, DecisionRecord) and entry.index == 0)
    group = verify(entries[:index]).groups[0]
    cut = entries[index]
    assert isinstance(cut, DecisionRecord)
    behind = sum(isinstance(entry, DecisionRecord) and entry.caused_by == cut.caused_by for entry in entries)
    assert (group.verdict, group.not_yet_written) == (Verdict.IDENTICAL, behind)


def test_decisions_may_lag_behind_their_facts() -> None:
    entries = lived()
    facts = [entry for entry in entries if isinstance(entry, FactRecord)]
    decisions = [entry for entry in entries if isinstance(entry, DecisionRecord)]
    assert verify([*facts, *decisions]).verdict is Verdict.IDENTICAL


def test_verify_repeat_must_be_identical() -> None:
    entries = list(lived())
    index = first(entries, BalanceEvaluated)
    copy = entries[index]
    assert isinstance(copy, DecisionRecord)
    again = verify([*entries, copy])
    assert (again.verdict, again.groups[0].repeated) == (Verdict.IDENTICAL, 1)
    other = evolve(copy, decision=evolve(copy.decision, verdict="blocked"))
    divergence = verify([*entries, other]).groups[0].divergence
    assert divergence is not None
    assert "twice" in divergence.problem
    assert divergence.number == copy.number


def joined(member_id: str, nonce: str) -> MemberJoined:
    return MemberJoined(member_id=member_id, incarnation=1, join_nonce=nonce)


def of_another_solver() -> list[Entry]:
    config = configured(solver="another solver 1", initial_delay_ms=0)
    return decided((1_000, config), (1_001, TOPOLOGY), (1_002, joined("m1", "a")), (1_003, joined("m2", "b")), any_solver=True)


def test_verify_other_solver_without_unique_plan_cannot_verify() -> None:
    entries = of_another_solver()
    assert verify(entries).verdict is Verdict.IDENTICAL
    round_index = first(entries, AssignmentIssued)
    told_index = first(entries, MemberAssigned)
    unsure = changed_decision(tuple(entries), round_index, unique=False)
    unsure = changed_decision(tuple(unsure), told_index, assignment_epoch=99)
    verification = verify(unsure)
    assert verification.verdict is Verdict.CANNOT_VERIFY
    assert verification.verdict.exit_code == 2
    assert "another solver 1" in verification.problems[0]
    assert "offset" in verification.problems[0]
    sure = verify(changed_decision(tuple(entries), told_index, assignment_epoch=99))
    assert sure.verdict is Verdict.DIVERGENCE


def test_verify_unknown_assignor_cannot_verify() -> None:
    entries = list(of_another_solver())
    config = entries[1]
    assert isinstance(config, FactRecord)
    gone = attrs.evolve(configured(), assignor="gone")
    verification = verify(replaced(entries, 1, make_record(config.group, config.offset, config.append_ms, gone)))
    assert verification.verdict is Verdict.CANNOT_VERIFY
    assert verification.groups[0].offset == 1
    assert "'gone'" in verification.problems[0]


def test_verify_divergence_hides_no_other_group() -> None:
    sink, machine = MemorySink(), GroupMachine()
    for entry in lived():
        if isinstance(entry, FactRecord):
            decisions = machine.step(sink.append_fact(entry.group, entry.append_ms, entry.event))
            sink.append_decisions(decisions)
            if not isinstance(entry.event, LogOpened):
                sink.append_fact("other", entry.append_ms, entry.event)
    verification = verify(sink.entries)
    groups = {group.group: group for group in verification.groups}
    assert verification.verdict is Verdict.IDENTICAL
    assert groups["orders"].compared > 0
    assert groups["other"].compared == 0
    assert groups["other"].not_yet_written == groups["orders"].compared
    index = first(sink.entries, MemberExpired)
    verification = verify(changed_decision(tuple(sink.entries), index, hold_ms=5))
    groups = {group.group: group for group in verification.groups}
    assert groups["orders"].verdict is Verdict.DIVERGENCE
    assert groups["other"].verdict is Verdict.IDENTICAL


def test_verify_damaged_log_ends_at_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "group.jsonl"
    with open_log(path, "w") as log:
        write(log, lived())
    lines = path.read_bytes().splitlines(keepends=True)
    index = next(i for i, line in enumerate(lines) if i > 200 and b"member_id" in line)
    lines[index] = lines[index].replace(b"member_id", b"membex_id", 1)
    path.write_bytes(b"".join(lines))
    with open_log(path) as log:
        verification = verify(log.read())
    assert verification.verdict is Verdict.CANNOT_VERIFY
    assert verification.offset is not None
    assert f"offset {verification.offset}" in verification.problems[0]
    assert verification.records == index


def test_verify_reader_error_ends_the_pass_and_is_in_the_answer() -> None:
    def torn() -> Iterator[Entry]:
        yield from lived()[:50]
        raise DamagedError(49, "not what was written")

    verification = verify(torn())
    assert (verification.records, verification.offset) == (50, 49)
    assert verification.verdict is Verdict.CANNOT_VERIFY


def reports(count: int) -> Iterator[Entry]:
    """A group of one member that reports `count` times, answered by the real machine beforehand."""
    start = decided((1_000, configured(initial_delay_ms=0)), (1_001, TOPOLOGY), (1_002, joined("m1", "a")))
    yield from start
    for number in range(count):
        report = LagReported(member_id="m1", incarnation=1, number=number, assignment_epoch=1)
        yield FactRecord("g", 4 + number, 1_003 + number, report)


def test_memory_does_not_grow_with_the_log() -> None:
    peaks = []
    for count in (2_000, 20_000):
        tracemalloc.start()
        facts = verify(reports(count)).groups[0].facts
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert facts == count + 3
    assert peaks[1] < 1.5 * peaks[0]
