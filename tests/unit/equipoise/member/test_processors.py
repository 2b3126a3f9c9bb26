"""Processors of one member, and which record of a position counts."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest

from equipoise import ErrorPolicy, Member, Processor
from equipoise.events.errors import InputError
from equipoise.kafka.client import Record, TopicPartition
from equipoise.member.copies.origin import Origin
from equipoise.member.tasks.positions import Position, Positions, position_record, positions_topic

SOURCE = TopicPartition("t", 3)


def handle(record: Any, context: Any) -> None: ...


def processor(sources: Any, **topics: Any) -> Processor:
    return Processor(handle, sources=sources, **topics)


@pytest.mark.parametrize(
    ("processors", "options", "says"),
    [
        ([processor("t"), processor("t")], {}, "two processors read t and have the same name"),
        ([processor("t", name="a"), processor("u", name="a")], {}, "'a' is the name of two processors"),
        ([processor("t", state="s"), processor("u", state="s")], {}, "s is the changelog of two processors"),
        ([processor("t", state="t")], {}, "t is in sources, too"),
        ([processor("t", state="s"), processor("s")], {}, "s is in sources, too"),
        ([processor("t", state="s", outputs="s")], {}, "s is in outputs, too"),
        ([processor("t", state="s")], {"on_error": ErrorPolicy.dead_letter("s")}, "s is in on_error, too"),
        ([processor(["t", "t"])], {}, "t is named twice"),
        ([processor("t"), processor("t", name="b")], {"adopts": "old"}, "adopts: two processors read t"),
        ([processor("g-positions")], {}, "has the task offsets of group g"),
    ],
)
def test_uses_of_a_topic_that_spoil_each_other_are_refused(processors: Any, options: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Member("g", processors=processors, member_id="m", **options)


def test_processors_with_names_may_share_a_source() -> None:
    Member("g", processors=[processor("t"), processor(["t", "u"], name="b")], member_id="m")


@pytest.mark.parametrize("group", ["orders", "\u00fc" * 120, "a/b", ".." * 100])
def test_topic_of_positions_is_a_name_that_kafka_allows(group: str) -> None:
    name = positions_topic(group)
    assert len(name) <= 249
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def record(offset: int, position: Position, origin: Origin) -> Record:
    key, value, headers, _ = position_record("", SOURCE, position, origin)
    return Record(key, value, "p", 0, offset, 0, headers)


def test_position_of_a_lower_origin_does_not_count() -> None:
    first = Origin(1, "log", "g", "0_3", 5)
    second, other_task = attrs.evolve(first, token=6), attrs.evolve(first, epoch=2, task="1_3", token=1)
    positions = Positions()
    for offset, (position, origin) in enumerate([(10, first), (12, second), (11, first), (14, other_task), (13, second)]):
        positions.take(record(offset, Position(position), origin))
    found = positions.find("", SOURCE)
    assert found is not None
    assert (found.position.offset, found.at, found.origin) == (14, 3, other_task)
    assert found.replaced is not None
    assert (found.replaced.position.offset, found.replaced.at) == (12, 1)
    assert positions.of_source(SOURCE) == [found]
    assert positions.find("other", SOURCE) is None


@pytest.mark.parametrize("key", [None, b"", b"\xc1", msgpack.packb(7), msgpack.packb([[], {}, 1])])
@pytest.mark.parametrize("value", [None, b"", msgpack.packb([1])])
def test_what_is_no_position_is_ignored(key: bytes | None, value: bytes | None) -> None:
    positions = Positions()
    positions.take(record(0, Position(4), Origin(1, "log", "g", "0_3", 5)))
    positions.take(Record(key, value, "p", 0, 1, 0, ()))
    found = positions.find("", SOURCE)
    assert found is not None
    assert found.position.offset == 4
