"""Fetch sessions (KIP-227): a broker remembers what a consumer fetches. A request names only what
has changed since the last one, and its answer only partitions with something new. Without them each
fetch and each answer names all partitions, which costs more than what is read where there are many.
aiokafka has none.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka.protocol.fetch import FetchRequest

from equipoise.kafka.aiokafka_structs import quick
from equipoise.kafka.leader_epochs import last_epoch

NO_SESSION = 0
"""Session id in a request for a new session, and in an answer of a broker whose session cache is
full.
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
    """The session with one broker. One request at a time: after `build` it is `answered`, or
    `lost`.
    """

    def __init__(self) -> None:
        self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        self._known: Mapping[tuple[str, int], Fetched] = {}
        """What the broker fetches unless the next request says otherwise."""
        self._asked = self._known
        """The same once it has answered the present request."""
        self._has_failed = False
        """Whether the last answer has an error, of one of its partitions."""

    @property
    def takes_changes(self) -> bool:
        """Returns whether the next request may name changes only."""
        return self._epoch != FIRST_EPOCH and not self._has_failed

    def build(self, request: SessionRequest, version: Any) -> Any:
        """`request` in the given version of aiokafka's, with changes only."""
        asked = {(topic, each[0]): (each[1], each[2]) for topic, partitions in request.topics for each in partitions}
        if request.names_changes:
            self._asked = {**self._known, **asked}
            return self._built(request, version, ())
        self._asked = asked
        if version.API_VERSION < _OLDEST:
            return FetchRequest.build(request, version)
        known: Mapping[tuple[str, int], Fetched] = {} if self._epoch == FIRST_EPOCH else self._known
        changes = copy.copy(request)
        changes._topics = []
        for topic, partitions in request.topics:
            changed = [each for each in partitions if known.get((topic, each[0])) != (each[1], each[2])]
            if changed:
                changes._topics.append((topic, changed))
        gone: dict[str, list[int]] = {}
        for topic, partition in known:
            if (topic, partition) not in asked:
                gone.setdefault(topic, []).append(partition)
        return self._built(changes, version, gone.items())

    def _built(self, changes: FetchRequest, version: Any, gone: Iterable[tuple[str, list[int]]]) -> Any:
        built = FetchRequest.build(changes, quick(version))
        built.session_id, built.session_epoch, built.forgotten_topics_data = self._id, self._epoch, list(gone)
        return built

    def asked(self, answer: Any) -> list[tuple[str, list[tuple[int, int, int]]]]:
        """Returns what was asked for of the partitions in the answer, as in a request: partition,
        offset (-1: nothing was) and most bytes.
        """
        nothing = (-1, 0)
        return [(topic, [(each[0], *self._asked.get((topic, each[0]), nothing)) for each in partitions]) for topic, partitions in answer.topics]

    def knows(self, topic: str, partition: int) -> bool:
        """Returns whether the broker has answered for this partition, and does so again when it has
        something new.
        """
        return self._epoch != FIRST_EPOCH and (topic, partition) in self._known

    def knows_only(self, places: Iterable[tuple[str, int]]) -> bool:
        """Returns whether the broker fetches nothing but these partitions."""
        return self._known.keys() <= set(places)

    def answered(self, answer: Any) -> None:
        """The broker has answered the request."""
        self._has_failed = any(each[1] for _, partitions in answer.topics for each in partitions)
        if answer.API_VERSION < _OLDEST or answer.error_code:
            self.lost()
        elif answer.session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        else:
            self._id, self._epoch = answer.session_id, 1 if self._epoch == LAST_EPOCH else self._epoch + 1
            self._known = self._asked

    def lost(self) -> None:
        """Whether the broker has taken the last request is not known. The next one begins a new
        session, and ends this one.
        """
        self._epoch = FIRST_EPOCH


class SessionRequest(FetchRequest):  # type: ignore[misc]  # aiokafka ships no types
    """A fetch of all partitions, of which `session` sends the changes. `names_changes`: it names
    only those partitions of which something else is fetched than before.
    """

    session: FetchSession
    names_changes = False
    epochs: dict[tuple[str, int], int] | None = None
    """Gets the leader epochs of what is answered; None: they are not needed."""

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
        request.session.answered(answer)
        request._topics = request.session.asked(answer)  # all that aiokafka looks for
        if request.epochs is not None:
            request.epochs.update(
                ((topic, each[0]), last_epoch(each[-1])) for topic, partitions in answer.topics for each in partitions if each[-1]
            )
        return answer

    return send_in_session
