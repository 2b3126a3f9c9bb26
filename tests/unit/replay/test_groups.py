"""Groups of every kind, folded from records of `__consumer_offsets`, and their recording. That
bytes are read as Kafka writes them is checked live, against the broker's own classes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest

from equipoise.events.errors import InputError
from equipoise.kafka.described_groups import records_of_consumers
from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.byte_reader import WireError
from equipoise.kafka.offsets_topic.classic import OffsetCommit
from equipoise.kafka.offsets_topic.form import write_value
from equipoise.kafka.offsets_topic.record_keys import GROUP_METADATA, VALUES, GroupRecord, RawRecord, read_group_record
from equipoise.kafka.offsets_topic.record_writing import key_of
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit, open_recording
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup, ObservedGroups, Work

ORDERS, STOCK = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


def work(*names: str) -> Work:
    return frozenset(names)


def i16(number: int) -> bytes:
    return struct.pack(">h", number)


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def text(content: str | None) -> bytes:
    return i16(-1) if content is None else i16(len(content.encode())) + content.encode()


def sized(content: bytes) -> bytes:
    return i32(len(content)) + content


def array(*items: bytes) -> bytes:
    return i32(len(items)) + b"".join(items)


def classic(protocol_type: str, protocol: str | None, generation: int, *members: tuple[str, bytes, bytes], offset: int = 0) -> RawRecord:
    """A generation of the group ``g``: member id, subscription and assignment of each member."""
    each = [
        text(member) + text(None) + text(f"client of {member}") + text("/10.0.0.1") + i32(300_000) + i32(45_000) + sized(joined) + sized(given)
        for member, joined, given in members
    ]
    leader = members[0][0] if members else None
    value = i16(3) + text(protocol_type) + i32(generation) + text(protocol) + text(leader) + i64(0) + array(*each)
    return RawRecord(partition=7, offset=offset, timestamp_ms=1_000, key=i16(GROUP_METADATA) + text("g"), value=value)


def subscription(*topics: str) -> bytes:
    return i16(0) + array(*map(text, topics)) + i32(-1)


def assignment(topic: str, *partitions: int) -> bytes:
    return i16(0) + array(text(topic) + array(*map(i32, partitions))) + i32(-1)


def connectors(version: int, assigned: dict[str, tuple[int, ...]], revoked: dict[str, tuple[int, ...]] | None = None) -> bytes:
    def all_of(given: dict[str, tuple[int, ...]]) -> bytes:
        return array(*(text(name) + array(*map(i32, tasks)) for name, tasks in given.items()))

    behind = (i32(-1) if revoked is None else all_of(revoked)) + i32(2_000) if version else b""
    return i16(version) + i16(0) + text("w1") + text("http://w1/") + i64(3) + all_of(assigned) + behind


def only(*records: RawRecord) -> ObservedGroup:
    observed = ObservedGroups()
    for record in records:
        observed.read(record)
    assert observed.unread == []
    (group,) = observed.groups.values()
    return group


def test_classic_consumers() -> None:
    group = only(classic("consumer", "range", 3, ("m1", subscription("orders"), assignment("orders", 0, 2)), ("m2", subscription("orders"), b"")))
    assert (group.kind, group.state, group.epoch, group.protocol, group.leader) == (GroupKind.CLASSIC_CONSUMER, "stable", 3, "range", "m1")
    assert group.owners == {"orders-0": ["m1"], "orders-2": ["m1"]}
    assert group.members["m2"].topics == ("orders",)
    assert (group.members["m1"].client_id, group.members["m1"].session_timeout_ms) == ("client of m1", 45_000)
    empty = only(classic("consumer", None, 4))
    assert (empty.state, empty.kind) == ("empty", GroupKind.CLASSIC_CONSUMER)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_connect(version: int) -> None:
    owns = sized(connectors(version, {"old": (1,), "kept": (5,)}, {})) if version else b""
    joined = i16(version) + text("http://w1/") + i64(3) + owns
    given = connectors(version, {"sink": (-1, 0), "": (4,)}, {"old": (1,)})
    group = only(classic("connect", "sessioned", 1, ("w1", joined, given), ("w2", joined, b"")))
    assert (group.kind, group.members["w1"].active) == (GroupKind.CONNECT, work("sink", "sink-0", "-4", *(["kept-5"] if version else [])))
    assert group.members["w1"].revoking == (work("old-1") if version else work())
    assert group.members["w2"].active == (work("kept-5", "old-1") if version else work())


def test_connect_without_a_list_of_revoked_work() -> None:
    joined = i16(1) + text("http://w1/") + i64(3) + i32(-1)
    group = only(classic("connect", "compatible", 1, ("w1", joined, connectors(1, {"sink": (0,)}))))
    assert (group.members["w1"].active, group.members["w1"].revoking) == (work("sink-0"), work())


def test_members_whose_bytes_are_their_own_are_shown_without_work() -> None:
    broken = only(classic("consumer", "own", 1, ("m1", b"\0", b"\0\0\0"), ("m2", subscription("orders"), assignment("orders", 1))))
    assert "version of the subscription needs 2 bytes" in broken.members["m1"].problem
    assert broken.owners == {"orders-1": ["m2"]}
    other = only(classic("sr", "v0", 1, ("m1", b"{}", b"{}")))
    assert (other.kind, other.members["m1"].problem) == (GroupKind.OTHER, "")
    assert only(classic("", None, 0)).kind is GroupKind.OFFSETS


def test_record_that_is_damaged_is_named_and_the_others_are_read() -> None:
    observed = ObservedGroups()
    good = classic("consumer", "range", 1, ("m1", subscription("orders"), assignment("orders", 0)))
    assert good.value is not None
    observed.read(good._replace(value=good.value[:-1], offset=41))
    observed.read(good._replace(value=i16(9), offset=42))
    observed.read(good)
    assert list(observed.groups) == ["g"]
    assert [problem[:35] for problem in observed.unread] == ["partition 7: record at offset 41, b", "partition 7: record at offset 42, b"]


@hypothesis.given(st.binary(max_size=60), st.one_of(st.none(), st.binary(max_size=200)))
def test_arbitrary_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    for kind in (b"", *map(i16, range(-1, 25))):
        with contextlib.suppress(WireError):
            found = read_group_record(5, kind + key, value)
            assert found is None or isinstance(found, GroupRecord | OffsetCommit)


def test_member_of_a_broker_that_names_an_optional_part_and_leaves_it_out() -> None:
    """As Kafka 4.3.1 wrote it: the tagged classic_member_metadata is there, and null."""
    key = b"\0\5" + text("app") + text("6NlnN3D8SQSvoKdz+VSHdA")
    value = b"\0\0\0\0\x04one\x0b/127.0.0.1\x02\x07orders\1\0\x04\x93\xe0\0\1\0\1\0"
    found = read_group_record(0, key, value)
    assert isinstance(found, GroupRecord)
    assert found.value == consumer(client_id="one", client_host="/127.0.0.1", rack_id=None)


def record(kind: int, value: object = None, name: str | None = None, *, deleted: bool = False) -> GroupRecord:
    return GroupRecord(kind=kind, group="g", name=name, value=value, deleted=deleted)


def partitions(*numbers: int, topic: str = ORDERS) -> tuple[Any, ...]:
    return (record_values.OwnedPartitions(topic_id=topic, partitions=numbers),) if numbers else ()


def consumer(**settings: Any) -> record_values.ConsumerGroupMemberMetadata:
    return record_values.ConsumerGroupMemberMetadata(
        **{
            "instance_id": None,
            "rack_id": "",
            "client_id": "c",
            "client_host": "/h",
            "subscribed_topic_names": ("orders",),
            "subscribed_topic_regex": "",
            "rebalance_timeout_ms": 300_000,
            "server_assignor": None,
            **settings,
        }
    )


def has(epoch: int, state: int, *numbers: int, revoking: tuple[int, ...] = ()) -> record_values.ConsumerGroupCurrentMemberAssignment:
    return record_values.ConsumerGroupCurrentMemberAssignment(
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=state,
        assigned_partitions=partitions(*numbers),
        partitions_pending_revocation=partitions(*revoking),
    )


def target(*numbers: int) -> record_values.ConsumerGroupTargetAssignmentMember:
    return record_values.ConsumerGroupTargetAssignmentMember(topic_partitions=partitions(*numbers))


def folded(observed: ObservedGroups, *records: GroupRecord) -> ObservedGroup:
    for each in records:
        observed.apply(each)
    return observed.groups["g"]


def test_consumers_of_kip_848_join_move_and_leave() -> None:
    observed = ObservedGroups({ORDERS: "orders"})
    first = (record(5, consumer(), "a"), record(3, record_values.ConsumerGroupMetadata(epoch=1)))
    assert folded(observed, *first).state == "assigning"
    group = folded(observed, record(7, target(0, 1), "a"), record(6, record_values.TargetAssignmentMetadata(assignment_epoch=1)))
    assert (group.kind, group.state, group.members["a"].target) == (GroupKind.CONSUMER, "reconciling", work("orders-0", "orders-1"))
    assert folded(observed, record(8, has(1, 0, 0, 1), "a")).state == "stable"

    folded(observed, record(5, consumer(rack_id="r", instance_id="i"), "b"), record(3, record_values.ConsumerGroupMetadata(epoch=2)))
    group = folded(
        observed,
        record(7, target(0), "a"),
        record(7, target(1), "b"),
        record(6, record_values.TargetAssignmentMetadata(assignment_epoch=2)),
        record(8, has(1, 1, 0, revoking=(1,)), "a"),
        record(8, has(2, 2), "b"),
    )
    assert (group.state, group.owners) == ("reconciling", {"orders-0": ["a"], "orders-1": ["a"]})
    assert (group.members["a"].revoking, group.members["b"].state) == (work("orders-1"), "unreleased")
    assert (group.members["b"].rack, group.members["b"].instance_id, group.members["a"].rack) == ("r", "i", None)
    group = folded(observed, record(8, has(2, 0, 0), "a"), record(8, has(2, 0, 1), "b"))
    assert (group.state, group.owners) == ("stable", {"orders-0": ["a"], "orders-1": ["b"]})

    group = folded(observed, *(record(kind, name="b", deleted=True) for kind in (8, 7, 5)), record(3, record_values.ConsumerGroupMetadata(epoch=3)))
    assert (list(group.members), group.state) == (["a"], "assigning")
    folded(observed, record(8, name="a", deleted=True), record(7, name="a", deleted=True))
    assert (observed.groups["g"].members["a"].active, observed.groups["g"].members["a"].target) == (work(), work())
    observed.apply(record(3, deleted=True))
    assert observed.groups == {}


def test_target_that_comes_before_its_member_is_kept() -> None:
    group = folded(ObservedGroups(), record(7, target(0), "a"), record(5, consumer(), "a"))
    assert group.members["a"].target == work(f"{ORDERS}-0")  # without a name, the topic's id stands for it


def test_topics_of_brokers_before_4_1_are_named_by_the_group() -> None:
    observed = ObservedGroups()
    topic = record_values.TopicMetadata(topic_id=STOCK, topic_name="stock", num_partitions=1, partition_metadata=())
    observed.apply(record(4, record_values.ConsumerGroupPartitionMetadata(topics=(topic,))))
    assert observed.groups == {}
    current = attrs.evolve(has(1, 0), assigned_partitions=partitions(0, topic=STOCK))
    assert folded(observed, record(5, consumer(), "a"), record(8, current, "a")).owners == {"stock-0": ["a"]}


def test_group_that_changes_its_protocol_is_not_forgotten_by_the_old_one() -> None:
    observed = ObservedGroups({ORDERS: "orders"})
    observed.read(classic("consumer", "range", 5, ("m1", subscription("orders"), assignment("orders", 0))))
    assert folded(observed, record(5, consumer(), "a"), record(8, has(1, 0, 0), "a")).kind is GroupKind.CONSUMER
    assert folded(observed, record(GROUP_METADATA, deleted=True)).owners == {"orders-0": ["a"]}
    observed.read(classic("consumer", "range", 6, ("m1", subscription("orders"), assignment("orders", 0))))
    observed.apply(record(3, deleted=True))
    assert (observed.groups["g"].kind, observed.groups["g"].epoch) == (GroupKind.CLASSIC_CONSUMER, 6)
    folded(observed, record(17, record_values.StreamsGroupMetadata(epoch=7, metadata_hash=0)), record(3, deleted=True))
    assert observed.groups["g"].kind is GroupKind.STREAMS
    observed.apply(record(17, deleted=True))
    assert observed.groups == {}


def tasks(*numbers: int) -> tuple[Any, ...]:
    return (record_values.OwnedTaskIds(subtopology_id="0", partitions=numbers),) if numbers else ()


def test_streams_of_kip_1071() -> None:
    observed = ObservedGroups()
    topology = record_values.StreamsSubtopology(
        subtopology_id="0",
        source_topics=("orders",),
        source_topic_regex=(),
        state_changelog_topics=(),
        repartition_sink_topics=(),
        repartition_source_topics=(record_values.TopicInfo(name="by-key", partitions=2, replication_factor=1, topic_configs=()),),
        copartition_groups=(),
    )
    member = record_values.StreamsGroupMemberMetadata(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=1,
        topology_epoch=0,
        process_id="p",
        user_endpoint=None,
        client_tags=(),
    )
    current = record_values.StreamsGroupCurrentMemberAssignment(
        member_epoch=1,
        previous_member_epoch=0,
        state=2,
        active_tasks=tasks(0),
        standby_tasks=tasks(1),
        warmup_tasks=tasks(2),
        active_tasks_pending_revocation=tasks(3),
        standby_tasks_pending_revocation=tasks(4),
        warmup_tasks_pending_revocation=tasks(5),
    )
    wanted = record_values.StreamsGroupTargetAssignmentMember(active_tasks=tasks(0), standby_tasks=(), warmup_tasks=())
    group = folded(
        observed,
        record(17, record_values.StreamsGroupMetadata(epoch=1, metadata_hash=0)),
        record(19, member, "a"),
        record(23, record_values.StreamsGroupTopology(epoch=0, subtopologies=(topology,))),
        record(21, wanted, "a"),
        record(20, record_values.TargetAssignmentMetadata(assignment_epoch=1)),
        record(22, current, "a"),
    )
    assert (group.kind, group.state, group.sources) == (GroupKind.STREAMS, "reconciling", {"0": ("orders", "by-key")})
    found = group.members["a"]
    assert (found.active, found.standby, found.warmup, found.revoking) == (work("0_0", "0_3"), work("0_1", "0_4"), work("0_2", "0_5"), work("0_3"))
    assert (found.process_id, found.target) == ("p", work("0_0"))


def test_share_groups_are_named_only() -> None:
    key = i16(11) + text("shared")
    observed = ObservedGroups()
    observed.read(RawRecord(partition=0, offset=0, timestamp_ms=0, key=key, value=b"whatever"))
    assert observed.groups["shared"].kind is GroupKind.SHARE


# -- the recording


def raw(offset: int, at_ms: int, key: bytes = b"k", value: bytes | None = b"v") -> RawRecord:
    return RawRecord(partition=1, offset=offset, timestamp_ms=at_ms, key=key, value=value)


def test_recording_goes_on_where_its_last_transaction_ended(tmp_path: Path) -> None:
    place = str(tmp_path / "r.db")
    commit = RecordedCommit(group="g", topic="orders", partition=2, at_ms=50, committed=7)
    with open_recording(place, write=True) as recording:
        recording.begin("cluster-1")
        recording.append([("g", raw(4, 10)), ("h", raw(5, 20, value=None))], [commit], {1: 6, 2: 0})
        recording.add_ends(60, {"orders": [0, 0, 9]})
        recording.add_topics({ORDERS: "orders"})
    with open_recording(place, write=True) as recording:
        recording.begin("cluster-1")
        assert recording.positions() == {1: 6, 2: 0}
        recording.append([], [attrs.evolve(commit, at_ms=70, committed=None)], {1: 9})
        assert (recording.groups(), recording.cluster(), recording.topics()) == (["g", "h"], "cluster-1", {ORDERS: "orders"})
        assert list(recording.records()) == [raw(4, 10), raw(5, 20, value=None)]
        assert list(recording.records("h")) == [raw(5, 20, value=None)]
        assert [each.committed for each in recording.commits("g")] == [7, None]
        assert [each.committed for each in recording.commits(from_ms=60)] == [None]
        assert list(recording.commits("h")) == []
        assert list(recording.ends()) == [(60, {"orders": [0, 0, 9]})]
        assert recording.sampled_topics() == {"orders"}
        with pytest.raises(InputError, match="is a recording of cluster 'cluster-1', and this is 'cluster-2'"):
            recording.begin("cluster-2")


def test_recording_keeps_the_newest_record_of_each_key_when_it_deletes(tmp_path: Path) -> None:
    with open_recording(str(tmp_path / "r.db"), write=True) as recording:
        recording.append([("g", raw(1, 10)), ("g", raw(2, 20)), ("g", raw(3, 30, key=b"l")), ("g", raw(4, 90))], [], {1: 5})
        recording.append([], [RecordedCommit(group="g", topic="t", partition=0, at_ms=at_ms, committed=1) for at_ms in (10, 20)], {})
        recording.add_ends(20, {})
        recording.add_ends(95, {})
        recording.delete_before(50)
        assert [each.offset for each in recording.records()] == [3, 4]
        assert list(recording.commits()) == []
        assert [at_ms for at_ms, _ in recording.ends()] == [95]


def test_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such recording"):
        open_recording(str(tmp_path / "none.db"))
    (tmp_path / "text.db").write_text("orders")
    with pytest.raises(InputError, match="is no recording"):
        open_recording(str(tmp_path / "text.db"))
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE t (a)")
    with pytest.raises(InputError, match="is no recording of groups"):
        open_recording(str(tmp_path / "other.db"))


def test_recording_is_known_by_its_file_before_anything_is_in_it(tmp_path: Path) -> None:
    with open_recording(str(tmp_path / "a.db"), write=True):  # the write-ahead log is not in the file yet, as after a kill
        (tmp_path / "b.db").write_bytes((tmp_path / "a.db").read_bytes())
    with open_recording(str(tmp_path / "b.db"), write=True) as recording:
        assert recording.groups() == []
    (tmp_path / "c.db").touch()
    with open_recording(str(tmp_path / "c.db"), write=True) as recording:
        assert recording.cluster() is None


def values_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a class of `values`, whatever its fields say they are."""
    return st.builds(cls, **{each.name: contents_of(each.name, str(each.type)) for each in attrs.fields(cls)})


def contents_of(name: str, kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("tuple["):
        return st.lists(contents_of(name, kind.removeprefix("tuple[").removesuffix(", ...]")), max_size=3).map(tuple)
    if kind.endswith(" | None"):
        return st.none() | contents_of(name, kind.removesuffix(" | None"))
    if kind == "Owned":
        return contents_of(name, "tuple[OwnedTaskIds, ...]")
    if kind == "str":
        return st.uuids().map(str) if name == "topic_id" else st.text(max_size=200)
    plain = {"int": st.integers(0, 127), "bytes": st.binary(max_size=200)}
    return plain[kind] if kind in plain else values_of(getattr(record_values, kind))


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_what_is_written_is_read_again(kind: int) -> None:
    @hypothesis.given(values_of(VALUES[kind]))
    @hypothesis.settings(max_examples=20)
    def holds(value: object) -> None:
        name = "m" if kind in (5, 7, 8, 16, 19, 21, 22) else None
        assert read_group_record(7, key_of(kind, "g", name), write_value(value)) == GroupRecord(kind=kind, group="g", name=name, value=value)

    holds()


def test_group_that_is_described_again_writes_what_has_changed() -> None:
    """A member that comes and one that goes, of KIP-848, as records."""

    def described(epoch: int, **members: tuple[int, ...]) -> dict[str, Any]:
        def parts(numbers: tuple[int, ...]) -> dict[str, Any]:
            return {"topic_partitions": [{"topic_id": UUID(ORDERS).bytes, "topic_name": "orders", "partitions": list(numbers)}] if numbers else []}

        rows = [
            {
                "member_id": name,
                "instance_id": None,
                "rack_id": None,
                "client_id": name,
                "client_host": "/10.0.0.1",
                "member_epoch": epoch,
                "subscribed_topic_names": ["orders"],
                "subscribed_topic_regex": None,
                "assignment": parts(numbers),
                "target_assignment": parts(numbers),
            }
            for name, numbers in members.items()
        ]
        return {"group": "g", "group_epoch": epoch, "assignment_epoch": epoch, "assignor": "uniform", "members": rows}

    observed = ObservedGroups({ORDERS: "orders"})
    before: dict[bytes, bytes] = {}
    for answer in (described(1, a=(0, 1)), described(2, a=(0,), b=(1,)), described(3, b=(0, 1))):
        now = records_of_consumers(answer)
        changed = [(key, value) for key, value in now.items() if before.get(key) != value] + [(key, None) for key in before.keys() - now.keys()]
        for key, value in changed:
            observed.read(RawRecord(0, 0, 0, key, value))
        before = now
        group = observed.groups["g"]
        assert {name: set(member.active) for name, member in group.members.items()} == {
            each["member_id"]: {f"orders-{number}" for part in each["assignment"]["topic_partitions"] for number in part["partitions"]}
            for each in answer["members"]
        }
        assert (group.kind, group.epoch, group.state) == (GroupKind.CONSUMER, answer["group_epoch"], "stable")
    assert not observed.unread
