"""Whatever the order of answers, losses, new leaders and coordinators: what a producer has written
is there once and in order, and a transaction is there as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from equipoise.kafka.producer.states import OPEN, ProducerState
from tests.producing_brokers import GROUP, PLACES, CoreWriter, ProducingBrokers
from tests.support.cluster_faults import elect_leader

STEPS = ("write", "write", "deliver", "deliver", "deliver", "deliver", "send", "send", "wait", "begin", "offsets", "commit", "abort")
FAULTS = ("lose answer", "lose request", "elect", "move coordinators", "late", "refuse")
chosen_faults = st.sets(st.sampled_from(FAULTS))


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from([*STEPS, *sorted(draw(chosen_faults))])
    return draw(st.lists(st.tuples(kinds, st.integers(0, len(PLACES) - 1), st.integers(0, 5)), min_size=30, max_size=120))


class World:
    """A producer, and what was written: for each transaction (0: outside of any) its values by
    partition. `outcome`: transaction -> whether it was committed.
    """

    def __init__(self, seed: int, *, transactional: bool) -> None:
        self.brokers = ProducingBrokers(seed)
        patience = {"timeout_ms": 10**9, "transaction_timeout_ms": 10**9}
        self.writer = CoreWriter(self.brokers, transactional_id="t" if transactional else None, batch_bytes=120, **patience)
        self.writer.begin()
        self.transactional = transactional
        self.written: list[tuple[int, int, bytes]] = []
        self.commits: dict[int, bool] = {}
        self._offset = self.committed_offset = 0
        self._number = self._values = 0

    @property
    def state(self) -> ProducerState:
        return self.writer.core.transaction.state

    def step(self, kind: str, which: int, number: int) -> None:
        writer, transaction = self.writer, self.writer.core.transaction
        under_way, cluster = writer.under_way, self.brokers.cluster
        match kind:
            case "write" if not self.transactional or self.state in OPEN:
                values = [b"%d" % each + b"-" * 20 for each in range(self._values, self._values + number + 1)]
                self._values += number + 1
                writer.write(PLACES[which], *values)
                self.written += [(self._number, which, value) for value in values]
            case "begin" if self.transactional and self.state is ProducerState.READY:
                self._number += 1
                transaction.begin(PLACES[:which])
            case "offsets" if self.state in OPEN:
                self._offset += 1
                writer.core.add_offsets(GROUP, {PLACES[0]: self._offset})
            case "commit" | "abort" if self.state in OPEN:
                transaction.end(commits=kind == "commit")
                self.commits[self._number] = kind == "commit"
                if kind == "commit":
                    self.committed_offset = self._offset
                else:
                    self._offset = self.committed_offset
            case "deliver" | "lose answer" if under_way:
                writer.deliver(under_way[number % len(under_way)], loses_answer=kind == "lose answer")
            case "lose request" if under_way:
                writer.lose(under_way[number % len(under_way)])
            case "late" if under_way:
                order = under_way[number % len(under_way)]
                writer.lose(order)
                under_way.append(order)
                writer.deliver(order, loses_answer=True)
            case "send":
                writer.send()
            case "wait":
                self.brokers.wait(0.03 * (number + 1))
            case "elect":
                elect_leader(cluster, cluster.topics["in"].partitions[which])
            case "move coordinators":
                for each in cluster.coordinators.partitions:
                    elect_leader(cluster, each)
            case "refuse":
                cluster.passing.share = 0.1 * number

    def end(self) -> None:
        """Everything is answered from now on."""
        self.brokers.cluster.passing.share = 0.0
        self.brokers.wait(5.0)
        self.writer.deliver_all()
        if self.state in OPEN:
            self.step("commit", 0, 0)
        self.writer.deliver_all()
        self.brokers.wait(5.0)

    def expected(self, which: int, holds: Callable[[int], bool]) -> list[bytes]:
        return [value for number, partition, value in self.written if partition == which and holds(number)]


@given(runs(), st.integers(0, 5))
def test_every_record_is_appended_once_and_in_order(steps: list[tuple[str, int, int]], seed: int) -> None:
    world = World(seed, transactional=False)
    for step in steps:
        world.step(*step)
    world.end()
    for which, place in enumerate(PLACES):
        assert world.brokers.values(place) == world.expected(which, lambda number: True)
    assert [each.error for each in world.writer.ended] == [None] * len(world.writer.ended)
    assert sum(each.count for each in world.writer.ended) == len(world.written)


@given(runs(), st.integers(0, 5))
def test_transactions_are_there_as_a_whole_or_not_at_all(steps: list[tuple[str, int, int]], seed: int) -> None:
    world = World(seed, transactional=True)
    for step in steps:
        world.step(*step)
    world.end()
    assert world.state is ProducerState.READY, world.writer.core.transaction.error
    for which, place in enumerate(PLACES):
        assert world.brokers.values(place, committed=True) == world.expected(which, lambda number: world.commits[number])
        assert world.brokers.values(place) == world.expected(which, lambda number: True)
    offsets = world.brokers.cluster.coordinators.offsets.get(GROUP, {})
    assert offsets.get(PLACES[0], 0) == world.committed_offset
