"""Hashes of the state (docs/protocol.md#l7): of this build's form they are compared; of another one
they are counted, and never called identical.

``tests/data/logs``: `no_form.jsonl`, written before `Checkpointed` named a form; `form_1.jsonl` and
later ones, the same group with that form. Two members, two tasks, a standby each. ``pytest
--rewrite`` writes the newest one again, when something else that is decided in it has changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.decisions import Checkpointed, MemberAssigned
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, Entry
from equipoise.log import open_log
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.verification import GroupVerifier, Verdict, verify
from equipoise.statemachine.snapshots import FORM
from tests.unit.replay.lived import START_MS, configured, write

LOGS = Path(__file__).parents[2] / "data" / "logs"
TODAY = LOGS / f"form_{FORM}.jsonl"
BEFORE = LOGS / "no_form.jsonl"
EARLIER = [BEFORE, *(LOGS / f"form_{form}.jsonl" for form in range(1, FORM))]


def entries(path: Path) -> list[Entry]:
    with open_log(path) as log:
        return list(log.read())


def hashes(of: list[Entry]) -> list[int]:
    return [index for index, entry in enumerate(of) if isinstance(entry, DecisionRecord) and isinstance(entry.decision, Checkpointed)]


evolve: Any = attrs.evolve


def changed(of: list[Entry], index: int, **changes: Any) -> list[Entry]:
    entry = of[index]
    assert isinstance(entry, DecisionRecord)
    return [*of[:index], attrs.evolve(entry, decision=evolve(entry.decision, **changes)), *of[index + 1 :]]


def small_group() -> list[Entry]:
    sink = MemorySink()
    parts = (Subtopology(subtopology=0, partitions=2, stateful=True, source_topics=("orders",), changelog_topics=("store",)),)
    config = ClusterConfig(
        group="orders",
        log_id=f"form-{FORM}",
        configured=configured(checkpoint_every_records=8, num_standbys=1, max_warmups=1),
        topology=TopologyDeclared(epoch=0, subtopologies=parts),
        growth={("store", partition): steady(records=20_000, records_per_s=50, start_ms=START_MS) for partition in range(2)},
        start_ms=START_MS,
    )
    cluster = SimulatedCluster(config, seed=11, sink=sink)
    cluster.start_worker()
    for number in (1, 2):
        cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=1, rack="a", tags={"zone": f"z{number}"}))
    cluster.run_until(START_MS + 25_000)
    return list(sink.entries)


def test_state_form_equals_that_of_stored_hashes(rewrite: bool) -> None:
    """If this fails with equal decisions, the same state gives other bytes: raise
    `equipoise.statemachine.snapshots.FORM`, and keep the file."""
    if rewrite:
        TODAY.unlink(missing_ok=True)
        with open_log(TODAY, "a") as log:
            write(log, small_group())
    stored = entries(TODAY)
    (group,) = verify(stored).groups
    assert group.divergence is None
    assert (group.verdict, group.checkpoints, group.not_compared) == (Verdict.IDENTICAL, 4, 0)
    assert hashes(stored) == hashes(small_group())


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_hashes_of_an_earlier_form_are_counted_and_everything_else_is_compared(path: Path) -> None:
    stored = entries(path)
    verification = verify(stored)
    (group,) = verification.groups
    decisions = sum(isinstance(entry, DecisionRecord) for entry in stored)
    assert verification.verdict is Verdict.IDENTICAL
    assert (group.checkpoints, group.not_compared, group.compared, group.not_yet_written) == (0, 4, decisions - 4, 0)

    assigned = next(index for index, e in enumerate(stored) if isinstance(e, DecisionRecord) and isinstance(e.decision, MemberAssigned))
    assert verify(changed(stored, assigned, standby=())).verdict is Verdict.DIVERGENCE
    assert verify(changed(stored, hashes(stored)[1], seq=5)).verdict is Verdict.DIVERGENCE, "its seq is compared"
    assert verify([entry for index, entry in enumerate(stored) if index != hashes(stored)[1]]).verdict is Verdict.DIVERGENCE


@pytest.mark.parametrize("form", [0, FORM + 1])
def test_hash_of_another_form_is_not_compared(form: int) -> None:
    stored = entries(TODAY)
    wrong = hashes(stored)[1]
    assert verify(changed(stored, wrong, state_sha256="0" * 64)).verdict is Verdict.DIVERGENCE
    (group,) = verify(changed(stored, wrong, state_sha256="0" * 64, form=form)).groups
    assert (group.verdict, group.checkpoints, group.not_compared) == (Verdict.IDENTICAL, 3, 1)


def test_hash_repeated_in_other_form_is_copy() -> None:
    """Two workers at once, each with a build of its own."""
    stored = entries(TODAY)
    index = hashes(stored)[1]
    entry = stored[index]
    assert isinstance(entry, DecisionRecord)
    older = changed(stored, index, form=0, state_sha256="0" * 64)[index]
    for first, second in ((entry, older), (older, entry)):
        (group,) = verify([*stored[:index], first, second, *stored[index + 1 :]]).groups
        assert (group.verdict, group.repeated) == (Verdict.IDENTICAL, 1)
    another = changed(stored, index, state_sha256="0" * 64)[index]
    assert verify([*stored[:index], entry, another, *stored[index + 1 :]]).verdict is Verdict.DIVERGENCE


@pytest.mark.parametrize("path", [TODAY, *EARLIER], ids=lambda path: path.stem)
def test_hash_and_other_decision_are_never_copies(path: Path) -> None:
    stored = entries(path)
    hashed = stored[hashes(stored)[1]]
    other = next(each for each in stored if isinstance(each, DecisionRecord) and isinstance(each.decision, MemberAssigned))
    assert isinstance(hashed, DecisionRecord)
    for first, second in ((hashed, other), (other, hashed)):
        at = stored.index(first) + 1
        disguised = attrs.evolve(first, decision=second.decision)
        if isinstance(second.decision, Checkpointed):
            disguised = attrs.evolve(disguised, decision=evolve(second.decision, form=0))
        assert verify([*stored[:at], disguised, *stored[at:]]).verdict is Verdict.DIVERGENCE


def test_group_verifier_save_keeps_not_compared_hashes() -> None:
    stored = entries(BEFORE)
    group = GroupVerifier("orders")
    group.machine.step(stored[0])  # type: ignore[arg-type]
    for entry in stored[1:]:
        group.take(entry)
        group = GroupVerifier.restore(group.save())
    assert group.answer() == verify(stored).groups[0]
    assert group.answer().not_compared == 4


def test_verify_command_counts_uncompared() -> None:
    said = CliRunner().invoke(main, ["verify", str(BEFORE)])
    assert said.exit_code == 0, said.stderr
    assert "not compared: 4 state hashes in a form of the state that this build does not write" in said.stdout
    assert "not compared" not in CliRunner().invoke(main, ["verify", str(TODAY)]).stdout
