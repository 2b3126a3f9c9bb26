"""The brokers of a simulated cluster: topics, replication, failover, and the requests of clients.

A partition has one log, not one for each replica. What its in-sync replicas lack is what is not
acknowledged: the records from the high watermark on. Some of them are lost at a failover, none
before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from aiokafka import errors

from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition
from equipoise.kafka.consumer.requests import END, FIRST
from equipoise.kafka.producer.errors import InvalidRecordError
from equipoise.testing.simulated.kafka.broker_network import CallsLater, Network
from equipoise.testing.simulated.kafka.classic_groups import ClassicGroups
from equipoise.testing.simulated.kafka.cluster_state import (
    BrokerPartition,
    ErrorClass,
    Reply,
    SimulatedBroker,
    SimulatedTopic,
    TopicDescription,
)
from equipoise.testing.simulated.kafka.coordinators import Coordinators
from equipoise.testing.simulated.kafka.fetch_sessions import Answered, Wanted
from equipoise.testing.simulated.kafka.partition_log import Batch, LeaderEpochs, PartitionLog
from equipoise.testing.simulated.kafka.passing_errors import FencedLeaderEpochError, PassingErrors, UnknownLeaderEpochError
from equipoise.testing.simulated.kafka.stored_batches import read_batches

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time of the scheduler's zero."""
PAUSED_US = 100_000
"""How often a paused broker's timers look whether it runs again."""
DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}


class Cluster:
    """`election_us`: from the loss of a broker to new leaders, at least and at most.
    `replicate_us`: until the replicas have a record. `settle_us`: until a new leader knows its high
    watermark. `tell_us`: until the other replicas know it.
    """

    def __init__(self, scheduler: CallsLater, random: Random, *, brokers: int = 1, network: Network | None = None) -> None:
        self.scheduler = scheduler
        self.random = random
        self.network = network or Network(random)
        self.brokers = [SimulatedBroker(number, f"rack-{number}") for number in range(brokers)]
        self.topics: dict[str, SimulatedTopic] = {}
        self.most_fetch_bytes: int | None = None
        """Of a partition's batches in an answer, after the first one; None: what the fetch asks."""
        self.election_us = (500_000, 3_000_000)
        self.replicate_us = (300, 2_000)
        self.settle_us = (1_000, 500_000)
        self.tell_us = (1_000, 600_000)
        self.has_near_readers = False
        self.tells_epochs = False
        """Whether metadata has leader epochs. aiokafka asks for a version without."""
        self.passing = PassingErrors(random)
        self.records_appended = 0
        self.clocks_ms: dict[str, int] = {}
        """Machine -> how far the clock of its clients is ahead."""
        self.refuses: Callable[[str, Batch], ErrorClass | None] = lambda topic, batch: None
        """With what a leader refuses a batch for this topic; None: it takes it."""
        self.may_read: Callable[[str], bool] = lambda topic: True
        """Whether users may read a topic."""
        self.coordinators = Coordinators(self)
        self.groups = ClassicGroups(scheduler)

    def now_ms(self, broker: SimulatedBroker | None = None) -> int:
        """The wall clock of a broker; None: of a correct clock."""
        return EPOCH_MS + self.scheduler.now_us // 1_000 + (0 if broker is None else broker.clock_ms)

    def between_us(self, bounds: tuple[int, int]) -> int:
        return bounds[0] + int(self.random.random() * (bounds[1] - bounds[0]))

    def every_partition(self) -> Iterable[BrokerPartition]:
        for topic in self.topics.values():
            yield from topic.partitions
        yield from self.coordinators.partitions

    def partition(self, place: TopicPartition) -> BrokerPartition | None:
        topic = self.topics.get(place[0])
        return topic.partitions[place[1]] if topic is not None and 0 <= place[1] < len(topic.partitions) else None

    # Topics, at once

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        replicas: Mapping[int, Sequence[int]] | None = None,
    ) -> ErrorClass | None:
        """Creates a topic with a new id and offsets from 0 on. `replicas`: partition -> brokers, in
        place of the two numbers. Returns an error.
        """
        if name in self.topics:
            return errors.TopicAlreadyExistsError
        if replication > len(self.brokers):
            return errors.InvalidReplicationFactorError
        topic_id = f"{self.random.getrandbits(128):032x}"
        if replicas:
            made = [self.new_partition(name, index, replicas[index]) for index in range(len(replicas))]
        else:
            made = [self.new_partition(name, index, self.spread(index, replication)) for index in range(partitions)]
        self.topics[name] = SimulatedTopic(name, topic_id, {**DEFAULTS, **(configs or {})}, made)
        return None

    def spread(self, index: int, replication: int) -> list[int]:
        return [(index + step) % len(self.brokers) for step in range(replication)]

    def new_partition(self, topic: str, index: int, brokers: Sequence[int]) -> BrokerPartition:
        replicas = list(brokers)
        well = [each for each in replicas if self.brokers[each].is_well]
        return BrokerPartition(TopicPartition(topic, index), replicas, PartitionLog(topic, index), well[0] if well else -1, well or replicas)

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """Retention: the partition begins at `before`, at most at its high watermark."""
        log = self.topics[place[0]].partitions[place[1]].log
        log.delete_before(min(before, log.high_watermark))

    # Replication

    def append(self, each: BrokerPartition, batch: Batch) -> int:
        """Appends a batch at the leader, and begins to replicate it. Returns its first offset."""
        broker = self.brokers[each.leader]
        topic = self.topics.get(each.place.topic)
        has_append_time = batch.marker is not None or (topic is not None and topic.configs["message.timestamp.type"] == "LogAppendTime")
        batch.appended_us = self.scheduler.now_us
        offset = each.log.append(batch, self.now_ms(broker) if has_append_time else None)
        self.records_appended += each.log.end - offset
        if each.isr == [each.leader]:
            self._replicated(each, each.epoch, each.log.end)
        else:
            self.scheduler.call_later(self.between_us(self.replicate_us), self._replicated, each, each.epoch, each.log.end)
        return offset

    def acknowledge(self, each: BrokerPartition, offset: int, end: int, reply: Reply) -> None:
        """Replies with `offset` when all replicas have the records before `end`; with an error if
        the leader changes before.
        """
        if end <= each.log.high_watermark:
            reply(offset)
        else:
            each.unacknowledged.append((end, reply, offset))

    def _replicated(self, each: BrokerPartition, epoch: int, end: int) -> None:
        if epoch != each.epoch or each.is_settling or not all(self.brokers[number].is_well for number in each.isr):
            return
        log = each.log
        if log.raise_high_watermark(min(end, log.end)):
            if each.unacknowledged:
                done = [waiting for waiting in each.unacknowledged if waiting[0] <= log.high_watermark]
                each.unacknowledged = [waiting for waiting in each.unacknowledged if waiting[0] > log.high_watermark]
                for _, reply, offset in done:
                    reply(offset)
            self._bound_moved(each)

    def _fail_unacknowledged(self, each: BrokerPartition, error: ErrorClass) -> None:
        waiting, each.unacknowledged = each.unacknowledged, []
        for _, reply, _ in waiting:
            reply(error)

    def _bound_moved(self, each: BrokerPartition) -> None:
        for fetch in list(each.fetches):
            fetch()
        if self.has_near_readers:
            self.scheduler.call_later(self.between_us(self.tell_us), self._told, each, each.log.high_watermark, each.log.last_stable_offset)

    def _told(self, each: BrokerPartition, high_watermark: int, stable: int) -> None:
        each.near = max(each.near[0], high_watermark), max(each.near[1], stable)
        for fetch in list(each.fetches):
            fetch()

    # What a broker knows

    def hold(self, broker: SimulatedBroker, reply: Reply, answer: Any) -> None:
        """Answers when the broker is in contact with the others again."""
        broker.held.append(lambda _: reply(answer))

    def leader_of(self, broker: SimulatedBroker, each: BrokerPartition) -> int:
        return each.leader if broker.view is None else broker.view.leaders.get(each.place, -1)

    def _asked(self, request: str, broker: SimulatedBroker, place: TopicPartition) -> tuple[BrokerPartition, int, int] | ErrorClass:
        """Returns what `_led` does, or the error with which the broker answers this time."""
        return self.passing.before(request) or self._led(broker, place)

    def _led(self, broker: SimulatedBroker, place: TopicPartition) -> tuple[BrokerPartition, int, int] | ErrorClass:
        """Partition, high watermark and last stable offset, if the broker believes to lead it."""
        topic = (self.topics if broker.view is None else broker.view.topics).get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return errors.UnknownTopicOrPartitionError
        each = topic.partitions[place[1]]
        if self.leader_of(broker, each) != broker.id:
            return errors.NotLeaderForPartitionError
        ends = (each.log.high_watermark, each.log.last_stable_offset) if broker.view is None else broker.view.ends[place]
        return each, *ends

    # Requests

    def metadata(self, topics: Iterable[str] | None, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with topic -> TopicDescription; None: it does not exist. `topics` None: all."""
        known = self.topics if broker.view is None else broker.view.topics
        described: dict[str, TopicDescription | None] = {}
        for name in known if topics is None else topics:
            topic = known.get(name)
            described[name] = None
            if topic is not None:
                leaders = [self.leader_of(broker, each) for each in topic.partitions]
                epochs = [each.epoch if broker.view is None else broker.view.epochs.get(each.place, (NO_EPOCH,))[0] for each in topic.partitions]
                described[name] = TopicDescription(topic.topic_id, leaders, [each.replicas for each in topic.partitions], epochs)
        reply(described)

    def produce(self, batches: Mapping[TopicPartition, Batch], transactional_id: str | None, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with partition -> first offset, or error, when all replicas have the records."""
        answers: dict[TopicPartition, int | ErrorClass] = {}

        def answered(place: TopicPartition, answer: int | ErrorClass) -> None:
            answers[place] = answer
            if len(answers) == len(batches):
                reply(answers)

        for place, batch in batches.items():
            self._produce(broker, place, batch, transactional_id, partial(answered, place))

    def _produce(self, broker: SimulatedBroker, place: TopicPartition, batch: Batch, transactional_id: str | None, reply: Reply) -> None:
        found = self._asked("Produce", broker, place)
        if not isinstance(found, tuple):
            reply(found)
            return
        if broker.view is not None:
            self.hold(broker, reply, errors.NotLeaderForPartitionError)  # it cannot reach its replicas
            return
        each = found[0]
        configs = self.topics[place[0]].configs
        if (refused := self.refuses(place[0], batch)) is not None:
            reply(refused)
        elif configs["message.timestamp.type"] == "CreateTime" and any(
            each[3] > self.now_ms(broker) + int(configs["message.timestamp.after.max.ms"]) for each in batch.contents
        ):
            reply(errors.InvalidTimestampError)
        elif "compact" in configs.get("cleanup.policy", "") and any(key is None for key, *_ in batch.contents):
            reply(InvalidRecordError)
        elif batch.size > int(configs["max.message.bytes"]):
            reply(errors.MessageSizeTooLargeError)
        elif batch.size > int(configs.get("segment.bytes", 2**30)):
            reply(errors.RecordListTooLargeError)
        elif len(each.isr) < int(configs["min.insync.replicas"]):
            reply(errors.NotEnoughReplicasError)
        elif (problem := self._transaction_problem(each, batch, transactional_id)) is not None:
            reply(problem)
        else:
            known = each.log.check(batch)
            if known is not None and not isinstance(known, int):
                reply(known)
                return
            offset = self.append(each, batch) if known is None else known
            self.acknowledge(each, offset, offset + len(batch.contents), lambda answer: reply(self.passing.after("Produce") or answer))

    def _transaction_problem(self, each: BrokerPartition, batch: Batch, transactional_id: str | None) -> ErrorClass | None:
        """Leaders ask the coordinator whether a partition belongs to the transaction (KIP-890)."""
        if transactional_id is None or each.log.has_open_transaction(batch.producer_id):
            return None
        each.log.verifying(batch)
        return self.coordinators.transaction_problem(transactional_id, batch.producer_id, batch.epoch, each.place)

    def fetch(
        self,
        wanted: Mapping[TopicPartition, Wanted],
        committed: bool,
        most_bytes: int,
        wait_us: int,
        near: bool,
        broker: SimulatedBroker,
        reply: Reply,
    ) -> None:
        """Replies with partition -> Answered, when there is something or after `wait_us`. `near`:
        as a replica that does not lead knows it (KIP-392).
        """
        fetch_now = partial(self._fetch_now, broker, wanted, committed, most_bytes, near, reply)
        if fetch_now(even_empty=not wait_us):
            return
        partitions = [found[0] for place in wanted if isinstance(found := self._led(broker, place), tuple)]
        is_waiting = True

        def again(*, even_empty: bool = False) -> None:
            nonlocal is_waiting
            if not is_waiting:
                return  # answered before
            if broker.is_paused:
                if even_empty:
                    self.scheduler.call_later(PAUSED_US, partial(again, even_empty=True))
            elif fetch_now(even_empty=even_empty):
                is_waiting = False
                for each in partitions:
                    each.fetches.remove(again)

        for each in partitions:
            each.fetches.append(again)
        self.scheduler.call_later(wait_us, partial(again, even_empty=True))

    def _fetch_now(
        self,
        broker: SimulatedBroker,
        wanted: Mapping[TopicPartition, Wanted],
        committed: bool,
        most_bytes: int,
        near: bool,
        reply: Reply,
        *,
        even_empty: bool,
    ) -> bool:
        answers, left_bytes = {}, most_bytes
        for place, each in wanted.items():
            answers[place] = self._fetch_one(broker, place, each, committed, left_bytes, near, one=left_bytes == most_bytes)
            left_bytes -= len(answers[place].data)
        if not even_empty and not any(each.code or each.data for each in answers.values()):
            return False
        reply(answers)
        return True

    def _fetch_one(
        self, broker: SimulatedBroker, place: TopicPartition, wanted: Wanted, committed: bool, left_bytes: int, near: bool, *, one: bool
    ) -> Answered:
        found = self._asked("Fetch", broker, place)
        if not isinstance(found, tuple):
            return Answered(found.errno)  # type: ignore[attr-defined]
        if not self.may_read(place[0]):
            return Answered(errors.TopicAuthorizationFailedError.errno)
        each, high_watermark, stable = found
        log, epoch = each.log, self._epochs(broker, each)[0]
        if wanted.epoch not in (NO_EPOCH, epoch):
            return Answered((FencedLeaderEpochError if wanted.epoch < epoch else UnknownLeaderEpochError).errno)
        if not log.start <= wanted.offset <= (log.end if broker.view is None else high_watermark):
            return Answered(errors.OffsetOutOfRangeError.errno)
        if near:
            high_watermark, stable = min(high_watermark, each.near[0]), min(stable, each.near[1])
        most_bytes = min(wanted.most_bytes, left_bytes)
        if self.most_fetch_bytes is not None:
            most_bytes, one = self.most_fetch_bytes, True
        bound = stable if committed else high_watermark
        data = read_batches(log, wanted.offset, bound, max_bytes=most_bytes, one=one) if bound > wanted.offset else b""
        return Answered(0, high_watermark, stable, log.start, log.aborted(wanted.offset, bound) if committed else (), data)

    def list_offsets(self, times: Mapping[TopicPartition, int], committed: bool, broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with partition -> offset of the first record from a time (ms) on, or with FIRST
        or END its first offset or end, with the epoch of its leader; or error.
        """
        answers: dict[TopicPartition, LeaderEnd | ErrorClass] = {}
        for place, time in times.items():
            found = self._asked("ListOffsets", broker, place)
            if not isinstance(found, tuple):
                answers[place] = found
                continue
            each, high_watermark, stable = found
            bound = stable if committed else high_watermark
            epoch = self._epochs(broker, each)[0]
            if time == FIRST:
                answers[place] = LeaderEnd(each.log.start, epoch)
            elif each.is_settling and broker.view is None:
                answers[place] = errors.LeaderNotAvailableError  # what KIP-207 answers to ListOffsets before version 5, which the consumer sends
            elif time == END:
                answers[place] = LeaderEnd(bound, epoch)
            else:
                late = (record.offset for record in each.log.records if record.timestamp_ms >= time and record.offset < bound)
                answers[place] = LeaderEnd(next(late, -1), epoch)
        reply(answers)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], broker: SimulatedBroker, reply: Reply) -> None:
        """Replies with partition -> where this leader epoch ends, or error."""
        answers: dict[TopicPartition, int | ErrorClass] = {}
        for place, epoch in epochs.items():
            found = self._asked("OffsetForLeaderEpoch", broker, place)
            answers[place] = self._epochs(broker, found[0])[1].end(epoch) if isinstance(found, tuple) else found
        reply(answers)

    def _epochs(self, broker: SimulatedBroker, each: BrokerPartition) -> tuple[int, LeaderEpochs]:
        """In which epoch the broker leads, and those before it."""
        return (each.epoch, each.log.epochs) if broker.view is None else broker.view.epochs[each.place]

    def answer_delete_records(self, place: TopicPartition, before: int, broker: SimulatedBroker) -> ErrorClass | None:
        """Deletes the records before this offset, -1: all, if the broker leads the partition.
        Returns an error.
        """
        found = self._led(broker, place)
        if not isinstance(found, tuple):
            return found
        if broker.view is not None:
            return errors.NotLeaderForPartitionError
        high_watermark = found[1]
        if before > high_watermark:
            return errors.OffsetOutOfRangeError
        self.delete_records(place, high_watermark if before < 0 else before)
        return None

    def set_configs(self, topic: str, configs: Mapping[str, str]) -> ErrorClass | None:
        """Gives a topic these settings, beside the defaults. Returns an error."""
        if topic not in self.topics:
            return errors.UnknownTopicOrPartitionError
        self.topics[topic].configs = {**DEFAULTS, **configs}
        return None
