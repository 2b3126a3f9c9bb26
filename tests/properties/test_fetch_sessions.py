"""Whatever is lost on the way, a broker with sessions (KIP-227) fetches what the consumer wants."""

from __future__ import annotations

from typing import Any

import attrs
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kafka.aiokafka_sessions import FIRST_EPOCH, NO_SESSION, FetchSession, SessionRequest

SESSION_NOT_FOUND, WRONG_EPOCH = 70, 71
Place = tuple[str, int]
places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))
wanted_partitions = st.dictionaries(places, st.integers(0, 5), min_size=1)


class Broker:
    """Keeps one session at most, as a broker that is full of those of others."""

    def __init__(self) -> None:
        self._ids = 0
        self.session: tuple[int, int, dict[Place, int]] | None = None
        """Its id, the epoch of its next request, and partition -> offset."""

    def fetch(self, request: Any, *, has_room: bool) -> tuple[Any, dict[Place, int]]:
        """The answer, and partition -> offset that are fetched."""
        named = {(topic, each[0]): each[2] for topic, partitions in request.topics for each in partitions}
        if request.session_epoch == FIRST_EPOCH:
            self.session = None
            if has_room:
                self._ids += 1
                self.session = self._ids, 1, named
            return FetchResponse_v11(0, 0, self._ids if has_room else NO_SESSION, []), named
        if self.session is None or self.session[0] != request.session_id:
            return FetchResponse_v11(0, SESSION_NOT_FOUND, NO_SESSION, []), {}
        known_id, epoch, known = self.session
        if request.session_epoch != epoch:
            return FetchResponse_v11(0, WRONG_EPOCH, NO_SESSION, []), {}
        gone = {(topic, each) for topic, partitions in request.forgotten_topics_data for each in partitions}
        fetched = {place: offset for place, offset in {**known, **named}.items() if place not in gone}
        self.session = known_id, epoch + 1, fetched
        return FetchResponse_v11(0, 0, known_id, []), fetched


@attrs.frozen
class Step:
    wanted: dict[Place, int]
    reaches: bool
    """Whether the broker gets the request."""
    returns: bool
    """Whether its answer comes back."""
    has_room: bool
    is_dropped: bool
    """Whether the broker drops the session before."""


@given(st.lists(st.builds(Step, wanted_partitions, st.booleans(), st.booleans(), st.booleans(), st.booleans())))
def test_broker_fetches_what_is_wanted(steps: list[Step]) -> None:
    session, broker = FetchSession(), Broker()
    for step in [*steps, *[Step({("a", 0): 1}, True, True, True, False)] * 3]:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, partition), offset in step.wanted.items():
            topics.setdefault(topic, []).append((partition, offset, 1_000))
        request = SessionRequest(500, 1, 4_000, 0, list(topics.items()))
        request.session = session
        if step.is_dropped:
            broker.session = None
        built = request.build(FetchRequest_v11)
        if step.reaches:
            answer, fetched = broker.fetch(built, has_room=step.has_room)
            assert answer.error_code or fetched == step.wanted
        if step.reaches and step.returns:
            session.answered(answer)
        else:
            session.lost()
    assert answer.error_code == 0
    assert not built.topics, "the third of the same requests names nothing"
