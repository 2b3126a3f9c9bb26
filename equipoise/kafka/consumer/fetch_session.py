"""A fetch session (KIP-227): a broker remembers what a consumer fetches. A request names only what
has changed since the last one, and its answer only partitions with something new. Without sessions
each fetch and each answer names all partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from equipoise.kafka.client import TopicPartition

NO_SESSION = 0
"""Session id in a request for a new session, and in an answer of a broker whose session cache is
full.
"""
FIRST_EPOCH = 0
"""Epoch of a request for a new session."""
LAST_EPOCH = 2**31 - 1
"""The epoch after it is 1."""
Asked = tuple[int, int]
"""Offset, and leader epoch as the consumer knows it, of a partition that is fetched."""


class FetchSession:
    """The session with one broker. One request at a time: after `ask` it is `answered`, or `lost`.

    `known`: what the broker fetches once it has answered the present request.
    """

    __slots__ = ("epoch", "id", "known")

    def __init__(self) -> None:
        self.id, self.epoch = NO_SESSION, FIRST_EPOCH
        self.known: dict[TopicPartition, Asked] = {}

    @property
    def is_new(self) -> bool:
        """Returns whether the next request has to name everything."""
        return self.epoch == FIRST_EPOCH

    def ask(self, named: Mapping[TopicPartition, Asked], dropped: Collection[TopicPartition]) -> None:
        """A request names these partitions, all of them if the session is new, and drops others."""
        if self.is_new:
            self.known = dict(named)
        else:
            self.known.update(named)
            for place in dropped:
                del self.known[place]

    def answered(self, session_id: int) -> None:
        """The broker has answered without an error of the session. `session_id` NO_SESSION: it
        keeps none.
        """
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def lost(self) -> None:
        """Whether the broker has taken the last request is not known. The next one begins a new
        session, and ends this one.
        """
        self.epoch = FIRST_EPOCH
