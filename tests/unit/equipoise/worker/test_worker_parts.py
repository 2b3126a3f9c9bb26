"""Parts of the worker that need no broker: checkpoints in a compacted topic, settings, metrics, and
rows without a group.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable
from pathlib import Path

import attrs
import msgpack
import pytest

from equipoise.events import codec
from equipoise.events.codec import make_record
from equipoise.events.decisions import Checkpointed, Decision, MemberAsked
from equipoise.events.errors import DamagedError, InputError
from equipoise.events.facts import Fact, LogOpened, MemberJoined, MemberLeft, ProbingTick, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord
from equipoise.folding import checkpoints
from equipoise.folding.checkpoints import Index, checkpoint_records, find, index_records
from equipoise.folding.log_reading import published_identity
from equipoise.hosting.live_settings import LiveSettings, read_settings
from equipoise.log import open_log
from equipoise.log.kafka.envelope import StoredDecision, fact_row, pack_decision, stored_decision
from equipoise.log.rows import DecisionRow
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.published import OTHER_FORM, UnreadIdentity, identity_of
from equipoise.statemachine.snapshots import FORM
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.settings import WorkerSettings
from tests.groups import LOG_OPENED, configured

Pair = tuple[bytes, bytes | None]


def stored(offset: int, state: bytes = b"state", group: str = "g") -> StoredCheckpoint:
    return StoredCheckpoint(group=group, offset=offset, number=offset * 2, state=state)


def compacted(records: list[Pair]) -> list[Pair]:
    """The records that the topic keeps: the last of each key."""
    last = {key: place for place, (key, _) in enumerate(records)}
    return [record for place, record in enumerate(records) if last[record[0]] == place]


def test_incomplete_checkpoint_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PART_BYTES", 4)
    kept = [*checkpoint_records("log", stored(5, b"twelve bytes"), 0), *checkpoint_records("log", stored(9, b"and these are more"), 1)]
    third = list(checkpoint_records("log", stored(14, b"third, long one"), 0))
    assert len(third) == 4
    for cut in range(len(third)):
        found = find("log", compacted([*kept, *third[:cut]]))
        assert (found.checkpoints["g"], found.slots["g"]) == (stored(9, b"and these are more"), 1)
    found = find("log", compacted([*kept, *third]))
    assert (found.checkpoints["g"], found.slots["g"]) == (stored(14, b"third, long one"), 0)
    shorter = list(checkpoint_records("log", stored(20, b"xy"), 1))  # parts of the longer checkpoint before it stay in its slot
    assert find("log", compacted([*kept, *third, *shorter])).checkpoints["g"] == stored(20, b"xy")


def test_find_ignores_records_of_other_logs_and_other_records() -> None:
    of_another = [*checkpoint_records("another", stored(5), 0), *index_records("another", Index(position=9))]
    records: list[Pair] = [(b"rubbish", b"rubbish"), (b"", None), *of_another]
    found = find("log", records)
    assert (found.checkpoints, found.index) == ({}, Index())


def published(decision: Decision) -> StoredDecision:
    return stored_decision(b"g", pack_decision(DecisionRecord("log", "g", 7, 12, 0, 99, decision)), "decisions/0@5")


def test_published_identity_is_the_checksum_and_of_another_form_unknown() -> None:
    """Also for bytes of an earlier version: `Checkpointed` version 1 has no form."""
    of_today = Checkpointed(state_sha256="a" * 64, seq=5, form=FORM)
    for decision in (of_today, MemberAsked(member_id="m1", incarnation=1, leave=True)):
        stored_today = published(decision)
        assert published_identity(stored_today) == stored_today.row.checksum
    assert published_identity(published(attrs.evolve(of_today, form=FORM + 1))) == OTHER_FORM
    row = published(of_today).row
    _, payload = codec.payload_from_json("Checkpointed", 1, {"state_sha256": "a" * 64, "seq": 5})
    assert published_identity(StoredDecision(attrs.evolve(row, version=1, payload=payload), "log", 99)) == OTHER_FORM


def test_index_is_valid_only_with_all_its_checkpoints() -> None:
    index = Index(position=50, recovery_offset=10, decisions_offset=3, checkpoints={"g": 9, "h": 30})
    parts: list[list[Pair]] = [list(checkpoint_records("log", stored(9), 0)), list(checkpoint_records("log", stored(30, group="h"), 0))]
    assert find("log", [*itertools.chain(*parts), *index_records("log", index)]).index == index
    assert find("log", [*parts[0], *index_records("log", index)]).index == Index()
    older = list(checkpoint_records("log", stored(29, group="h"), 0))
    assert find("log", [*parts[0], *older, *index_records("log", index)]).index == Index()
    deleted: list[Pair] = [(key, None) for key, _ in parts[1]]
    assert find("log", [*itertools.chain(*parts), *index_records("log", index), *deleted]).index == Index()


def test_settings_come_from_flags_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "equipoise.toml"
    file.write_text('[connection]\nbootstrap = "file:1"\nprefix = "p"\n[worker]\nhttp_port = 1\npartitions = 3\n[member]\nanything = 1\n')
    environment = {"EQUIPOISE_HTTP_PORT": "2", "EQUIPOISE_PARTITIONS": "4", "EQUIPOISE_MEMBER_ID": "m"}
    settings = read_settings(WorkerSettings, {"http_port": "5"}, table="worker", file=file, environ=environment)
    assert (settings.bootstrap, settings.prefix, settings.partitions, settings.http_port) == ("file:1", "p", 4, 5)
    assert settings.http_host == "127.0.0.1"
    assert read_settings(LiveSettings, {}, file=file, environ={}).topics.facts == "p.facts"
    wrong = {"[wroker]\na = 1\n": "wroker: settings belong in", "x": "not valid TOML", "[worker]\nprefix = 7\n": "prefix: 7 is not a text"}
    wrong["[worker]\notlp_endpoint = 'collector:4318'\n"] = "is no URL; write http://host:4318/v1/traces"
    for text, says in wrong.items():
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            read_settings(WorkerSettings, {}, table="worker", file=file, environ={})


@pytest.mark.parametrize("name", ["log.db", "log.jsonl"])
def test_record_without_a_group_keeps_its_offset_and_is_not_read(tmp_path: Path, name: str) -> None:
    row = fact_row(None, b"rubbish", 1, 7)
    with open_log(tmp_path / name, "w") as log:
        log.append_fact("", 0, LogOpened(log_id="log"))
        log.append_payload(row.group, row.append_ms, row.kind, row.version, row.payload)
        log.append_fact("g", 9, ProbingTick())
        with pytest.raises(InputError):
            log.append_fact("", 9, ProbingTick())
    with open_log(tmp_path / name) as log:
        assert [getattr(entry, "offset", None) for entry in log.read()] == [0, 2]
        assert [getattr(entry, "offset", None) for entry in log.read(1)] == [2]
    with open_log(tmp_path / name, "a") as log:
        assert log.position() == 3


def test_record_without_a_group_at_a_wrong_place_is_damage(tmp_path: Path) -> None:
    from equipoise.log.rows import Order

    order = Order()
    with pytest.raises(DamagedError):
        order.take(fact_row(None, b"rubbish", 0, 7))


def test_pages_have_every_metric_and_halt_code() -> None:
    root = Path(__file__).parents[4]
    metrics, operations = ((root / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("metrics", "operations"))
    counts = WorkerMetrics()
    counts.observe(list, list, lambda: 1, lambda: 0.0)
    names = {line.split()[2] for line in counts.text().decode().splitlines() if line.startswith("# TYPE")}
    told = set(re.findall(r"`(equipoise_(?!member_|stream_|ready)[a-z_]+)(?:\{[a-z,]+\})?`", metrics))
    assert told == {name for name in names if not name.endswith("_created")}
    sources = [root / "statemachine" / f"{name}.py" for name in ("machine", "partition", "published")]
    sources.append(root / "equipoise" / "folding" / "log_reading.py")
    codes = {code for path in sources for code in re.findall(r'(?:offset, |PublishedProblem\()"([a-z_]+)"', path.read_text(encoding="utf-8"))}
    assert codes >= {"assignor_missing", "solver_missing", "published_differs", "published_gap", "event_unknown", "defect"}
    assert [code for code in sorted(codes) if f"`{code}`" not in operations] == []


def test_unavailability_is_counted_between_facts_but_not_while_another_worker_leads() -> None:
    counts = WorkerMetrics()
    machine = GroupMachine()
    machine.step(make_record("g", 0, 0, LOG_OPENED))
    offsets = itertools.count(1)

    def fold(append_ms: int, fact: Fact) -> float:
        record = make_record("g", next(offsets), append_ms, fact)
        counts.folded(record, machine.step(record), machine.state, live=True, is_new=True)
        return counts.unavailable_s.get("g", 0.0)

    assert fold(0, configured()) == 0.0
    part = Subtopology(subtopology=0, partitions=4, stateful=False)
    assert fold(1_000, TopologyDeclared(epoch=1, subtopologies=(part,))) == 0.0
    assert fold(3_500, ProbingTick()) == 0.0, "its first round is still to come"
    joined = MemberJoined(member_id="m1", incarnation=1, topology_epoch=1, join_nonce="n")
    assert fold(4_000, joined) == 0.0
    at_ms = 4_000
    while not machine.state.owner:  # the group gathers
        at_ms += 500
        seconds = fold(at_ms, ProbingTick())
    assert seconds == 0.0
    assert fold(at_ms + 5_000, ProbingTick()) == seconds
    fold(at_ms + 6_000, MemberLeft(member_id="m1", incarnation=1))
    counts.forget(["g"])
    assert fold(at_ms + 20_000, ProbingTick()) == seconds
    assert fold(at_ms + 21_000, ProbingTick()) == seconds + 4


def test_published_identity_does_not_depend_on_the_build_that_wrote_the_decision() -> None:
    record = DecisionRecord("log", "g", 3, 40, 1, 77, MemberAsked(member_id="m1", incarnation=7, leave=True))
    kind, version, payload = codec.encode(record.decision)

    def identity(version: int, payload: bytes, kind: int = kind) -> Hashable:
        checksum = codec.decision_checksum("log", "g", 3, 40, 1, 77, kind, version, payload)
        return published_identity(StoredDecision(DecisionRow("g", 3, 40, 1, kind, version, payload, checksum), "log", 77))

    assert identity(version, payload) == identity_of(record)
    assert identity(version, msgpack.packb([*msgpack.unpackb(payload), "appended"])) == identity_of(record)
    for newer in (identity(version + 1, payload), identity(1, payload, kind=199), identity(version, msgpack.packb(["m1", 7, "maybe", 1]))):
        assert isinstance(newer, UnreadIdentity)
    unread = identity(version + 1, payload)
    assert isinstance(unread, UnreadIdentity)
    assert "MemberAsked version 2 is not known to this build" in unread.problem


def test_index_of_many_groups_comes_in_parts_and_is_valid_only_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INDEX_PART_BYTES", 100)
    groups = {f"group-{number:02}": number for number in range(30)}
    index = Index(position=50, recovery_offset=10, decisions_offset=3, checkpoints=groups)
    states = [record for group, offset in groups.items() for record in checkpoint_records("log", stored(offset, group=group), 0)]
    records = list(index_records("log", index))
    assert len(records) > 3
    assert max(len(value) for _, value in records) < 200
    assert find("log", [*states, *records]).index == index
    later = list(index_records("log", attrs.evolve(index, position=60)))
    for cut in range(1, len(later)):  # its writer was killed
        assert find("log", compacted([*states, *records, *later[:cut]])).index == Index()
    assert find("log", compacted([*states, *records, *later])).index.position == 60


@pytest.mark.parametrize("key", [["g", 0, 0], [["g"], 0, 0], [{}, [], 0], [0], [[]], ["g", 0, -1], "g", []])
@pytest.mark.parametrize(
    "value", [[], ["log"], ["log", 1, 1, 10**12, 0, b"x"], ["log", "1", None, [], 0, {}], ["log", 1, 1, 1, 1, {"g": "x"}], {"log": 1}]
)
def test_find_ignores_any_bytes_that_are_no_checkpoint(key: object, value: object) -> None:
    sound = list(checkpoint_records("log", stored(9), 1))
    found = find("log", [(msgpack.packb(key), msgpack.packb(value)), *sound])
    assert found.checkpoints == {"g": stored(9)}
    assert found.index == Index()
