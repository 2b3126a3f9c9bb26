"""A log of builds that judged planned changes in the fold verifies to the byte, and its states are
read in the midst of each change.

``tests/data/judged_in_fold.jsonl.gz``: every kind of verdict, with the hash of the state after each
fact. Written by the last build that judged so.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from equipoise.events.decisions import ChangeJudged, Checkpointed
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.watched_change import OF_FORMER_BUILDS

STORED = Path(__file__).parents[1] / "data" / "judged_in_fold.jsonl.gz"
TIMES = 20
"""Changes that were judged in it."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    path = tmp_path_factory.mktemp("stored") / "log.jsonl"
    path.write_bytes(gzip.decompress(STORED.read_bytes()))
    with open_log(path) as log:
        return list(log.read())


def test_log_verifies_to_the_byte(entries: list[Entry]) -> None:
    found = verify(entries)
    assert found.verdict is Verdict.IDENTICAL, found.problems
    assert [(each.not_compared, each.not_yet_written) for each in found.groups] == [(0, 0)]
    judged = [each.decision for each in entries if isinstance(each, DecisionRecord) and isinstance(each.decision, ChangeJudged)]
    assert len(judged) == TIMES
    assert {each.outcome for each in judged} == {"at_rest", "late", "too_much", "replaced", "refused"}
    assert {name for each in judged for name in each.above} == {"moves", "rest_ms", "limit"}
    assert sum(each.undone for each in judged) == 1


def test_states_of_former_builds_are_read_in_the_midst_of_a_change(entries: list[Entry]) -> None:
    facts = [each for each in entries if isinstance(each, FactRecord)]
    hashes = {e.caused_by: e.decision.state_sha256 for e in entries if isinstance(e, DecisionRecord) and isinstance(e.decision, Checkpointed)}
    machine, watched = GroupMachine(), 0
    for record in facts:
        machine.step(record)
        if record.offset in hashes and not record.offset % 7:
            stored = machine.snapshot()
            assert hashlib.sha256(stored).hexdigest() == hashes[record.offset], "the bytes are those that the former build hashed"
            machine = GroupMachine.restore(stored)
            watched += machine.state.change is not None and machine.state.change.counts is not None
    assert watched > 70


def test_constants_of_former_builds_stay() -> None:
    """Decisions in logs follow from them."""
    allowance = {"unavailable_task_ms": 1_000, "moves": 0, "rest_ms": 10_000}
    assert (OF_FORMER_BUILDS.allowance, OF_FORMER_BUILDS.near_records, OF_FORMER_BUILDS.rest_look_ms) == (allowance, 10_000, 1_000)
