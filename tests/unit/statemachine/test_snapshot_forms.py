"""Snapshots in forms that this build no longer writes (docs/decisions/0023-bases.md).

``tests/data/snapshots``: snapshots of the groups in ``tests/data/logs``, made by the last builds
that wrote each form; their hashes are those that the logs' `Checkpointed` name. `form_2_log.jsonl`
is the log of the second. `form_3_full.hex` has a value in each part. ``pytest --rewrite`` writes
those of the newest form, after its log (`test_verify_forms.py`).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

from equipoise.events.decisions import Checkpointed
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from equipoise.statemachine import snapshots
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.published import Match, compare
from equipoise.statemachine.snapshot_forms import UPCASTERS
from equipoise.statemachine.state import Warmup

DATA = Path(__file__).parents[2] / "data"
NAMES = ("no_form", *(f"form_{form}" for form in range(1, snapshots.FORM + 1)))


def log_of(name: str) -> list[Entry]:
    own = DATA / "snapshots" / f"{name}_log.jsonl"
    with open_log(own if own.exists() else DATA / "logs" / f"{name}.jsonl") as log:
        return list(log.read())


def snapshots_of(name: str) -> dict[int, bytes]:
    lines = map(json.loads, (DATA / "snapshots" / f"{name}.jsonl").read_text().splitlines())
    return {line["offset"]: bytes.fromhex(line["snapshot"]) for line in lines}


def content_of(snapshot: bytes) -> Any:
    return msgpack.unpackb(msgpack.unpackb(snapshot)[3], strict_map_key=False)


def in_form(form: int, content: Any) -> bytes:
    packed = msgpack.packb(content)
    return bytes(msgpack.packb([snapshots.FORMAT, form, zlib.crc32(packed), packed]))


@pytest.mark.parametrize("name", NAMES)
def test_each_form_has_a_fixture_whose_hash_is_the_one_in_its_log(name: str, rewrite: bool) -> None:
    entries = log_of(name)
    if rewrite and name == NAMES[-1]:
        checkpoints = {each.caused_by for each in entries if isinstance(each, DecisionRecord) and isinstance(each.decision, Checkpointed)}
        machine, lines = GroupMachine(), []
        for entry in entries:
            if isinstance(entry, FactRecord):
                machine.step(entry)
                if entry.offset in checkpoints:
                    lines.append(json.dumps({"offset": entry.offset, "snapshot": machine.snapshot().hex()}) + "\n")
        (DATA / "snapshots" / f"{name}.jsonl").write_text("".join(lines))
    hashes = {e.caused_by: e.decision.state_sha256 for e in entries if isinstance(e, DecisionRecord) and isinstance(e.decision, Checkpointed)}
    found = snapshots_of(name)
    assert {offset: hashlib.sha256(snapshot).hexdigest() for offset, snapshot in found.items()} == hashes
    assert {msgpack.unpackb(snapshot)[1] for snapshot in found.values()} == {1 if name == "no_form" else int(name.removeprefix("form_"))}


@pytest.mark.parametrize("name", NAMES)
def test_machine_from_an_earlier_form_decides_what_is_stored_without_the_facts_before(name: str) -> None:
    entries = log_of(name)
    for offset, snapshot in snapshots_of(name).items():
        machine, whole = GroupMachine.restore(snapshot), GroupMachine()
        decisions = []
        for entry in entries:
            if isinstance(entry, FactRecord):
                whole.step(entry)
                if entry.offset > offset:
                    decisions += machine.step(entry)
        stored = [each for each in entries if isinstance(each, DecisionRecord) and each.caused_by > offset]
        assert {compare(theirs, ours) for theirs, ours in zip(stored, decisions, strict=True)} <= {Match.EQUAL, Match.NOT_COMPARED}
        assert machine.snapshot() == whole.snapshot()


def test_every_part_of_form_3_is_read() -> None:
    full = bytes.fromhex((DATA / "snapshots" / "form_3_full.hex").read_text())
    before, after = content_of(full), content_of(snapshots.dump(snapshots.load(full)))
    before[10] = [*before[10], 0]  # its configuration has no number, and another version
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_form_1_takes_neutral_values_for_what_it_lacks() -> None:
    (*_, snapshot) = snapshots_of("form_1").values()
    content = content_of(snapshot)
    task = next(iter(content[13]))
    content[15] = [["m9", 7, 30_000, 5, [task]]]
    content[11][0][12] = {task: [11, 12, False]}
    state = snapshots.load(in_form(1, content))
    assert state.fenced["m9#7"].lease_margin_ms == state.settings.max_step_ms
    member = next(iter(state.members.values()))
    assert list(member.warmup.values()) == [Warmup(11, 12, False, 11, 12)]
    assert (member.measured_records_per_s, member.slot_backoff, member.readiness) == (member.restore_records_per_s, None, "word_or_lag")
    content[2] = None
    assert snapshots.load(in_form(1, content)).fenced["m9#7"].lease_margin_ms == 1_000


def test_there_is_a_step_from_every_form_before() -> None:
    assert set(UPCASTERS) == set(range(1, snapshots.FORM))


@pytest.mark.parametrize("form", [0, snapshots.FORM + 1, "4", None])
def test_a_form_that_this_build_does_not_read_is_named(form: object) -> None:
    with pytest.raises(snapshots.UnreadFormError, match="this build reads forms 1 to") as caught:
        snapshots.load(bytes(msgpack.packb([snapshots.FORMAT, form, 0, b""])))
    assert caught.value.form == form
