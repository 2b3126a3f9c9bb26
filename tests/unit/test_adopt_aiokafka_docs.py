"""docs/adopt-aiokafka.md: its code runs, and its numbers are what the strategies give."""

from __future__ import annotations

import itertools
import random
import re
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from equipoise.aiokafka import BalancedAssignor, LagAwareAssignor, LagFetcher, LoadBalancedAssignor, PartitionLags
from tests.pages import read_page
from tests.unit.aiokafka.test_aiokafka_adapter import cluster

PAGE = read_page("adopt-aiokafka.md")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONSUMERS, PARTITIONS = 4, 24
Make = Callable[[], AbstractPartitionAssignor]


@pytest.mark.parametrize("block", BLOCKS)
async def test_code_of_the_page_makes_a_consumer(block: str) -> None:
    made: dict[str, Any] = {}
    exec(block, made)  # noqa: S102  # a block of our own page
    assert isinstance(made["consumer"], AIOKafkaConsumer)
    await made["consumer"].stop()


class Equal(LagFetcher):
    """The same number for each partition."""

    def __init__(self, number: int) -> None:
        super().__init__(group_id="g", connection="nowhere:9092")
        self.number = number

    def fetch_now(self, partitions: Any) -> PartitionLags:
        return dict.fromkeys(partitions, self.number)


def stock(kind: type[AbstractPartitionAssignor]) -> Make:
    """A class for each consumer: the stock strategy `sticky` keeps what it has there."""

    def make() -> AbstractPartitionAssignor:
        made: AbstractPartitionAssignor = type("Stock", (kind,), {})()
        return made

    return make


def changes_of_owner(make: Make, seed: int) -> int:
    """In a rolling restart: each consumer stops, and starts again with another member id."""
    dice = random.Random(seed)
    ids = [f"aiokafka-0.14-{dice.getrandbits(128):032x}" for _ in range(2 * CONSUMERS)]
    strategies = {name: make() for name in ids[:CONSUMERS]}

    def generation() -> dict[int, str]:
        said = {name: ConsumerProtocolMemberMetadata.decode(each.metadata({"orders"}).encode()) for name, each in strategies.items()}
        dealt = strategies[dice.choice(sorted(strategies))].assign(cluster(orders=PARTITIONS), said)
        owner: dict[int, str] = {}
        for name, each in strategies.items():
            part = ConsumerProtocolMemberAssignment.decode(dealt[name].encode())
            each.on_assignment(part)
            owner.update({at.partition: name for at in part.partitions()})
        assert len(owner) == PARTITIONS
        return owner

    owners = [generation()]
    for stopped, started in zip(ids, ids[CONSUMERS:], strict=False):
        del strategies[stopped]
        owners.append(generation())
        strategies[started] = make()
        owners.append(generation())
    return sum(now[number] != before[number] for before, now in itertools.pairwise(owners) for number in range(PARTITIONS))


@pytest.mark.parametrize(
    ("named", "make"),
    [
        ("`range`", stock(RangePartitionAssignor)),
        ("`roundrobin`", stock(RoundRobinPartitionAssignor)),
        ("`sticky`", stock(StickyPartitionAssignor)),
        ("`BalancedAssignor`", BalancedAssignor),
        ("`LagAwareAssignor`, no lag", lambda: LagAwareAssignor(group_id="g", connection="x:1", fetcher=Equal(0))),
        ("`LoadBalancedAssignor`, equal loads", lambda: LoadBalancedAssignor(group_id="g", connection="x:1", fetcher=Equal(100))),
    ],
)
def test_changes_of_owner_equal_those_of_the_page(named: str, make: Make) -> None:
    changes = statistics.median(changes_of_owner(make, seed) for seed in range(10))
    assert f"| {named} | {changes:.0f} |" in PAGE.splitlines()
