"""A log of builds that judged planned changes in the fold gives the same decisions to the byte, and
its states are read in the midst of each change.

``tests/data/judged_in_fold.jsonl.gz``: every kind of verdict, with the hash of the state after each
fact. Written by the last build that judged so. Hashes of a former form are not compared.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.events.decisions import ChangeJudged, Checkpointed
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.published import Match, compare
from equipoise.statemachine.snapshots import FORM
from equipoise.statemachine.watched_change import OF_FORMER_BUILDS

STORED = Path(__file__).parents[2] / "data" / "judged_in_fold.jsonl.gz"
FACTS = 60

with tempfile.TemporaryDirectory() as folder:  # once, and not once for each mutant of `make mutation`
    (Path(folder) / "log.jsonl").write_bytes(gzip.decompress(STORED.read_bytes()))
    with open_log(Path(folder) / "log.jsonl") as stored:
        ENTRIES = list(stored.read())
DECIDED: dict[int, list[DecisionRecord]] = defaultdict(list)
for entry in ENTRIES:
    if isinstance(entry, DecisionRecord):
        DECIDED[entry.caused_by].append(entry)


def parts() -> Iterator[tuple[bytes | None, list[FactRecord]]]:
    """Facts of the log, FACTS together, with the state before them; None: the log begins."""
    facts, machine = [each for each in ENTRIES if isinstance(each, FactRecord)], GroupMachine()
    for begin in range(0, len(facts), FACTS):
        yield machine.snapshot() if begin else None, facts[begin : begin + FACTS]
        for record in facts[begin : begin + FACTS]:
            machine.step(record)


PARTS = list(parts())


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_each_fact_gives_the_decisions_and_the_state_that_it_gave(part: int) -> None:
    """From a state in the midst of the log on, with the bytes that the former build hashed."""
    before, facts = PARTS[part]
    if before is not None:
        last = DECIDED[facts[0].offset - 1][-1].decision
        assert isinstance(last, Checkpointed)
        assert last.form != FORM or hashlib.sha256(before).hexdigest() == last.state_sha256
    machine = GroupMachine() if before is None else GroupMachine.restore(before)
    for record in facts:
        decided = machine.step(record)
        for theirs, ours in zip(DECIDED[record.offset], decided, strict=True):
            assert compare(theirs, ours) is (Match.NOT_COMPARED if is_of_former_form(theirs) else Match.EQUAL)


def is_of_former_form(entry: DecisionRecord) -> bool:
    return isinstance(entry.decision, Checkpointed) and entry.decision.form != FORM


def test_log_has_each_kind_of_verdict() -> None:
    judged = [each.decision for decided in DECIDED.values() for each in decided if isinstance(each.decision, ChangeJudged)]
    assert len(judged) == 20
    assert {each.outcome for each in judged} == {"at_rest", "late", "too_much", "replaced", "refused"}
    assert {name for each in judged for name in each.above} == {"moves", "rest_ms", "limit"}
    assert sum(each.undone for each in judged) == 1


def test_log_verifies_to_the_byte() -> None:
    found = verify(ENTRIES)
    assert found.verdict is Verdict.IDENTICAL, found.problems
    former = sum(is_of_former_form(each) for decided in DECIDED.values() for each in decided)
    assert [(each.not_compared, each.not_yet_written) for each in found.groups] == [(former, 0)]


def test_constants_of_former_builds_stay() -> None:
    """Decisions in logs follow from them."""
    allowance = {"unavailable_task_ms": 1_000, "moves": 0, "rest_ms": 10_000}
    assert (OF_FORMER_BUILDS.allowance, OF_FORMER_BUILDS.near_records, OF_FORMER_BUILDS.rest_look_ms) == (allowance, 10_000, 1_000)
