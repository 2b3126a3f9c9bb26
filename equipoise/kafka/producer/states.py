"""The states of a producer and of its transaction, as in Kafka's `TransactionManager`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum

from aiokafka.errors import IllegalStateError


class ProducerState(StrEnum):
    """A producer without a transactional id stays READY once it has a producer id."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    """It waits for a producer id. That fences former producers with its transactional id."""
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    """The transaction can only be aborted. It still takes batches: tasks that share it each hear
    what becomes of their own.
    """
    FATAL_ERROR = "fatal error"
    """Nothing can be sent any more."""


TRANSITIONS: Mapping[ProducerState, Set[ProducerState]] = {
    ProducerState.UNINITIALIZED: {ProducerState.INITIALIZING, ProducerState.FATAL_ERROR},
    ProducerState.INITIALIZING: {ProducerState.READY, ProducerState.FATAL_ERROR},
    ProducerState.READY: {ProducerState.IN_TRANSACTION, ProducerState.FATAL_ERROR},
    ProducerState.IN_TRANSACTION: {
        ProducerState.COMMITTING,
        ProducerState.ABORTING,
        ProducerState.ABORTABLE_ERROR,
        ProducerState.FATAL_ERROR,
    },
    ProducerState.COMMITTING: {ProducerState.READY, ProducerState.ABORTABLE_ERROR, ProducerState.FATAL_ERROR},
    ProducerState.ABORTING: {ProducerState.READY, ProducerState.FATAL_ERROR},
    ProducerState.ABORTABLE_ERROR: {ProducerState.ABORTING, ProducerState.FATAL_ERROR},
    ProducerState.FATAL_ERROR: set(),
}
"""State -> those that may follow it."""
OPEN = {ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR}
"""A transaction takes records."""
ENDING = {ProducerState.COMMITTING, ProducerState.ABORTING}


def check_transition(state: ProducerState, to: ProducerState) -> None:
    """Raises IllegalStateError when `to` may not follow `state`."""
    if to not in TRANSITIONS[state]:
        raise IllegalStateError(f"a producer that is {state} cannot become {to}")
