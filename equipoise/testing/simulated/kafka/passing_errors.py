"""Errors that pass: nothing is wrong with the request, which is to be sent again. Some come after
the request was carried out.
"""

from __future__ import annotations

from random import Random

from aiokafka import errors

ErrorClass = type[Exception]


class FencedLeaderEpochError(errors.BrokerResponseError):  # type: ignore[misc]  # aiokafka ships no types
    """The client knows an earlier leader epoch than the leader."""

    errno = 74


class UnknownLeaderEpochError(errors.BrokerResponseError):  # type: ignore[misc]
    """The client knows a later leader epoch than the leader."""

    errno = 75


class OffsetNotAvailableError(errors.BrokerResponseError):  # type: ignore[misc]
    """A new leader does not know its high watermark yet."""

    errno = 78


_OF_LEADERS = (errors.NotLeaderForPartitionError, errors.UnknownTopicOrPartitionError, errors.KafkaStorageError)
_OF_COORDINATORS = (errors.CoordinatorLoadInProgressError, errors.CoordinatorNotAvailableError, errors.NotCoordinatorError)
BEFORE: dict[str, tuple[ErrorClass, ...]] = {
    "Produce": (*_OF_LEADERS, errors.RequestTimedOutError, errors.NotEnoughReplicasError),
    "Fetch": (
        *_OF_LEADERS,
        errors.ReplicaNotAvailableError,
        FencedLeaderEpochError,
        UnknownLeaderEpochError,
        OffsetNotAvailableError,
        errors.UnknownError,
    ),
    "ListOffsets": (*_OF_LEADERS, errors.LeaderNotAvailableError),
    "OffsetForLeaderEpoch": _OF_LEADERS,
    "FindCoordinator": (errors.CoordinatorNotAvailableError,),
    "__consumer_offsets": _OF_COORDINATORS,
    "__transaction_state": (*_OF_COORDINATORS, errors.ConcurrentTransactions),
}
"""Request, or topic of its coordinator -> errors before it is carried out."""
AFTER: dict[str, tuple[ErrorClass, ...]] = {
    "Produce": (errors.RequestTimedOutError, errors.NotEnoughReplicasAfterAppendError),
    "coordinator": (errors.CoordinatorNotAvailableError, errors.NotCoordinatorError),
}
"""The same behind it, when replicas have not said in time that they have it."""


class PassingErrors:
    """`share`: part of all partitions and coordinators in requests that are answered so."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.share = 0.0

    def before(self, request: str) -> ErrorClass | None:
        """Returns the error with which a broker answers before it does anything; None: none."""
        return self._drawn(BEFORE[request])

    def after(self, request: str) -> ErrorClass | None:
        """Returns the error with which a broker answers what it has done; None: none."""
        return self._drawn(AFTER[request])

    def _drawn(self, kinds: tuple[ErrorClass, ...]) -> ErrorClass | None:
        return self._random.choice(kinds) if self.share and self._random.random() < self.share else None
