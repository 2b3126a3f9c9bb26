"""A fetch session names what has changed, and begins again whenever broker and consumer may differ
about it.
"""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest_v4, FetchRequest_v11, FetchResponse_v4, FetchResponse_v11

from equipoise.kafka import aiokafka_sessions
from equipoise.kafka.aiokafka_sessions import FetchSession, SessionRequest, sending

A, B = ("in", 0), ("in", 1)
C = ("other", 0)


def request(session: FetchSession, offsets: dict[tuple[str, int], int]) -> Any:
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append((partition, offset, 1_000))
    made = SessionRequest(500, 1, 4_000, 0, list(topics.items()))
    made.session = session
    return made


def named(built: Any) -> dict[tuple[str, int], int]:
    return {(topic, each[0]): each[2] for topic, partitions in built.topics for each in partitions}


def answer(session_id: int = 7, error_code: int = 0) -> Any:
    return FetchResponse_v11(0, error_code, session_id, [])


def answered(partition: int, error_code: int = 0) -> tuple[Any, ...]:
    """What an answer has of a partition."""
    return partition, error_code, 20, 20, 0, [], -1, b""


def exchange(session: FetchSession, offsets: dict[tuple[str, int], int], **said: int) -> Any:
    asked = request(session, offsets)
    built = asked.build(FetchRequest_v11)
    session.answered(answer(**said))
    return built


def test_first_request_names_all_partitions_and_asks_for_a_session() -> None:
    built = exchange(FetchSession(), {A: 5, C: 9})
    assert (built.session_id, built.session_epoch, built.forgotten_topics_data) == (0, 0, [])
    assert named(built) == {A: 5, C: 9}


def test_later_requests_name_what_has_changed() -> None:
    session = FetchSession()
    exchange(session, {A: 5, B: 6, C: 9})
    built = exchange(session, {A: 5, B: 6, C: 9})
    assert (built.session_id, built.session_epoch, named(built), built.forgotten_topics_data) == (7, 1, {}, [])
    built = exchange(session, {B: 8, C: 9})
    assert (built.session_epoch, named(built), built.forgotten_topics_data) == (2, {B: 8}, [("in", [0])])
    built = exchange(session, {A: 5, B: 8})
    assert (built.session_epoch, named(built), built.forgotten_topics_data) == (3, {A: 5}, [("other", [0])])
    assert [session.knows(*place) for place in (A, B, C)] == [True, True, False]


def test_request_that_names_changes_drops_nothing() -> None:
    session = FetchSession()
    assert not session.takes_changes
    exchange(session, {A: 5, C: 9})
    assert session.takes_changes
    changes = request(session, {B: 6, C: 10})
    changes.names_changes = True
    built = changes.build(FetchRequest_v11)
    assert (built.session_id, built.session_epoch, named(built), built.forgotten_topics_data) == (7, 1, {B: 6, C: 10}, [])
    assert not session.knows(*B)
    found = FetchResponse_v11(0, 0, 7, [("in", [answered(0), answered(2)]), ("other", [answered(0)])])
    assert session.asked(found) == [("in", [(0, 5, 1_000), (2, -1, 0)]), ("other", [(0, 10, 1_000)])]
    session.answered(found)
    assert all(session.knows(*place) for place in (A, B, C))
    built = exchange(session, {A: 5, B: 6, C: 10})
    assert (built.session_epoch, named(built), built.forgotten_topics_data) == (2, {}, [])


def test_error_of_a_partition_is_looked_at() -> None:
    session = FetchSession()
    exchange(session, {A: 5, B: 6})
    request(session, {A: 5, B: 6}).build(FetchRequest_v11)
    session.answered(FetchResponse_v11(0, 0, 7, [("in", [answered(0), answered(1, error_code=6)])]))
    assert not session.takes_changes
    assert exchange(session, {A: 5, B: 6}).session_epoch == 2
    assert session.takes_changes


def test_request_whose_answer_is_lost_begins_a_new_session_and_ends_this_one() -> None:
    session = FetchSession()
    exchange(session, {A: 5, B: 6})
    request(session, {A: 7, B: 6}).build(FetchRequest_v11)
    session.lost()
    assert not session.knows(*A)
    built = exchange(session, {A: 7, B: 6}, session_id=8)
    assert (built.session_id, built.session_epoch, named(built), built.forgotten_topics_data) == (7, 0, {A: 7, B: 6}, [])
    assert exchange(session, {A: 7, B: 6}).session_id == 8


def test_broker_that_has_forgotten_the_session_is_asked_for_a_new_one() -> None:
    session = FetchSession()
    exchange(session, {A: 5})
    exchange(session, {A: 5}, error_code=70)
    built = exchange(session, {A: 5})
    assert (built.session_epoch, named(built)) == (0, {A: 5})


def test_broker_without_room_for_sessions_is_asked_for_everything() -> None:
    session = FetchSession()
    for _ in range(3):
        built = exchange(session, {A: 5}, session_id=0)
        assert (built.session_id, built.session_epoch, named(built)) == (0, 0, {A: 5})


def test_broker_that_knows_no_sessions_is_asked_for_everything() -> None:
    session = FetchSession()
    for _ in range(2):
        asked = request(session, {A: 5})
        assert asked.build(FetchRequest_v4).topics == [("in", [(0, 5, 1_000)])]
        session.answered(FetchResponse_v4(0, []))
    assert not session.knows(*A)


def test_epochs_start_again_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka_sessions, "LAST_EPOCH", 2)
    session = FetchSession()
    assert [exchange(session, {A: 5}).session_epoch for _ in range(5)] == [0, 1, 2, 1, 2]


async def test_failed_send_begins_a_new_session_and_other_requests_are_sent_as_they_are() -> None:
    session, sent = FetchSession(), []

    async def send(node_id: int, asked: Any, **options: Any) -> Any:
        sent.append((node_id, asked, options))
        if isinstance(asked, SessionRequest):
            asked.build(FetchRequest_v11)
        if len(sent) == 2:
            raise ConnectionError
        return answer()

    sends = sending(send)
    sent_request = request(session, {A: 5})
    await sends(3, sent_request)
    assert session.knows(*A)
    assert sent_request.topics == [], "nothing was found, and aiokafka looks for no more"
    with pytest.raises(ConnectionError):
        await sends(3, request(session, {A: 5}))
    assert not session.knows(*A)
    other = object()
    await sends(4, other, group="g")
    assert sent[-1] == (4, other, {"group": "g"})
