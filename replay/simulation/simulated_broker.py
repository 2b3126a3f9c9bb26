"""The simulated broker and its producers: two partitions with append times of the broker's own
clock, long polls, acknowledgements, failovers, and the store of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import attrs

from equipoise.events.errors import GroupHalted
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.process_network import NetworkEnd, SimulatedNetwork
from equipoise.statemachine.group_lead import StoredCheckpoint

T = TypeVar("T")
MOST_RECORDS_A_FETCH = 500


@attrs.define(eq=False)
class FetchRequest:
    """A long poll. `respond` is called at the requesting endpoint with (records, next position,
    whether the end was reached).
    """

    endpoint: str
    position: int
    respond: Callable[..., None]
    tag: int
    open: bool = True


class SimulatedPartition(Generic[T]):
    """The records of one partition, and the long polls parked at its end."""

    def __init__(self) -> None:
        self.records: list[T] = []
        self.parked: list[FetchRequest] = []


MakeRecord = Callable[[str, int, int, Fact], FactRecord]
"""(group, offset, append_ms, event) -> record: `FactRecord` itself, or
`equipoise.events.codec.make_record` for records with checksums.
"""


class Broker:
    """Keeps the facts and decisions of one group. The broker's clock is the world's time plus
    `clock_offset_ms`, which changes with a failover.
    """

    def __init__(self, engine: Engine, network: SimulatedNetwork, *, group: str, make_record: MakeRecord = FactRecord) -> None:
        self.engine = engine
        self.network = network
        self.group = group
        self.make_record = make_record
        self.facts: SimulatedPartition[FactRecord] = SimulatedPartition()
        self.decisions: SimulatedPartition[DecisionRecord] = SimulatedPartition()
        self.published: list[DecisionRecord] = []
        """Each decision once: decision number n has index n - 1."""
        self.duplicates = 0
        self.checkpoints: list[StoredCheckpoint] = []
        self.clock_offset_ms = 0
        self.log_id = ""
        """Taken from LogOpened."""
        self.failovers = 0
        self._down_until_ms = engine.now_ms

    @property
    def up(self) -> bool:
        return self.engine.now_ms >= self._down_until_ms

    def fail_over(self, *, down_ms: int, clock_jump_ms: int) -> None:
        """Stops answering for `down_ms`, then lets a broker take over whose clock is
        `clock_jump_ms` ahead of the last one (< 0: behind).
        """
        self.failovers += 1
        self._down_until_ms = max(self._down_until_ms, self.engine.now_ms + down_ms)
        self.clock_offset_ms += clock_jump_ms
        for topic in (self.facts, self.decisions):
            for fetch in topic.parked:
                fetch.open = False
            topic.parked.clear()

    def append_fact(self, event: Fact) -> FactRecord:
        """Appends `event` to the facts partition and returns the record. `append_ms` is this
        broker's clock. See docs/protocol.md#l2.
        """
        if isinstance(event, LogOpened):
            self.log_id = event.log_id
        offset = len(self.facts.records)
        record = self.make_record(self.group if offset else "", offset, max(0, self.engine.now_ms + self.clock_offset_ms), event)
        self.facts.records.append(record)
        return record

    def wake_facts(self) -> None:
        """Answers the long polls parked at the end of the facts."""
        self._wake(self.facts)

    def produce(self, producer: ReplayedProducer, batch_number: int, topic: SimulatedPartition[Any], items: list[Any]) -> None:
        """Receives a batch: appends it unless it was appended before, and acknowledges it in either
        case.
        """
        if not self.up:
            return
        if batch_number > producer.appended_batch:
            producer.appended_batch = batch_number
            if topic is self.facts:
                for event in items:
                    self.append_fact(event)
            else:
                for decision in items:
                    self._append_decision(decision)
            self._wake(topic)
        producer.answer(batch_number)

    def _append_decision(self, record: DecisionRecord) -> None:
        """Raises GroupHalted when two decisions of one number differ, or a number is skipped. See
        docs/protocol.md#l4 and #l5.
        """
        self.decisions.records.append(record)
        if record.number == len(self.published) + 1:
            self.published.append(record)
            return
        if record.number > len(self.published):
            raise GroupHalted(self.group, record.caused_by, "decision_skipped", f"decision {record.number} was published after {len(self.published)}")
        self.duplicates += 1
        if self.published[record.number - 1] != record:
            raise GroupHalted(self.group, record.caused_by, "published_differs", f"two decisions have number {record.number}")

    def forget(self, keep: int) -> None:
        """Drops all but the last `keep` facts and decisions. Offsets stay; reading a dropped record
        fails.
        """
        for kept in (self.facts.records, self.decisions.records, self.published):
            gone = cast(list[Any], kept)
            for at in range(len(gone) - keep - 1, -1, -1):
                if gone[at] is None:
                    break
                gone[at] = None

    def store_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Keeps the newest checkpoint alone, as a compacted topic does."""
        if not self.checkpoints or checkpoint.offset > self.checkpoints[-1].offset:
            self.checkpoints = [checkpoint]

    def fetch(self, endpoint: str, topic: SimulatedPartition[Any], position: int, wait_ms: int, respond: Callable[..., None], tag: int) -> None:
        """Receives a fetch: answers at once when there are records, else when one arrives, or after
        `wait_ms` with none.
        """
        if not self.up:
            return
        fetch = FetchRequest(endpoint, position, respond, tag)
        if position < len(topic.records) or not wait_ms:
            self._serve(topic, fetch)
        else:
            topic.parked.append(fetch)
            self.engine.after(wait_ms, self._waited, topic, fetch)

    def _waited(self, topic: SimulatedPartition[Any], fetch: FetchRequest) -> None:
        if fetch.open:
            topic.parked.remove(fetch)
            self._serve(topic, fetch)

    def _wake(self, topic: SimulatedPartition[Any]) -> None:
        parked, topic.parked = topic.parked, []
        for fetch in parked:
            self._serve(topic, fetch)

    def _serve(self, topic: SimulatedPartition[Any], fetch: FetchRequest) -> None:
        fetch.open = False
        records = topic.records[fetch.position : fetch.position + MOST_RECORDS_A_FETCH]
        position = fetch.position + len(records)
        self.network.send(fetch.endpoint, fetch.respond, fetch.tag, records, position, position >= len(topic.records))

    def locate_end(self, endpoint: str, respond: Callable[..., None], tag: int) -> None:
        """Answers with the log's id, the end of its decisions partition, and the highest decision
        number before that end. See docs/protocol.md#m1.
        """
        if self.up:
            self.network.send(endpoint, respond, tag, self.log_id, len(self.decisions.records), len(self.published))


class ReplayedProducer:
    """Appends to one partition in order, as Kafka's idempotent producer does: one request under
    way, sent again until acknowledged, appended once.
    """

    def __init__(self, owner: NetworkEnd, broker: Broker, topic: SimulatedPartition[Any], acknowledged: Callable[[Any, int], None]) -> None:
        self._owner = owner
        self._broker = broker
        self._topic = topic
        self._acknowledged = acknowledged
        self._waiting: list[tuple[Any, int]] = []
        self._batch: list[tuple[Any, int]] = []
        self.batch_number = 0
        self.appended_batch = 0
        """Number of the last batch that the broker appended: the broker's state of this producer.
        """

    @property
    def idle(self) -> bool:
        return not self._batch and not self._waiting

    def send(self, item: Any) -> None:
        """Sends `item`. Its send time is now, however often it is sent again."""
        self._waiting.append((item, self._owner.engine.now_ms))
        if not self._batch:
            self._next_batch()

    def _next_batch(self) -> None:
        self._batch, self._waiting = self._waiting, []
        self.batch_number += 1
        self._transmit(self.batch_number)

    def _transmit(self, batch_number: int) -> None:
        if batch_number != self.batch_number or not self._batch:
            return
        network = self._owner.network
        items = [item for item, _ in self._batch]
        network.send(self._owner.name, self._broker.produce, self, batch_number, self._topic, items)
        self._owner.after(network.settings.resend_after_ms, self._transmit, batch_number)

    def answer(self, batch_number: int) -> None:
        """Called by the broker: sends the acknowledgement."""
        self._owner.network.send(self._owner.name, self._owner.run, self._answered, batch_number)

    def _answered(self, batch_number: int) -> None:
        if batch_number != self.batch_number or not self._batch:
            return
        batch, self._batch = self._batch, []
        for item, sent_ms in batch:
            self._acknowledged(item, sent_ms)
        if self._waiting and not self._batch:
            self._next_batch()
