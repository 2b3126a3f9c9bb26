"""The producer id and the transaction of a producer: states, and the requests to coordinators, one
at a time. Transactions are those of the first version (KIP-98), which every broker knows.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Any

import attrs
from aiokafka import errors

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.producer.errors import Meaning, error_of, meaning_of
from equipoise.kafka.producer.sending_orders import (
    NO_PRODUCER_ID,
    AddGroup,
    AddPartitions,
    CommitInTransaction,
    Coordinates,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    ProducerId,
    ProducerOptions,
    TransactionOrder,
)
from equipoise.kafka.producer.states import ENDING, OPEN, ProducerState, check_transition

MARKERS_MS = 2.0
"""How soon to begin a transaction again while the markers of the former one are written, which
takes some milliseconds.
"""


@attrs.define(eq=False)
class OffsetsCommit:
    """Offsets of a group that are committed with the transaction. `notes`: their metadata. `error`:
    why not.
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    notes: Mapping[TopicPartition, str]
    is_ended: bool = False
    error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """It is in the transaction, or has failed."""
        self.is_ended, self.error = True, error


class TransactionManager:
    """See the module."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self.state = ProducerState.UNINITIALIZED
        self.error: Exception | None = None
        """Why nothing can be sent any more, or the transaction can only be aborted."""
        self.producer = NO_PRODUCER_ID
        self.waiting: dict[TopicPartition, None] = {}
        """Partitions that are to be added to the transaction."""
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        """Those whose offsets are in the transaction."""
        self._offsets: deque[OffsetsCommit] = deque()
        self._coordinators: dict[tuple[Coordinates, str], int] = {}
        self._connects = False
        self._is_asked = False
        self._from_ms = -inf
        self.has_moved = False
        """Whether metadata is to be asked for."""

    # What the host wants

    @property
    def is_transactional(self) -> bool:
        """Returns whether it has a transactional id."""
        return self._options.transactional_id is not None

    @property
    def has_coordinator(self) -> bool:
        """Returns whether the transaction coordinator is known."""
        return (Coordinates.TRANSACTION, self._options.transactional_id) in self._coordinators

    def connect(self) -> None:
        """Finds the transaction coordinator. Fences nobody."""
        self._connects = self.is_transactional

    def initialize(self) -> None:
        """Asks for a producer id, which fences former producers with the transactional id. Raises
        IllegalStateError.
        """
        self._go_to(ProducerState.INITIALIZING)

    def check_can_send(self) -> None:
        """Raises IllegalOperation outside of a transaction, or the fatal error."""
        if self.state is ProducerState.FATAL_ERROR:
            raise copy.copy(self.error or errors.KafkaError())
        if self.is_transactional and self.state not in OPEN:
            raise errors.IllegalOperation("Can't send messages while not in transaction")

    def begin(self, expected: Collection[TopicPartition]) -> None:
        """`expected`: partitions to add at once. Raises IllegalOperation, IllegalStateError, or the
        fatal error.
        """
        self._must_be_transactional()
        self._go_to(ProducerState.IN_TRANSACTION)
        self.error = None
        self.waiting.update(dict.fromkeys(expected))

    def add(self, place: TopicPartition) -> None:
        """A batch of this partition is queued."""
        if self.is_transactional and place not in self._added:
            self.waiting[place] = None

    def add_offsets(self, group: str, offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, str]) -> OffsetsCommit:
        """Raises IllegalOperation, or the fatal error."""
        self._must_be_transactional()
        if self.state is ProducerState.FATAL_ERROR:
            raise copy.copy(self.error or errors.KafkaError())
        if self.state not in OPEN:
            raise errors.IllegalOperation("Not in the middle of a transaction")
        commit = OffsetsCommit(group, dict(offsets), notes)
        if offsets:
            self._offsets.append(commit)
        else:
            commit.end(None)
        return commit

    def end(self, *, commits: bool) -> None:
        """Ends the transaction, when all that was queued has ended. Raises IllegalOperation,
        IllegalStateError, or the error because of which it cannot be committed.
        """
        self._must_be_transactional()
        if commits and self.state is ProducerState.ABORTABLE_ERROR:
            raise copy.copy(self.error or errors.KafkaError())
        self._go_to(ProducerState.COMMITTING if commits else ProducerState.ABORTING)

    def abort_for(self, error: Exception) -> None:
        """A batch of the transaction was not appended: it can only be aborted. Fatal if another
        producer has the transactional id.
        """
        if isinstance(error, errors.ProducerFenced) and self.is_transactional:
            self.fail(error)
        elif self.state in (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING):
            self._go_to(ProducerState.ABORTABLE_ERROR)
            self.error = error

    def fail(self, error: Exception) -> None:
        """Nothing can be sent any more."""
        if self.state is not ProducerState.FATAL_ERROR:
            self._go_to(ProducerState.FATAL_ERROR)
            self.error = error
            self.waiting.clear()
            for each in self._offsets:
                each.end(error)
            self._offsets.clear()

    def _must_be_transactional(self) -> None:
        if not self.is_transactional:
            raise errors.IllegalOperation("You need to configure transaction_id to use transactions")

    def _go_to(self, state: ProducerState) -> None:
        if self.state is ProducerState.FATAL_ERROR and self.error is not None:
            raise copy.copy(self.error)
        check_transition(self.state, state)
        self.state = state

    # What is to be sent

    def due(self, now_ms: float, *, is_flushed: bool) -> tuple[TransactionOrder | None, float]:
        """Returns what is to be sent now, and when to look again. `is_flushed`: every batch has
        ended.
        """
        if self._is_asked:
            return None, inf
        if self.state in ENDING and is_flushed and not (self._added or self._groups or self.waiting or self._offsets):
            self._complete()  # nothing was written
        wanted = self._wanted(is_flushed)
        if wanted is None or now_ms < self._from_ms:
            return None, inf if wanted is None else self._from_ms
        self._is_asked = True
        return wanted, inf

    def _wanted(self, is_flushed: bool) -> TransactionOrder | None:
        if self.state is ProducerState.UNINITIALIZED:
            return None if not self._connects or self.has_coordinator else self._find(Coordinates.TRANSACTION)
        if self.state is ProducerState.INITIALIZING and not self.is_transactional:
            return InitProducerId(None)
        if self.state in (ProducerState.READY, ProducerState.FATAL_ERROR):
            return None
        commits_offsets = self._offsets and not self.waiting and self._offsets[0].group in self._groups
        key = Coordinates.GROUP if commits_offsets else Coordinates.TRANSACTION
        name = self._offsets[0].group if commits_offsets else self._options.transactional_id
        ends = self.state in ENDING and is_flushed
        if not (self.state is ProducerState.INITIALIZING or self.waiting or self._offsets or ends):
            return None
        node = self._coordinators.get((key, name or ""))
        if node is None:
            return self._find(key)
        if self.state is ProducerState.INITIALIZING:
            return InitProducerId(node)
        if self.waiting:
            return AddPartitions(node, self.producer, tuple(self.waiting))
        if self._offsets:
            first = self._offsets[0]
            if not commits_offsets:
                return AddGroup(node, self.producer, first.group)
            return CommitInTransaction(node, self.producer, first.group, first.offsets, first.notes)
        return EndTransaction(node, self.producer, self.state is ProducerState.COMMITTING)

    def _find(self, kind: Coordinates) -> FindCoordinator:
        return FindCoordinator(kind, self._offsets[0].group if kind is Coordinates.GROUP else self._options.transactional_id or "")

    # What has become of it

    def unanswered(self, order: TransactionOrder, error: Exception, now_ms: float) -> None:
        """The order had no answer."""
        self._is_asked = False
        if isinstance(error, errors.IncompatibleBrokerVersion | NotImplementedError) or not isinstance(error, errors.KafkaError):
            self.fail(error)
            return
        self._moved(order, now_ms)

    def answered(self, order: TransactionOrder, answer: Any, now_ms: float) -> None:
        """A broker has answered, with a response of aiokafka."""
        self._is_asked = False
        if self.state is ProducerState.FATAL_ERROR:
            return
        codes = list(_codes(answer))
        for wanted in (Meaning.FATAL, Meaning.MOVED, Meaning.ABORT, Meaning.AGAIN):
            code = next((code for _, code in codes if meaning_of(code) is wanted), None)
            if code is not None:
                self._refused(order, wanted, code, codes, now_ms)
                return
        self._done(order, answer)

    def _done(self, order: TransactionOrder, answer: Any) -> None:
        match order:
            case FindCoordinator(kind, key):
                self._coordinators[kind, key] = answer.coordinator_id
            case InitProducerId():
                self.producer = ProducerId(answer.producer_id, answer.producer_epoch)
                self._go_to(ProducerState.READY)
            case AddPartitions(_, _, places):
                self._are_added(places)
            case AddGroup(_, _, group):
                self._groups.add(group)
            case CommitInTransaction():
                if self._offsets:
                    self._offsets.popleft().end(None)
            case EndTransaction():
                self._complete()

    def _are_added(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self.waiting.pop(place, None)
            self._added.add(place)

    def _complete(self) -> None:
        self._go_to(ProducerState.READY)
        self._added.clear()
        self._groups.clear()
        self.error = None

    def _refused(self, order: TransactionOrder, how: Meaning, code: int, codes: Iterable[tuple[TopicPartition | None, int]], now_ms: float) -> None:
        if how is Meaning.MOVED:
            self._moved(order, now_ms)
            return
        is_concurrent = code == errors.ConcurrentTransactions.errno
        self._from_ms = now_ms + (MARKERS_MS if is_concurrent and isinstance(order, AddPartitions) and not self._added else self._options.retry_ms)
        if how is Meaning.FATAL:
            self.fail(error_of(code, self._options.transactional_id if code == errors.TransactionalIdAuthorizationFailed.errno else None))
        elif how is Meaning.ABORT:
            if isinstance(order, InitProducerId):
                self.fail(error_of(code))
                return
            denied = {place[0] for place, each in codes if place is not None and meaning_of(each) is Meaning.ABORT}
            if code == errors.TopicAuthorizationFailedError.errno:
                self.abort_for(error_of(code, denied))
            elif self._offsets:
                self.abort_for(error_of(code, self._offsets[0].group))
            if isinstance(order, AddPartitions):  # a batch of these is refused with the same error, by the leader
                for place in [each for each in self.waiting if each[0] in denied]:
                    del self.waiting[place]
            elif self._offsets:
                self._offsets.popleft().end(self.error)
        else:
            self.has_moved |= any(errors.for_code(each).invalid_metadata for _, each in codes)  # of those of a topic that is gone

    def _moved(self, order: TransactionOrder, now_ms: float) -> None:
        """Another broker may coordinate by now."""
        self._from_ms, self.has_moved = now_ms + self._options.retry_ms, True
        if isinstance(order, CommitInTransaction):
            self._coordinators.pop((Coordinates.GROUP, order.group), None)
        elif not isinstance(order, FindCoordinator):
            self._coordinators.pop((Coordinates.TRANSACTION, self._options.transactional_id or ""), None)


def _codes(answer: Any) -> Iterable[tuple[TopicPartition | None, int]]:
    """The error codes of an answer, each with its partition; None: it is of the whole answer."""
    if hasattr(answer, "error_code"):
        yield None, answer.error_code
        return
    for topic, partitions in answer.errors:
        for partition, code in partitions:
            yield TopicPartition(topic, partition), code
