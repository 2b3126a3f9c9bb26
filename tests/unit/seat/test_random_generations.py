"""Random members of a consumer group that is led from its seat: some join, some leave, and some
never hear what a generation assigned to them, because the next one has begun.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cli.lead import configuration
from equipoise.kafka.embedded_protocol import SeatSubscription
from equipoise.lead.seat.generation import JoinedClient, SeatSettings, answer, without_doubles
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import client_of
from tests.unit.seat.test_generation import Held

PARTITIONS = 7
EVERY = frozenset(("in", number) for number in range(PARTITIONS))
MOST_GENERATIONS = 6
"""Without disturbance: the owners stop, the others begin, and nothing is left to do."""


class Clients:
    """What the members have, as they know it, and what the seat assigned last, as it knows it."""

    def __init__(self, log: SeatLog, *, eager: bool) -> None:
        self.log, self.eager, self.number = log, eager, 0
        self.owned: dict[str, Held] = {}
        self._generations: dict[str, int] = {}
        self._assigned: dict[str, Held] = {}

    def join(self, name: str) -> None:
        key = f"{name}-{uuid.UUID(int=self.number + 1)}"
        self.owned[key], self._generations[key] = frozenset(), -1

    def leave(self, key: str) -> None:
        del self.owned[key], self._generations[key]

    def generation(self, told: set[str]) -> bool:
        """One generation, which members `told` hear. Returns whether it makes another one."""
        self.number += 1
        subscriptions = {
            key: SeatSubscription(topics=("in",), owned=frozenset() if self.eager else owned, generation=self._generations[key])
            for key, owned in sorted(self.owned.items())
        }
        if self.eager:
            self.owned = dict.fromkeys(self.owned, frozenset())
        held = {key: self._assigned.get(key, frozenset()) for key in subscriptions} if self.eager else without_doubles(subscriptions)
        joined = [JoinedClient(client=client_of(key, None), subscription=each, held=held[key]) for key, each in subscriptions.items()]
        decided = answer(
            self.log,
            SeatSettings(hold_ms=0, capacities={}),
            number=self.number,
            protocol="range" if self.eager else "cooperative-sticky",
            eager=self.eager,
            joined=joined,
            metadata=SeatTopicMetadata(counts={"in": PARTITIONS}, racks={}),
            lags={},
        )
        self._assigned = {key: frozenset(("in", each) for each in assigned.get("in", ())) for key, assigned in decided.assigned.items()}
        revokes = False
        for key in told & self.owned.keys():
            revokes |= bool(self.owned[key] - self._assigned[key])
            self.owned[key], self._generations[key] = self._assigned[key], self.number
        return revokes

    def check_no_partition_has_two(self) -> None:
        had = [place for owned in self.owned.values() for place in owned]
        assert len(had) == len(set(had)), f"two members have a partition: {self.owned}"


@pytest.mark.parametrize("eager", [True, False])
@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=100)
def test_every_partition_gets_one_reader_whatever_members_hear(eager: bool, seed: int) -> None:
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "group.db", "orders") as log:
        log.configure(configuration(()))
        clients = Clients(log, eager=eager)
        steps = random.randint(1, 12)
        for step in range(steps):
            for _ in range(random.choice((0, 1, 1, 2, 3))):
                clients.join(random.choice("abcdef"))
            if len(clients.owned) > 1 and random.random() < 0.3:
                clients.leave(random.choice(sorted(clients.owned)))
            if step < steps - 1 and clients.owned:
                clients.generation({key for key in clients.owned if random.random() < 0.7})
                clients.check_no_partition_has_two()
        if not clients.owned:
            clients.join("a")
        for _ in range(MOST_GENERATIONS):  # nothing but what the members themselves begin
            again = clients.generation(set(clients.owned))
            clients.check_no_partition_has_two()
            if not again:
                break
        counts = [len(owned) for owned in clients.owned.values()]
        assert frozenset().union(*clients.owned.values()) == EVERY
        assert max(counts) - min(counts) <= 1
