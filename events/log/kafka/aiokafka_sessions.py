"""Fetch sessions (KIP-227): a broker remembers what a consumer fetches. A request names only what
has changed since the last one, and its answer only partitions with something new. Without them each
fetch and each answer names all partitions, which costs more than what is read where there are many.
aiokafka has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiokafka.protocol.fetch import FetchRequest

NO_SESSION = 0
"""Session id in a request for a new session, and in an answer of a broker that has no room for
one.
"""
FIRST_EPOCH = 0
"""Epoch of a request for a new session."""
LAST_EPOCH = 2**31 - 1
"""The epoch after it is 1."""
_OLDEST = 7
"""First version of requests that knows sessions."""
Fetched = tuple[int, int]
"""Offset, and most bytes, of a partition that is fetched."""


class FetchSession:
    """The session with one broker. One request at a time: it is `answered`, or `lost`."""

    def __init__(self) -> None:
        self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        self._known: Mapping[tuple[str, int], Fetched] = {}
        """What the broker fetches unless the next request says otherwise."""

    def build(self, request: FetchRequest, version: Any) -> Any:
        """`request` in the given version of aiokafka's, with changes only."""
        whole = FetchRequest.build(request, version)
        if version.API_VERSION < _OLDEST:
            return whole
        wanted, gone = _fetched(request), dict[str, list[int]]()
        if self._epoch != FIRST_EPOCH:
            for topic, partition in self._known:
                if (topic, partition) not in wanted:
                    gone.setdefault(topic, []).append(partition)
            changed = {place for place, fetched in wanted.items() if self._known.get(place) != fetched}
            whole.topics = [
                (topic, named) for topic, partitions in whole.topics if (named := [each for each in partitions if (topic, each[0]) in changed])
            ]
        whole.session_id, whole.session_epoch = self._id, self._epoch
        whole.forgotten_topics_data = list(gone.items())
        return whole

    def knows(self, topic: str, partition: int) -> bool:
        """Whether the broker has answered for this partition, and does so again when it has
        something new.
        """
        return self._epoch != FIRST_EPOCH and (topic, partition) in self._known

    def answered(self, request: FetchRequest, answer: Any) -> None:
        """The broker has answered `request`."""
        if answer.API_VERSION < _OLDEST or answer.error_code:
            self.lost()
        elif answer.session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        else:
            self._id, self._epoch = answer.session_id, 1 if self._epoch == LAST_EPOCH else self._epoch + 1
            self._known = _fetched(request)

    def lost(self) -> None:
        """Whether the broker has taken the last request is not known. The next one begins a new
        session, and ends this one.
        """
        self._epoch = FIRST_EPOCH


class SessionRequest(FetchRequest):  # type: ignore[misc]  # aiokafka ships no types
    """A fetch of all partitions, of which `session` sends the changes."""

    session: FetchSession

    def build(self, request_struct_class: Any) -> Any:
        return self.session.build(self, request_struct_class)


def sending(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`send` of an aiokafka client, for fetches in sessions and other requests."""

    async def send_in_session(node_id: int, request: Any, **options: Any) -> Any:
        if not isinstance(request, SessionRequest):
            return await send(node_id, request, **options)
        try:
            answer = await send(node_id, request, **options)
        except BaseException:
            request.session.lost()
            raise
        request.session.answered(request, answer)
        return answer

    return send_in_session


def _fetched(request: FetchRequest) -> Mapping[tuple[str, int], Fetched]:
    return {(topic, partition): (offset, most) for topic, partitions in request.topics for partition, offset, most in partitions}
