"""A producer's core before simulated brokers, without an event loop: the test says what arrives
when, and what is lost.
"""

from __future__ import annotations

from random import Random
from typing import Any

from aiokafka.errors import KafkaConnectionError, NodeNotReadyError

from equipoise.kafka.client import NO_EPOCH, TopicPartition, Unsent
from equipoise.kafka.producer.core import ProducerCore
from equipoise.kafka.producer.record_batches import RecordBatch
from equipoise.kafka.producer.requests import request_of
from equipoise.kafka.producer.sending_orders import FindCoordinator, ProducerOptions, SendOrder
from equipoise.testing.simulated.kafka import request_server
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler

PLACES = [TopicPartition("in", number) for number in range(3)]
GROUP = "group"
_NO_ANSWER_S = 30.0


class ProducingBrokers:
    """Three brokers with the topic "in" of three partitions."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.cluster = Cluster(self.scheduler, Random(seed), brokers=3)
        self.cluster.create_topic("in", len(PLACES), 3)

    @property
    def now_ms(self) -> float:
        return self.scheduler.now_us / 1_000

    def wait(self, seconds: float) -> None:
        """Lets the time pass."""
        self.scheduler.run(self.scheduler.now_us + int(seconds * S_US))

    def leader(self, place: TopicPartition) -> tuple[int, int] | None:
        found = self.cluster.partition(place)
        return None if found is None or found.leader < 0 else (found.leader, NO_EPOCH)

    def ask(self, node: int, request: Any) -> Any:
        """Returns the answer of a broker, however long it takes; None: it gives none."""
        answers: list[Any] = []
        handler = request_server.handler(self.cluster, request.prepare(request_server.VERSIONS))
        handler(self.cluster.brokers[node], answers.append)
        if not answers:
            self.scheduler.run(self.scheduler.now_us + int(_NO_ANSWER_S * S_US), lambda: bool(answers))
        return answers[0] if answers else None

    def values(self, place: TopicPartition, *, committed: bool = False) -> list[bytes | None]:
        """What a consumer reads of a partition."""
        found = self.cluster.partition(place)
        assert found is not None
        log = found.log
        bound = log.last_stable_offset if committed else log.high_watermark
        return [each.value for each in log.read(0, bound, committed=committed, max_bytes=2**30)[0]]


class CoreWriter:
    """A producer's core. `under_way`: its orders that have not ended."""

    def __init__(self, brokers: ProducingBrokers, **options: Any) -> None:
        self.brokers = brokers
        self.options = ProducerOptions(**options)
        self.core = ProducerCore(self.options)
        self.under_way: list[SendOrder] = []
        self.ended: list[RecordBatch] = []
        self.asks_metadata = False
        self.core.heard(brokers.leader)

    def begin(self) -> None:
        """Returns when it has a producer id."""
        self.core.transaction.connect()
        self.core.transaction.initialize()
        self.deliver_all()

    def write(self, place: TopicPartition, *values: bytes, most_bytes: int | None = None) -> list[RecordBatch]:
        records: list[Unsent] = [(None, value, [], None) for value in values]
        return self.core.append_whole(place, records, most_bytes, self.brokers.now_ms, 1_700_000_000_000)

    def send(self) -> list[SendOrder]:
        """Returns the orders that are due."""
        due = self.core.due(self.brokers.now_ms)
        self.asks_metadata = due.asks_metadata
        self.under_way += due.orders
        self.ended += self.core.take_ended()
        return list(due.orders)

    def deliver(self, order: SendOrder, *, loses_answer: bool = False) -> Any:
        """A broker gets the order. Returns its answer, which the core gets, too."""
        self.under_way.remove(order)
        node = 0 if isinstance(order, FindCoordinator) or order.node is None else order.node
        answer = self.brokers.ask(node, request_of(order, self.options)) if self.brokers.cluster.brokers[node].is_up else None
        if answer is None or loses_answer:
            self.core.unanswered(order, KafkaConnectionError(), self.brokers.now_ms)
        elif isinstance(order, FindCoordinator) and not answer.error_code and not self.brokers.cluster.brokers[answer.coordinator_id].is_up:
            self.core.unanswered(order, NodeNotReadyError(), self.brokers.now_ms)
        else:
            self.core.answered(order, answer, self.brokers.now_ms)
        self.ended += self.core.take_ended()
        return answer

    def answer(self, answer: Any) -> None:
        """The only order under way is answered so."""
        [order] = self.under_way
        self.under_way.clear()
        self.core.answered(order, answer, self.brokers.now_ms)
        self.ended += self.core.take_ended()

    def lose(self, order: SendOrder) -> None:
        """The order reaches no broker."""
        self.under_way.remove(order)
        self.core.unanswered(order, KafkaConnectionError(), self.brokers.now_ms)
        self.ended += self.core.take_ended()

    def deliver_all(self) -> None:
        """Delivers what is due until nothing is."""
        for _ in range(2_000):
            self.send()
            if self.under_way:
                self.deliver(self.under_way[0])
                continue
            again_ms = self.core.due(self.brokers.now_ms).again_ms
            if again_ms == float("inf"):
                return
            self.brokers.wait(max(0.001, (again_ms - self.brokers.now_ms) / 1_000))
        raise AssertionError("it never ends")
