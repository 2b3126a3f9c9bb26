"""The machine in the simulated cluster under random faults: invariants 1 to 6 at every step, 7 and
8 for the whole run, the same bytes in another process with another PYTHONHASHSEED, and the same
bytes with every mapping in another order.

`make soak` runs thousands of such storms; the few here are checked more closely.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.events.codec import encode, size_bytes
from equipoise.events.decisions import MemberAssignedPart
from equipoise.events.facts import GroupConfigured, LagReported, MemberJoined
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine import snapshots
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession
from equipoise.statemachine.round_problem import build_problem
from tests.storms import RESTORE_EVERY, draw, run_storm
from tests.support.reference_model.invariants import check_snapshot_replay
from tests.support.reference_model.step_checker import StepChecker

ROOT = Path(__file__).parents[2]


class Kept:
    """A judge that keeps its records."""

    def __init__(self) -> None:
        self.records: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []

    def __call__(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        self.records.append(record)
        self.decisions += decisions


def storm(seed: int, assignor: str = "high_availability", *, switching: bool = False) -> Kept:
    """Returns the log of a storm that passed."""
    kept = Kept()
    outcome = run_storm(draw(seed, assignor, switching=switching), judges=[StepChecker(restore_every=RESTORE_EVERY), kept])
    assert outcome.error is None, str(outcome)
    assert outcome.settled_ms is not None
    return kept


def digest(kept: Kept) -> str:
    """A hash of every decision and of the last state."""
    machine = GroupMachine()
    written = hashlib.sha256()
    for record in kept.records:
        for decision in machine.step(record):
            written.update(encode(decision.decision).payload)
    written.update(machine.snapshot())
    return written.hexdigest()


@settings(max_examples=10)
@given(st.integers(1_000_000, 2**31))
def test_machine_any_storm_keeps_invariants_settles_and_replays(seed: int):
    check_snapshot_replay(storm(seed).records, most_splits=3)


@settings(max_examples=4)
@given(st.integers(1_000_000, 2**31), st.sampled_from(("high_availability", "cooperative", "load_balanced")))
def test_build_problem_after_rounds_equals_that_of_a_restored_state(seed: int, assignor: str):
    """What the machine keeps from its last problem (`problem_cache`) changes no problem. The other
    machine makes each problem from a snapshot.
    """
    machine = GroupMachine()
    for place, record in enumerate(storm(seed, assignor, switching=bool(seed % 2)).records):
        machine.step(record)
        if place % RESTORE_EVERY == 0:
            assert build_problem(machine.state) == build_problem(snapshots.load(machine.snapshot()))


@pytest.mark.parametrize("seed", [2, 6, 1_027])
def test_machine_storm_under_kafka_streams_settles(seed: int):
    """The assignor does not guarantee it, and asks for probing rounds until every task is in place."""
    check_snapshot_replay(storm(seed, "kafka_streams").records, most_splits=3)


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(1_000_000, 2**31))
def test_machine_any_storm_under_load_balanced_settles(seed: int):
    check_snapshot_replay(storm(seed, "load_balanced").records, most_splits=3)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(1_000_000, 2**31))
@example(3_199_835)  # an eager member's task, and its movement to another member, are cancelled in one step
def test_machine_any_storm_with_changing_assignors_settles(seed: int):
    """Any assignor after any other, whatever is in flight (docs/protocol.md#d8); the group settles
    under the last one.
    """
    kept = storm(seed, switching=True)
    assert sum(isinstance(record.event, GroupConfigured) for record in kept.records) > 3
    check_snapshot_replay(kept.records, most_splits=3)


@pytest.mark.parametrize("seed", [3, 13, 1_027])
@pytest.mark.parametrize("assignor", ["lag_aware", "kafka_connect"])
def test_machine_storm_under_assignors_of_consumers_or_workers_settles(assignor: str, seed: int):
    """`kafka_connect` does not guarantee it; it assigns delayed tasks after its delay."""
    check_snapshot_replay(storm(seed, assignor).records, most_splits=3)


@pytest.mark.slow
@settings(max_examples=4)
@given(st.integers(1_000_000, 2**31))
def test_machine_any_storm_under_cooperative_keeps_invariants(seed: int):
    check_snapshot_replay(storm(seed, "cooperative").records, most_splits=3)


def backwards(event: Any) -> Any:
    """The same fact with its mappings built in another order."""
    if isinstance(event, LagReported | MemberJoined):
        return attrs.evolve(event, lags=dict(reversed(event.lags.items())))
    return event


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_machine_order_within_mappings_changes_nothing(seed: int):
    kept = storm(seed)
    machine = GroupMachine()
    decisions: list[DecisionRecord] = []
    turned = 0
    for index, record in enumerate(kept.records):
        event = backwards(record.event) if index % 2 else record.event
        turned += len(getattr(event, "lags", ())) > 1
        decisions += machine.step(attrs.evolve(record, event=event))
    assert turned > 10
    assert decisions == kept.decisions
    told = GroupMachine()
    for record in kept.records:
        told.step(record)
    assert machine.snapshot() == told.snapshot()


PRINT_DIGEST = "import sys; from tests.properties.test_machine_storms import digest, storm; print(digest(storm(int(sys.argv[1]))))"


@pytest.mark.slow
def test_machine_under_another_hash_seed_gives_the_same_bytes():
    digests = set()
    for hash_seed in ("0", "1", "424242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", PRINT_DIGEST, "8"], check=True, env=environment, cwd=ROOT, capture_output=True, text=True)
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


TINY_BYTES = 20
"""Less than any decision with a task: each task and each move has its own part."""


def in_tiny_parts(checkpoint: bytes | None) -> GroupMachine:
    if checkpoint is None:
        return GroupMachine(most_event_bytes=TINY_BYTES)
    return GroupMachine.restore(checkpoint, most_event_bytes=TINY_BYTES)


class InTinyParts(MemberSession):
    """Reports few lags at a time."""

    most_event_bytes = 120


@pytest.mark.parametrize("seed", [3, 10, 24])
def test_machine_with_decisions_in_parts_survives_a_storm(seed: int) -> None:
    """Real members apply the decisions, workers die between two parts, and members' reports come in
    parts too.
    """
    kept = Kept()
    judges: list[Any] = [StepChecker(restore_every=0), kept]
    outcome = run_storm(draw(seed), judges=judges, machine_factory=in_tiny_parts, session_factory=InTinyParts)
    assert outcome.error is None, str(outcome)
    parts = [each.decision for each in kept.decisions if isinstance(each.decision, MemberAssignedPart)]
    assert {part.part for part in parts} >= {1, 2}
    reports = [each.event for each in kept.records if isinstance(each.event, LagReported)]
    assert max(size_bytes(report) for report in reports) <= InTinyParts.most_event_bytes
