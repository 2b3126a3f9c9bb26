"""Sorts the error codes in answers to a producer."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from aiokafka import errors


class InvalidRecordError(errors.BrokerResponseError):  # type: ignore[misc]  # aiokafka ships no types
    """A broker refuses a record, for example one without a key in a compacted topic. aiokafka has
    no class for it, and would take it for an unknown error of the broker.
    """

    errno = 87
    message = "INVALID_RECORD"
    description = "a record is not valid for its topic"


class UnknownTopicIdError(errors.BrokerResponseError):  # type: ignore[misc]  # aiokafka ships no types
    """The topic was deleted, whether there is another one of its name or not. aiokafka has no class
    for it.
    """

    errno = 100
    message = "UNKNOWN_TOPIC_ID"
    description = "the topic was deleted"


for _each in (InvalidRecordError, UnknownTopicIdError):
    errors.kafka_errors.setdefault(_each.errno, _each)
REFUSED = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
    errors.InvalidTimestampError,
    InvalidRecordError,
)
"""Errors with which a broker refuses a batch for good, and notes no sequence numbers of it."""
_FENCED = 90
"""PRODUCER_FENCED, which aiokafka does not number."""


class Meaning(StrEnum):
    """Sorts errors in the answers of coordinators."""

    DONE = "done"
    AGAIN = "again"
    MOVED = "moved"
    """Another broker coordinates by now."""
    ABORT = "abort"
    """The transaction can only be aborted."""
    FATAL = "fatal"


_MEANINGS = {
    0: Meaning.DONE,
    errors.NotCoordinatorError.errno: Meaning.MOVED,
    errors.CoordinatorNotAvailableError.errno: Meaning.MOVED,
    errors.ConcurrentTransactions.errno: Meaning.AGAIN,
    errors.OperationNotAttempted.errno: Meaning.AGAIN,
    errors.TopicAuthorizationFailedError.errno: Meaning.ABORT,
    errors.GroupAuthorizationFailedError.errno: Meaning.ABORT,
}


def meaning_of(code: int) -> Meaning:
    """Returns what an error code of a coordinator means; 0: no error."""
    known = _MEANINGS.get(code)
    if known is not None:
        return known
    return Meaning.AGAIN if errors.for_code(code).retriable else Meaning.FATAL


def error_of(code: int, about: Any = None) -> Exception:
    """Returns the error with a code. `about`: what it names; None: nothing."""
    if code in (errors.InvalidProducerEpoch.errno, _FENCED):
        fenced: Exception = errors.ProducerFenced()
        return fenced
    kind = errors.for_code(code)
    error: Exception = kind() if about is None else kind(about)
    return error
