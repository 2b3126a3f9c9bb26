"""Logs that begin at a base (docs/protocol.md#l10): every reader answers from there as it does from
the first record.
"""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.decisions import Checkpointed, MemberAssigned
from equipoise.events.errors import InputError
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.log import open_log
from equipoise.log.kafka.bases_topic import BaseStart
from equipoise.log.rows import BaseRow, FactRow
from equipoise.replay.bases import StoredBases, read_as_one, stored_bases
from equipoise.replay.explanation import explain
from equipoise.replay.group_view import show
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.prediction.reading import read_present
from equipoise.replay.sizing.size import read_sizable
from equipoise.replay.timelines import build_timeline
from equipoise.replay.verification import GroupVerifier, Verdict, verify
from equipoise.replay.watch import Watch
from equipoise.replay.whatif.fit import fit
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.snapshots import FORM
from tests.unit.replay.lived import lived, write
from tests.unit.replay.test_watch import arrivals


@functools.cache
def place() -> tuple[int, int, bytes]:
    """Fact, number and state of the second `Checkpointed` of `lived`."""
    machine, found = GroupMachine(), 0
    for entry in lived():
        if isinstance(entry, FactRecord) and any(isinstance(each.decision, Checkpointed) for each in machine.step(entry) or ()):
            found += 1
            if found == 2:
                return entry.offset, machine.state.number, machine.snapshot()
    raise AssertionError("there are two")


def offset_of(entry: Entry) -> int:
    return entry.caused_by if isinstance(entry, DecisionRecord) else entry.offset


def based(entries: tuple[Entry, ...] = (), begins: int | None = None) -> list[Entry]:
    """`lived` without what is before its base. `begins`: its first fact; None: that behind the
    base's.
    """
    offset, number, state = place()
    begins = offset + 1 if begins is None else begins
    opened, *rest = entries or lived()
    first = next(each for each in rest if isinstance(each, FactRecord))
    base = BaseState(group=first.group, offset=offset, number=number, begins_offset=begins, append_ms=1_000, state=state)
    return [opened, base, *(entry for entry in rest if offset_of(entry) >= begins)]


def test_log_from_its_base_is_identical_and_says_where_it_begins() -> None:
    offset, number, _ = place()
    whole, part = verify(lived()), verify(based())
    (of_whole,), (of_part,) = whole.groups, part.groups
    assert (part.verdict, part.begins, whole.begins) == (Verdict.IDENTICAL, (offset + 1, 1_000), None)
    assert (of_part.compared, of_part.not_yet_written, of_part.begins_offset) == (of_whole.compared - number, 0, offset)
    assert part.document()["begins"] == {"offset": offset + 1, "append_ms": 1_000}


def test_records_of_the_group_that_the_base_has_are_passed_over() -> None:
    (group,) = verify(based(begins=place()[0] - 5)).groups
    assert (group.verdict, group.facts) == (Verdict.IDENTICAL, verify(based()).groups[0].facts)


def test_change_behind_the_base_is_a_divergence() -> None:
    entries = based()
    at = next(at for at, each in enumerate(entries) if isinstance(each, DecisionRecord) and isinstance(each.decision, MemberAssigned))
    wrong = entries[at]
    assert isinstance(wrong, DecisionRecord)
    assert isinstance(wrong.decision, MemberAssigned)
    entries[at] = attrs.evolve(wrong, decision=attrs.evolve(wrong.decision, released=not wrong.decision.released))
    assert verify(entries).verdict is Verdict.DIVERGENCE


@pytest.mark.parametrize("changes", [{"state": b"none"}, {"number": 1}, {"offset": 5}])
def test_base_with_another_state_cannot_be_verified(changes: dict[str, bytes | int]) -> None:
    opened, base, *rest = based()
    assert isinstance(base, BaseState)
    found = verify([opened, attrs.evolve(base, **changes), *rest])  # type: ignore[arg-type]
    assert found.verdict is Verdict.CANNOT_VERIFY
    assert "the state at the base" in found.groups[0].problem


def test_states_of_other_bases_are_compared_with_the_recomputed_ones() -> None:
    hashes = {
        (each.group, each.caused_by): (FORM, each.decision.state_sha256)
        for each in lived()
        if isinstance(each, DecisionRecord) and isinstance(each.decision, Checkpointed)
    }
    found = verify(lived(), bases=StoredBases(hashes=hashes))
    assert (found.verdict, found.groups[0].bases) == (Verdict.IDENTICAL, len(hashes))
    last = max(hashes)
    wrong = verify(lived(), bases=StoredBases(hashes={**hashes, last: (FORM, "0" * 64)}))
    assert wrong.verdict is Verdict.DIVERGENCE
    assert wrong.groups[0].divergence is not None
    assert wrong.groups[0].divergence.problem == "the base of the log has another state after this fact"
    other = verify(lived(), bases=StoredBases(hashes={last: (FORM + 1, "0" * 64)}))
    assert (other.verdict, other.groups[0].bases) == (Verdict.IDENTICAL, 0)
    assert verify(lived(), bases=StoredBases(problem="the base at offset 9 does not name one before it")).verdict is Verdict.CANNOT_VERIFY


def test_verification_that_began_at_a_base_can_be_saved() -> None:
    opened, *rest = based()
    group = GroupVerifier("orders")
    group.machine.step(opened)  # type: ignore[arg-type]
    for number, entry in enumerate(rest):
        group.take(entry)
        if number % 7 == 0:
            group = GroupVerifier.restore(group.save())
    assert group.answer() == verify(based()).groups[0]


def test_show_from_the_base_is_that_from_the_first_record() -> None:
    assert show(based()) == show(lived())
    offset = place()[0]
    assert show(based(), at_offset=offset) == show(lived(), at_offset=offset)
    with pytest.raises(InputError, match="the log begins at the base at offset"):
        show(based(), at_offset=offset - 1)


def test_explanation_from_the_base_has_the_same_state_and_future() -> None:
    for task in (TaskId(0, 0), TaskId(0, 1)):
        part, whole = explain(based(), task), explain(lived(), task)
        assert (part.row, part.what_next, part.offset) == (whole.row, whole.what_next, whole.offset)
        if not part.moves:
            assert "since before the base at offset" in part.why_here[0]


def test_timeline_from_the_base_is_the_end_of_the_whole_one() -> None:
    part, whole = build_timeline(based()), build_timeline(lived())
    begin_ms = next(each.append_ms for each in lived() if isinstance(each, FactRecord) and each.offset == place()[0] + 1)
    ended = [(each.task, each.member_id, each.condition, each.to_ms) for each in whole.intervals if each.from_ms > begin_ms]
    assert ended
    assert set(ended) <= {(each.task, each.member_id, each.condition, each.to_ms) for each in part.intervals}
    assert {(life.member_id, life.incarnation) for life in part.lifelines} <= {(life.member_id, life.incarnation) for life in whole.lifelines}
    alive = [{life.member_id for life in each.lifelines if life.ended_ms is None} for each in (part, whole)]
    assert alive[0] == alive[1]
    assert part.tasks == whole.tasks
    assert part.rounds == tuple(each for each in whole.rounds if each.offset > place()[0])


def test_readers_that_need_the_first_record_say_so() -> None:
    with pytest.raises(InputError, match=r"begins at a base .* read the archive"):
        read_recorded_inputs(based())


@pytest.mark.parametrize("begins_before", [0, 5])
def test_predictions_begin_at_the_base(begins_before: int) -> None:
    entries = based(begins=place()[0] + 1 - begins_before)
    (whole, of_whole), (part, of_part) = read_present(lived()), read_present(entries)
    assert part == whole
    assert of_part.heartbeat_interval_ms == of_whole.heartbeat_interval_ms
    measured = fit(based()).observations
    assert measured
    assert set(measured) < set(fit(lived()).observations)
    assert read_sizable(entries).present == whole


def test_state_that_is_known_is_not_folded() -> None:
    machine = GroupMachine()
    for entry in lived():
        if isinstance(entry, FactRecord):
            machine.step(entry)
    without_facts = [entry for entry in based() if isinstance(entry, DecisionRecord)]
    assert read_present(without_facts, group=machine.state.group, state=machine.state)[0] == read_present(lived())[0]


def row_of(base: Entry) -> BaseRow:
    assert isinstance(base, BaseState)
    return BaseRow.of(base.group, base.offset, base.number, base.begins_offset, base.append_ms, base.state)


def test_watch_from_a_base_verifies_what_follows() -> None:
    opened, base, *rest = based()
    assert isinstance(opened, FactRecord)
    assert isinstance(base, BaseState)
    (first, *arrived) = arrivals([opened, *rest])
    from equipoise.log.kafka.envelope import fact_row

    start = BaseStart(fact_row(first.key, first.value, 0, first.append_ms), (row_of(base),), base.begins_offset, 0)
    groups: dict[str, bytes] = {}
    assert Watch(groups, start=start).feed(arrived) == []
    assert GroupVerifier.restore(groups[base.group]).answer() == verify(based()).groups[0]


LOGS = ("log.db", "log.jsonl", "archive/")


def copied(folder: Path, name: str) -> str:
    """A log that begins at the base, as `archive` writes it: the states first, then the rest."""
    source, target = folder / "whole.jsonl", str(folder / name) + ("/" if name.endswith("/") else "")
    with open_log(source, "a") as log:
        write(log, list(lived()))
    _, base, *_ = based()
    assert isinstance(base, BaseState)
    with open_log(source) as whole, open_log(target, "a") as log:
        rows = [row for row, _ in whole.checked_rows()]  # type: ignore[attr-defined]
        with log.transaction():
            log.append_row(rows[0])
            log.append_row(row_of(base))
        assert log.position() == base.begins_offset
        rest = [row for row in rows[1:] if (row.offset if isinstance(row, FactRow) else row.caused_by) >= base.begins_offset]
    for part in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
        with open_log(target, "a") as log, log.transaction():
            assert not log.append_row(row_of(base))  # it is there
            for row in part:
                log.append_row(row)
    return target


@pytest.mark.parametrize("name", LOGS)
def test_every_form_of_log_may_begin_at_a_base(tmp_path: Path, name: str) -> None:
    target = copied(tmp_path, name)
    with open_log(target) as log:
        assert list(log.read()) == [attrs.evolve(each, append_ms=1_000) if isinstance(each, BaseState) else each for each in based()]
        assert log.read(group="orders") is not None
        assert [each for each in log.read(group="orders")] == list(log.read())  # noqa: C416 an iterator that is checked as it goes
        assert verify(log.read()).verdict is Verdict.IDENTICAL
        assert stored_bases(log) == StoredBases()
        later = log.position() - 3
        assert offset_of(next(iter(log.read(later)))) == later
        with pytest.raises(InputError, match="continues with a log in Kafka"):
            list(read_as_one(target, log))
    said = CliRunner().invoke(main, ["verify", target])
    assert said.exit_code == 0, said.output
    assert f"read from the base at offset {place()[0] + 1}, " in said.stdout
    shown = CliRunner().invoke(main, ["status", target])
    assert "before it: the archive" in shown.stderr
    copy = CliRunner().invoke(main, ["archive", target, "--to", str(tmp_path / "again.db")])
    if name != "archive/":
        assert copy.exit_code == 0, copy.output
        assert CliRunner().invoke(main, ["verify", str(tmp_path / "again.db")]).exit_code == 0


def test_archive_that_begins_at_a_base_is_not_restored(tmp_path: Path) -> None:
    begins = place()[0] + 1
    restoring = CliRunner().invoke(main, ["archive", copied(tmp_path, "archive/"), "--to", "kafka://127.0.0.1:1"])
    assert restoring.exit_code == 2
    assert f"partition 0 of the archive begins at the base at offset {begins}, and a log is restored from its first record" in restoring.stderr


def test_compacted_archive_still_begins_at_its_base(tmp_path: Path) -> None:
    target = copied(tmp_path, "archive/")
    with open_log(target) as log:
        before = list(log.read())
    assert CliRunner().invoke(main, ["archive", target, "--compact"]).exit_code == 0
    with open_log(target) as log:
        assert list(log.read()) == before
        assert list(log.read(group="orders")) == before
