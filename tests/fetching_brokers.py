"""Brokers that answer the fetches of a consumer's core, without a network and without a clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from aiokafka.protocol.fetch import FetchRequest_v11

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.consumer.core import ConsumerCore
from equipoise.kafka.consumer.reading_orders import FetchOptions, FetchOrder, FindPositions, Order
from equipoise.kafka.consumer.requests import SessionFetch
from equipoise.testing.simulated.kafka.fetch_sessions import Answered, FetchSessions, Wanted
from equipoise.testing.simulated.kafka.partition_log import Batch, PartitionLog
from equipoise.testing.simulated.kafka.passing_errors import PassingErrors
from equipoise.testing.simulated.kafka.stored_batches import read_batches

NOT_LEADER, OUT_OF_RANGE, FENCED = 6, 1, 74


class Brokers:
    """`leads`: partition -> broker and epoch. What the consumer has heard of that is another thing."""

    def __init__(self, places: Sequence[TopicPartition], nodes: int = 2) -> None:
        self.logs = {place: PartitionLog(*place) for place in places}
        self.leads = {place: (number % nodes, 0) for number, place in enumerate(places)}
        self.sessions = [FetchSessions() for _ in range(nodes)]
        self.passing = PassingErrors(Random(1))
        self._sequences: dict[tuple[TopicPartition, int], int] = {}

    def write(self, place: TopicPartition, values: Iterable[bytes], producer_id: int = -1, *, transactional: bool = False) -> None:
        log, contents = self.logs[place], [(b"k", value, (), 7) for value in values]
        sequence = self._sequences.get((place, producer_id), 0)
        self._sequences[place, producer_id] = sequence + len(contents)
        log.append(Batch(producer_id, 0, -1 if producer_id < 0 else sequence, transactional, contents), None)
        log.raise_high_watermark(log.end)

    def end_transaction(self, place: TopicPartition, producer_id: int, *, commit: bool) -> None:
        log = self.logs[place]
        log.append(Batch(producer_id, 0, -1, True, marker=commit), 8)
        log.raise_high_watermark(log.end)

    def move(self, place: TopicPartition, node: int) -> None:
        epoch = self.leads[place][1] + 1
        self.leads[place] = node, epoch
        self.logs[place].begin_epoch(epoch)

    def answer(self, order: FetchOrder, options: FetchOptions) -> Any:
        """The answer of the broker to a fetch."""
        sessions = self.sessions[order.node]
        begun = sessions.begin(SessionFetch(order, options).build(FetchRequest_v11))
        if not isinstance(begun, tuple):
            return begun
        wanted, made = begun
        left, found = options.answer_bytes, {}
        for place, each in wanted.items():
            found[place] = self._read(order.node, place, each, left, options, one=left == options.answer_bytes)
            left -= len(found[place].data)
        return made(found)

    def _read(self, node: int, place: TopicPartition, wanted: Wanted, left: int, options: FetchOptions, *, one: bool) -> Answered:
        passing = self.passing.before("Fetch")
        if passing is not None:
            return Answered(passing.errno)  # type: ignore[attr-defined]
        leader, epoch = self.leads[place]
        log = self.logs[place]
        if leader != node or wanted.epoch not in (-1, epoch):
            return Answered(NOT_LEADER if leader != node else FENCED)
        if not log.start <= wanted.offset <= log.end:
            return Answered(OUT_OF_RANGE)
        high, stable = log.high_watermark, log.last_stable_offset
        bound = stable if options.read_committed else high
        data = read_batches(log, wanted.offset, bound, max_bytes=min(left, wanted.most_bytes), one=one)
        return Answered(0, high, stable, log.start, log.aborted(wanted.offset, bound) if options.read_committed else (), data)


class Reader:
    """A core with its orders under way, and what was taken: partition -> offset and value."""

    def __init__(self, brokers: Brokers, **options: Any) -> None:
        self.brokers = brokers
        self.options = FetchOptions(**{"as_rows": True, **options})
        self.core = ConsumerCore(self.options)
        self.now_ms = 0.0
        self.under_way: list[Order] = []
        self.taken: dict[TopicPartition, list[tuple[int, bytes]]] = {place: [] for place in brokers.logs}
        self.hear()

    def hear(self) -> None:
        known = dict(self.brokers.leads)
        self.core.heard(known.get, self.now_ms)

    def begin(self, places: Iterable[TopicPartition] | None = None) -> None:
        """Reads from the first record on."""
        chosen = list(self.brokers.logs if places is None else places)
        self.core.assign(chosen)
        for place in chosen:
            self.core.seek(place, 0)

    def send(self) -> list[Order]:
        """What is due now is under way from here on."""
        due = self.core.due(self.now_ms)
        if due.asks_metadata:
            self.hear()
        self.under_way += due.orders
        return list(due.orders)

    def deliver(self, order: Order, *, lost: bool = False) -> None:
        """The answer arrives; `lost`: it does not, but the broker had the request."""
        self.under_way.remove(order)
        if isinstance(order, FindPositions):
            self.core.placed(order, dict.fromkeys(order.places, 0), self.now_ms)
            return
        answer = self.brokers.answer(order, self.options)
        if lost:
            self.core.failed(order, ConnectionError(), self.now_ms)
        else:
            self.core.fetched(order, answer, self.now_ms)

    def take(self, places: Iterable[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[Any]]:
        found = self.core.take(list(places), most)
        for place, rows in found.items():
            self.taken[place] += [(offset, value) for _, value, _, offset in rows]
        return found

    def read_all(self, most_rounds: int = 500) -> None:
        """Until nothing comes any more."""
        self.hear()
        quiet = 0
        for _ in range(most_rounds):
            self.now_ms += 200
            self.send()
            before = self.core.finds
            for order in list(self.under_way):
                self.deliver(order)
            self.take(list(self.core.ready()), 10_000)
            quiet = quiet + 1 if self.core.finds == before else 0
            if quiet > 3:
                return
        raise AssertionError("it does not come to an end")
