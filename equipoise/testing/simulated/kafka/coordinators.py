"""The coordinators of transactions and of consumer groups' offsets.

Their state is replicated: it survives the coordinators' brokers. What changes with a failover is
the broker that answers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import attrs
from aiokafka import errors

from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.kafka.broker_network import CallsLater
from equipoise.testing.simulated.kafka.cluster_state import BrokerPartition, ErrorClass, Reply, SimulatedBroker
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.kafka.passing_errors import PassingErrors

GROUP, TRANSACTION = "__consumer_offsets", "__transaction_state"
COUNT = 5
AGAIN_US = 100_000
CHECK_US = 10_000_000
"""How often coordinators look for transactions that have expired."""
_MOST_EPOCH = 32_766


@attrs.define(eq=False)
class _Transactional:
    """A transactional id. `marker`: commit or abort, while the markers are being written."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = "empty"
    """"empty", "ongoing", "ending" or "complete"."""
    number: int = 0
    """Of the present transaction."""
    marker: bool = False
    partitions: dict[TopicPartition, None] = attrs.field(factory=dict)
    offsets: dict[str, dict[TopicPartition, tuple[int, int]]] = attrs.field(factory=dict)
    """Group -> offsets that the transaction commits, each with the number of its write."""


class NotedOffset(int):
    """A committed offset. `note`: its metadata."""

    note: str = ""


def noted(offset: int, note: str) -> NotedOffset:
    """Returns the offset, with its metadata."""
    committed = NotedOffset(offset)
    committed.note = note
    return committed


class Coordinated(Protocol):
    """The cluster of coordinators, as they see it (`cluster`)."""

    brokers: list[SimulatedBroker]
    passing: PassingErrors
    scheduler: CallsLater
    replicate_us: tuple[int, int]

    def between_us(self, bounds: tuple[int, int]) -> int: ...
    def new_partition(self, topic: str, index: int, brokers: Sequence[int]) -> BrokerPartition: ...
    def spread(self, index: int, replication: int) -> list[int]: ...
    def partition(self, place: TopicPartition) -> BrokerPartition | None: ...
    def leader_of(self, broker: SimulatedBroker, each: BrokerPartition) -> int: ...
    def hold(self, broker: SimulatedBroker, reply: Reply, answer: Any) -> None: ...
    def append(self, each: BrokerPartition, batch: Batch) -> int: ...
    def acknowledge(self, each: BrokerPartition, offset: int, end: int, reply: Reply) -> None: ...


class Coordinators:
    """`partitions`: of the internal topics. The leader of one is the coordinator of its ids."""

    def __init__(self, cluster: Coordinated) -> None:
        self._cluster = cluster
        self.partitions: list[BrokerPartition] = [
            cluster.new_partition(topic, index, cluster.spread(index, min(3, len(cluster.brokers))))
            for topic in (GROUP, TRANSACTION)
            for index in range(COUNT)
        ]
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        """Group -> committed offsets."""
        self._writes: dict[tuple[str, TopicPartition], int] = {}
        """Number of the write of each committed offset. An earlier one does not replace it, even if
        its transaction ends later.
        """
        self._last_write = 0
        self._transactional: dict[str, _Transactional] = {}
        self._producer_ids = 0

    def forget_topic(self, topic: str) -> None:
        for offsets in self.offsets.values():
            for place in [each for each in offsets if each[0] == topic]:
                del offsets[place]

    def _partition(self, kind: str, key: str) -> BrokerPartition:
        return self.partitions[(COUNT if kind == TRANSACTION else 0) + zlib.crc32(key.encode()) % COUNT]

    def _refusal(self, kind: str, key: str, broker: SimulatedBroker) -> ErrorClass | None:
        passing = self._cluster.passing.before(kind)
        if passing is not None:
            return passing
        each = self._partition(kind, key)
        if self._cluster.leader_of(broker, each) != broker.id:
            return errors.NotCoordinatorError
        return errors.CoordinatorLoadInProgressError if each.is_settling and broker.view is None else None

    def may_write(self, kind: str, key: str, broker: SimulatedBroker, reply: Reply) -> bool:
        """Returns whether the broker coordinates `key`. If not, it replies."""
        refusal = self._refusal(kind, key, broker)
        if refusal is not None:
            reply(refusal)
        elif broker.view is not None:
            self._cluster.hold(broker, reply, errors.NotCoordinatorError)
        return refusal is None and broker.view is None

    def _written(self, reply: Reply, answer: Any) -> None:
        """Replies when the replicas have it."""
        answer = self._cluster.passing.after("coordinator") or answer
        self._cluster.scheduler.call_later(self._cluster.between_us(self._cluster.replicate_us), reply, answer)

    def find(self, kind: str, key: str, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with the id of the coordinator's broker, or an error."""
        leader = self._cluster.leader_of(broker, self._partition(kind, key))
        reply(self._cluster.passing.before("FindCoordinator") or (leader if leader >= 0 else errors.CoordinatorNotAvailableError))

    # Groups' offsets

    def fetch_offsets(self, group: str, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with partition -> committed offset, or an error."""
        refusal = self._refusal(GROUP, group, broker)
        offsets = self.offsets if broker.view is None else broker.view.offsets
        reply(dict(offsets.get(group, {})) if refusal is None else refusal)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with an error, or None."""
        if not self.may_write(GROUP, group, broker, reply):
            return
        missing = [place for place in offsets if self._cluster.partition(place) is None]
        if missing:
            reply(errors.UnknownTopicOrPartitionError)
            return
        self._last_write += 1
        for place, offset in offsets.items():
            self._commit(group, place, offset, self._last_write)
        self._written(reply, None)

    def _commit(self, group: str, place: TopicPartition, offset: int, write: int) -> None:
        if write > self._writes.get((group, place), 0) and self._cluster.partition(place) is not None:
            self._writes[group, place] = write
            self.offsets.setdefault(group, {})[place] = offset

    # Producers

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with (producer id, epoch), or an error. Fences the id's former producer."""
        if transactional_id is None:
            self._producer_ids += 1
            reply((self._producer_ids, 0))
            return
        if not self.may_write(TRANSACTION, transactional_id, broker, reply):
            return
        known = self._transactional.get(transactional_id)
        if known is not None and known.state == "ongoing":
            known.epoch += 1
            self._end(known, commit=False)
        if known is not None and known.state == "ending":
            reply(errors.ConcurrentTransactions)
            return
        if known is None or known.epoch >= _MOST_EPOCH:
            self._producer_ids += 1
            known = self._transactional[transactional_id] = _Transactional(transactional_id, self._producer_ids, -1, timeout_ms)
        known.epoch += 1
        known.timeout_ms = timeout_ms
        known.state = "empty"
        self._written(reply, (known.producer_id, known.epoch))

    def _problem(self, transactional_id: str, producer_id: int, epoch: int) -> ErrorClass | None:
        known = self._transactional.get(transactional_id)
        if known is None or known.producer_id != producer_id:
            return errors.InvalidProducerIdMapping
        return errors.InvalidProducerEpoch if known.epoch != epoch else None

    def transaction_problem(self, transactional_id: str, producer_id: int, epoch: int, place: TopicPartition) -> ErrorClass | None:
        """Returns why a record of this producer may not be appended to a partition; None: it may."""
        problem = self._problem(transactional_id, producer_id, epoch)
        if problem is not None:
            return problem
        known = self._transactional[transactional_id]
        return None if known.state == "ongoing" and place in known.partitions else errors.InvalidTxnState

    def add_to_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        places: Sequence[TopicPartition],
        group: str | None,
        broker: SimulatedBroker,
        reply: Reply,
    ) -> None:
        """Adds partitions, or a group. Replies with an error, or None; where only some partitions are
        there, with the error of each.
        """
        if not self.may_write(TRANSACTION, transactional_id, broker, reply):
            return
        problem = self._problem(transactional_id, producer_id, epoch)
        known = self._transactional.get(transactional_id)
        gone = {place for place in places if self._cluster.partition(place) is None}
        if problem is not None or known is None:
            reply(problem)
        elif known.state == "ending":
            reply(errors.ConcurrentTransactions)
        elif gone == set(places) != set():
            reply(errors.UnknownTopicOrPartitionError)
        elif gone:
            reply({place: errors.UnknownTopicOrPartitionError if place in gone else errors.OperationNotAttempted for place in places})
        else:
            if known.state != "ongoing":
                known.state = "ongoing"
                known.number += 1
                wait_us = known.timeout_ms * 1_000 + self._cluster.between_us((0, CHECK_US))
                self._cluster.scheduler.call_later(wait_us, self._expire, known, known.number)
            known.partitions.update(dict.fromkeys(TopicPartition(*place) for place in places))
            if group is not None:
                known.offsets.setdefault(group, {})
            self._written(reply, None)

    def commit_in_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, int],
        broker: SimulatedBroker,
        reply: Reply,
    ) -> None:
        """Replies with an error, or None. The offsets are committed with the transaction."""
        if not self.may_write(GROUP, group, broker, reply):
            return
        problem = self._problem(transactional_id, producer_id, epoch)
        known = self._transactional.get(transactional_id)
        if problem is not None or known is None:
            reply(problem)
        elif known.state != "ongoing" or group not in known.offsets:
            reply(errors.InvalidTxnState)
        elif any(self._cluster.partition(place) is None for place in offsets):
            reply(errors.UnknownTopicOrPartitionError)
        else:
            self._last_write += 1
            known.offsets[group].update((place, (offset, self._last_write)) for place, offset in offsets.items())
            self._written(reply, None)

    def end_transaction(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with an error, or None: it will be committed, or aborted."""
        if not self.may_write(TRANSACTION, transactional_id, broker, reply):
            return
        problem = self._problem(transactional_id, producer_id, epoch)
        known = self._transactional.get(transactional_id)
        if problem is not None or known is None:
            reply(problem)
        elif known.state == "ongoing":
            self._end(known, commit=commit)
            self._written(reply, None)
        elif known.marker != commit or known.state == "empty":
            reply(errors.InvalidTxnState)
        else:
            reply(errors.ConcurrentTransactions if known.state == "ending" else None)

    def expire_all(self) -> None:
        """Every open transaction was open too long."""
        for known in self._transactional.values():
            self._expire(known, known.number)

    def _expire(self, known: _Transactional, number: int) -> None:
        if known.number != number or known.state != "ongoing":
            return
        if not self._answers(self._partition(TRANSACTION, known.id)):
            self._cluster.scheduler.call_later(AGAIN_US, self._expire, known, number)
            return
        known.epoch += 1
        self._end(known, commit=False)

    # Markers

    def _answers(self, each: BrokerPartition) -> bool:
        return each.leader >= 0 and self._cluster.brokers[each.leader].is_well and not each.is_settling

    def _end(self, known: _Transactional, *, commit: bool) -> None:
        known.state, known.marker = "ending", commit
        for place in known.partitions:
            self._later(partial(self._mark, known, place))
        for group in known.offsets:
            self._later(partial(self._mark_group, known, group))
        self._maybe_complete(known)

    def _later(self, function: Any, wait_us: int = 0) -> None:
        self._cluster.scheduler.call_later(wait_us + self._cluster.between_us(self._cluster.replicate_us), function)

    def _mark(self, known: _Transactional, place: TopicPartition) -> None:
        each = self._cluster.partition(place)  # of the same name: the topic may be another one by now
        if each is None:
            self._marked(known, place, 0)
        elif self._answers(each) and self._answers(self._partition(TRANSACTION, known.id)):
            offset = self._cluster.append(each, Batch(known.producer_id, known.epoch, -1, True, marker=known.marker))
            self._cluster.acknowledge(each, offset, offset + 1, partial(self._marked, known, place))
        else:
            self._later(partial(self._mark, known, place), AGAIN_US)

    def _marked(self, known: _Transactional, place: TopicPartition, answer: int | ErrorClass) -> None:
        """The leader has answered; a marker may be lost with it, like any record."""
        if isinstance(answer, int):
            del known.partitions[place]
            self._maybe_complete(known)
        else:
            self._later(partial(self._mark, known, place), AGAIN_US)

    def _mark_group(self, known: _Transactional, group: str) -> None:
        if not self._answers(self._partition(GROUP, group)):
            self._later(partial(self._mark_group, known, group), AGAIN_US)
            return
        offsets = known.offsets.pop(group)
        for place, (offset, write) in offsets.items() if known.marker else ():
            self._commit(group, place, offset, write)
        self._maybe_complete(known)

    def _maybe_complete(self, known: _Transactional) -> None:
        if not known.partitions and not known.offsets:
            known.state = "complete"
