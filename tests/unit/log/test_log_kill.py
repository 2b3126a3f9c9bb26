"""kill -9 in the middle of an append: the log holds whole committed records and nothing else, and
appending continues.

A writer in a process of its own appends facts with their decisions and prints each offset once it
is committed; it is killed at random moments.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from tests.unit.log.logs_under_test import FORMS

ROOT = Path(__file__).parents[3]
KILLS = 8

WRITER = """
import sys
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import LogOpened, MemberJoined
from equipoise.log import open_log
from equipoise.events.records import DecisionRecord, Entry

with open_log(sys.argv[1], "a") as log:
    number = 2 * max(0, log.position() - 1)
    while True:
        with log.transaction():
            if log.position() == 0:
                log.append_fact("", 0, LogOpened(log_id="a1"))
            fact = log.append_fact("g", 1, MemberJoined(member_id="m", incarnation=1, join_nonce="n" * (number * 37 % 1000 + 1)))
            made = [EventRejected(kind=5, code="x" * (number % 200 + 1)), EventRejected(kind=5, code="y")]
            log.append_decisions(
                DecisionRecord("a1", "g", number + 1 + index, fact.offset, index, fact.checksum, decision) for index, decision in enumerate(made)
            )
        number += 2
        print(fact.offset, flush=True)
"""


def killed_writer(path: Path, seconds: float) -> int:
    """Runs the writer, kills it `seconds` after its first commit, and returns the last offset it
    reported as committed.
    """
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(seconds)
        writer.kill()
        said = [first, *writer.stdout.readlines()]
    assert first, "the writer could not go on with the log it was given"
    return int([line for line in said if line.endswith("\n")][-1])


def complete(read: list[Entry]) -> tuple[int, int]:
    """Facts after the opening, and decisions, of a log that is dense and sound (its reader would
    have stopped).
    """
    assert [record.offset for record in read if isinstance(record, FactRecord)] == list(range(len([r for r in read if isinstance(r, FactRecord)])))
    return sum(isinstance(record, FactRecord) for record in read) - 1, sum(isinstance(record, DecisionRecord) for record in read)


@pytest.mark.parametrize("form", FORMS)
def test_writer_killed_leaves_whole_records_and_next_continues(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    moments = random.Random(form)
    before = 0
    for _ in range(KILLS):
        committed = killed_writer(path, moments.uniform(0, 0.15))
        with open_log(path, "a") as log:  # as the next writer does; JSON Lines cuts off a torn line here
            read = list(log.read())
            assert log.count() == len(read)
            facts, decisions = complete(read)
            assert log.position() == facts + 1
        assert facts >= committed > before
        if path.suffix == ".db":  # a fact and its decisions came together or not at all
            assert decisions == 2 * facts
        elif decisions != 2 * facts:  # a torn transaction: its fact, and the decisions before the tear
            assert 2 * (facts - 1) <= decisions < 2 * facts
            finish(path, read)
        before = committed


def finish(path: Path, read: list[Entry]) -> None:
    """Appends the decisions that the killed writer did not write, as a worker does at takeover
    (docs/protocol.md#l5).
    """
    from equipoise.events.decisions import EventRejected

    fact = [record for record in read if isinstance(record, FactRecord)][-1]
    there = [record for record in read if isinstance(record, DecisionRecord) and record.caused_by == fact.offset]
    number = sum(isinstance(record, DecisionRecord) for record in read)
    missing = range(len(there), 2)
    with open_log(path, "a") as log:
        log.append_decisions(
            DecisionRecord("a1", "g", number + 1 + at, fact.offset, index, fact.checksum, EventRejected(kind=5, code="z"))
            for at, index in enumerate(missing)
        )
