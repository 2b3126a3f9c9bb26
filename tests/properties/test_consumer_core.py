"""Whatever the order of answers, losses and new leaders: a consumer takes every committed record
exactly once and in order, and none of a transaction that was aborted.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.consumer.reading_orders import FetchOrder
from tests.fetching_brokers import Brokers, Reader

PLACES = [TopicPartition("in", number) for number in range(3)] + [TopicPartition("other", 0)]
STEPS = ("write", "open", "commit", "abort", "deliver", "deliver", "deliver", "deliver", "send", "send", "take", "take", "take", "wait")
FAULTS = (
    "lose",
    "drop request",
    "move",
    "hear",
    "forget session",
    "full cache",
    "pause",
    "resume",
    "leave and come back",
    "seek back",
    "refuse",
)
chosen_faults = st.sets(st.sampled_from(FAULTS))
"""Of one run: with all of them in each, one would heal what another has broken."""


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from([*STEPS, *sorted(draw(chosen_faults))])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 3), st.integers(0, 5)), min_size=60, max_size=200))


class World:
    """A reader, and what was written: partition -> values with the number of their transaction. Two
    producers have transactions, one at a time for each partition.
    """

    def __init__(self, *, committed: bool, answer_bytes: int) -> None:
        self.brokers = Brokers(PLACES)
        self.reader = Reader(self.brokers, read_committed=committed, answer_bytes=answer_bytes, partition_bytes=answer_bytes)
        self.reader.begin()
        self.committed = committed
        self.stored: dict[TopicPartition, list[tuple[bytes, int]]] = {place: [] for place in PLACES}
        self.open: dict[tuple[TopicPartition, int], int] = {}
        self.aborted: set[int] = set()
        self._written = self._transactions = 0

    @property
    def expected(self) -> dict[TopicPartition, list[bytes]]:
        hidden = self.aborted if self.committed else set()
        return {place: [value for value, transaction in stored if transaction not in hidden] for place, stored in self.stored.items()}

    def _write(self, place: TopicPartition, count: int, producer_id: int, transaction: int) -> None:
        values = [b"%d" % number for number in range(self._written, self._written + count)]
        self._written += count
        self.brokers.write(place, values, producer_id, transactional=transaction > 0)
        self.stored[place] += [(value, transaction) for value in values]

    def step(self, kind: str, which: int, number: int) -> None:
        reader, place = self.reader, PLACES[which]
        match kind:
            case "write":
                self._write(place, number + 1, -1, 0)
            case "open":
                producer_id = 1 + number % 2
                if (place, producer_id) not in self.open:
                    self._transactions += 1
                    self.open[place, producer_id] = self._transactions
                self._write(place, number + 1, producer_id, self.open[place, producer_id])
            case "commit" | "abort" if (place, 1 + number % 2) in self.open:
                producer_id = 1 + number % 2
                transaction = self.open.pop((place, producer_id))
                self.brokers.end_transaction(place, producer_id, commit=kind == "commit")
                if kind == "abort":
                    self.aborted.add(transaction)
            case "deliver" | "lose" if reader.under_way:
                reader.deliver(reader.under_way[number % len(reader.under_way)], lost=kind == "lose")
            case "drop request" if reader.under_way:
                order = reader.under_way.pop(number % len(reader.under_way))
                reader.core.failed(order, ConnectionError(), reader.now_ms)
            case "send":
                reader.send()
            case "take":
                reader.take(PLACES[which:], number + 1)
            case "move":
                self.brokers.move(place, number % 2)
            case "hear":
                reader.hear()
            case "wait":
                reader.now_ms += 60 * (number + 1)
            case "forget session":
                self.brokers.sessions[number % 2].clear()
            case "full cache":
                self.brokers.sessions[number % 2].most = number % 3
            case "refuse":
                self.brokers.passing.share = 0.1 * number
            case "pause":
                reader.core.pause(place)
            case "resume":
                reader.core.resume(place)
            case "leave and come back":
                position = reader.core.position(place)
                reader.core.assign([each for each in PLACES if each != place])
                if number % 2:
                    reader.send()
                reader.core.assign(PLACES)
                reader.core.seek(place, position or 0)
            case "seek back":
                taken = reader.taken[place]
                if len(taken) > number:
                    reader.core.seek(place, taken[-number - 1][0])
                    del taken[-number - 1 :]


@given(runs(), st.booleans(), st.sampled_from([200, 500, 10_000]))
def test_every_committed_record_is_taken_once_and_in_order(steps: list[tuple[str, int, int]], committed: bool, answer_bytes: int) -> None:
    world = World(committed=committed, answer_bytes=answer_bytes)
    for step in steps:
        world.step(*step)
    for which, place in enumerate(PLACES):
        for producer in range(2):
            world.step("commit", which, producer)
        world.reader.core.resume(place)
    world.brokers.passing.share = 0.0
    for sessions in world.brokers.sessions:
        sessions.most = 1_000
    world.reader.read_all()
    assert {place: [value for _, value in taken] for place, taken in world.reader.taken.items()} == world.expected
    for taken in world.reader.taken.values():
        offsets = [offset for offset, _ in taken]
        assert offsets == sorted(set(offsets))
    assert all(world.reader.core.position(place) == world.brokers.logs[place].end for place in PLACES)
    assert all(world.reader.core.end(place) == world.brokers.logs[place].high_watermark for place in PLACES)


@given(st.integers(2, 6), st.booleans())
def test_partitions_with_a_backlog_are_read_in_turn(count: int, keeps_sessions: bool) -> None:
    """An answer holds one of them only."""
    places = [TopicPartition("in", number) for number in range(count)]
    brokers = Brokers(places, nodes=1)
    for place in places:
        for number in range(20):
            brokers.write(place, [b"%d" % number * 50])
    brokers.sessions[0].most = 1_000 if keeps_sessions else 0
    reader = Reader(brokers, answer_bytes=100, partition_bytes=100)
    reader.begin()
    for _ in range(5 * count):
        reader.now_ms += 200
        orders = reader.send()
        assert len(orders) == 1
        assert isinstance(orders[0], FetchOrder)
        reader.deliver(orders[0])
        reader.take(list(reader.core.ready()), 100)
    read = Counter({place: len(taken) for place, taken in reader.taken.items()})
    assert set(read.values()) == {5}
