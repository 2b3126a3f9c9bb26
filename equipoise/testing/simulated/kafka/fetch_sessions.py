"""The fetch sessions that a broker keeps (KIP-227), as Kafka's `FetchManager`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
from aiokafka.protocol.fetch import FetchResponse_v11

from equipoise.kafka.client import TopicPartition

NOT_FOUND, WRONG_EPOCH = 70, 71
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH"""
MOST_SESSIONS = 1_000
"""Kafka's default of `max.incremental.fetch.session.cache.slots`."""
_LAST_EPOCH = 2**31 - 1


class Wanted(NamedTuple):
    """One partition of a fetch."""

    epoch: int
    offset: int
    most_bytes: int


class Answered(NamedTuple):
    """One partition of an answer."""

    code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    aborted: Sequence[tuple[int, int]] = ()
    data: bytes = b""


@attrs.define(eq=False)
class _KeptSession:
    """`told`: the high watermark in the last answer for each partition; -1: none was told."""

    id: int
    epoch: int
    wanted: dict[TopicPartition, Wanted]
    told: dict[TopicPartition, int] = attrs.field(factory=dict)


class FetchSessions:
    """Those of one broker. `most`: as many as it keeps; the oldest goes when a new one comes."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self.most = most
        self._ids = 0
        self._sessions: dict[int, _KeptSession] = {}

    def clear(self) -> None:
        """The broker has started again."""
        self._sessions.clear()

    def begin(self, request: Any) -> tuple[Mapping[TopicPartition, Wanted], Callable[[Mapping[TopicPartition, Answered]], Any]] | Any:
        """What a request (version 11) fetches, in order, and what makes the answer of what was
        found; or the answer, if the session has an error.
        """
        named = {
            TopicPartition(topic, number): Wanted(epoch, offset, most)
            for topic, partitions in request.topics
            for number, epoch, offset, _, most in partitions
        }
        if request.session_epoch <= 0:
            self._sessions.pop(request.session_id, None)
            session = self._new(named) if request.session_epoch == 0 else None
            return named, lambda found: self._full(session, named, found)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchResponse_v11(0, NOT_FOUND, 0, [])
        if request.session_epoch != session.epoch:
            return FetchResponse_v11(0, WRONG_EPOCH, 0, [])
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        session.wanted.update(named)
        for topic, partitions in request.forgotten_topics_data:
            for number in partitions:
                session.wanted.pop(TopicPartition(topic, number), None)
                session.told.pop(TopicPartition(topic, number), None)
        return dict(session.wanted), lambda found: self._changes(session, found)

    def _new(self, wanted: dict[TopicPartition, Wanted]) -> _KeptSession | None:
        if not self.most or not wanted:
            return None
        while len(self._sessions) >= self.most:
            del self._sessions[next(iter(self._sessions))]
        self._ids += 1
        session = self._sessions[self._ids] = _KeptSession(self._ids, 1, dict(wanted))
        return session

    def _full(self, session: _KeptSession | None, wanted: Collection[TopicPartition], found: Mapping[TopicPartition, Answered]) -> Any:
        if session is not None:
            self._tell(session, found)
        return _answer(0 if session is None else session.id, {place: found[place] for place in wanted})

    def _changes(self, session: _KeptSession, found: Mapping[TopicPartition, Answered]) -> Any:
        changed = {place: each for place, each in found.items() if each.code or each.data or session.told.get(place, -1) != each.high_watermark}
        self._tell(session, changed)
        return _answer(session.id, changed)

    def _tell(self, session: _KeptSession, found: Mapping[TopicPartition, Answered]) -> None:
        for place, each in found.items():
            session.told[place] = -1 if each.code else each.high_watermark
            if each.data and place in session.wanted:
                session.wanted[place] = session.wanted.pop(place)  # behind those that had nothing


def _answer(session_id: int, found: Mapping[TopicPartition, Answered]) -> Any:
    topics: dict[str, list[tuple[Any, ...]]] = {}
    for (topic, number), each in found.items():
        fields = (number, each.code, each.high_watermark, each.last_stable_offset, each.log_start, list(each.aborted), -1, each.data)
        topics.setdefault(topic, []).append(fields)
    return FetchResponse_v11(0, 0, session_id, list(topics.items()))
