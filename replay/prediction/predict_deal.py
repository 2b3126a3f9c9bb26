"""`predict_deal`: what it costs that a group's partitions are dealt otherwise, by simulation of its
protocol from who has what now. Each run has its own phases of heartbeats, and its own time until
the new deal is in effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import attrs

from equipoise.events.facts import ExpectedCost
from equipoise.replay.prediction.described_cost import DescribedCost
from equipoise.replay.prediction.predict import expected_costs
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.broker_led import BrokerLedGroup
from equipoise.replay.simulation.kafka.classic_consumers import ClassicConsumers
from equipoise.replay.simulation.kafka.consumers import COOPERATIVE, ConsumerSettings

RUNS = 100
QUIET_MS, LONGEST_MS = 15_000, 240_000
"""At rest for so long it is over; and counted no longer than this."""
_ANSWER_MS = (0, 600)
"""Clients answer when they poll next."""
_LOOK_MS = (252, 290)
"""Between two looks, with what they take."""
_AHEAD_PER_MILLION = {False: 62_500, True: 400_000}
"""How often another member is taken out with the leader, as it would lead next: one in sixteen, and
more where the seat has to be behind the first member (docs/seat.md).
"""
_BEGIN_MS = 60_000
_BEGINS_WITHIN_MS = (50, 300)
"""From the record of the change to the request that begins it: some requests, and a look."""


def predict_deal(
    owners: Mapping[str, str], wanted: Mapping[str, str], settings: ConsumerSettings, *, idle: Iterable[str] = (), evicted: str | None = None
) -> tuple[ExpectedCost, ...]:
    """Returns the expected costs when partitions go from `owners` to `wanted`, both partition ->
    member, in RUNS runs. In half of them the members beat in step, as those do that were started
    together; in all, if the settings say so. A classic group is rebalanced for the new deal.
    `idle`: members that have nothing. `evicted`: of a classic group, the leader that is taken out
    first, and joins again; all are dealt as before until then.
    """
    alike = Counter((owner, wanted.get(place, owner)) for place, owner in owners.items())
    weights = {f"p-{number}": count for number, count in enumerate(alike.values())}
    had, to = ({name: pair[side] for name, pair in zip(weights, alike, strict=True)} for side in (0, 1))
    members = {*owners.values(), *wanted.values(), *idle}
    both = (settings, attrs.evolve(settings, in_step=True))
    return expected_costs([_DealRun(seed, had, to, both[seed % 2], members, evicted, weights).costs() for seed in range(RUNS)])


class _DealRun:
    def __init__(
        self,
        seed: int,
        owners: Mapping[str, str],
        wanted: Mapping[str, str],
        settings: ConsumerSettings,
        members: Iterable[str],
        evicted: str | None,
        weights: Mapping[str, int],
    ) -> None:
        self._engine = Engine(seed=seed)
        kind = BrokerLedGroup if settings.is_broker_led else ClassicConsumers
        self._members = sorted(members)
        self._group = kind(self._engine, owners, settings, self._members)
        self._owners, self._wanted, self._evicted = owners, wanted, evicted
        self._cost = DescribedCost(_BEGIN_MS, weights)

    def costs(self) -> dict[str, int]:
        engine, group = self._engine, self._group
        engine.run_until(_BEGIN_MS)
        steps: list[Callable[[], None]] = [lambda: group.deal(self._wanted)]
        if self._evicted is not None:
            steps = [lambda: group.deal(self._owners), self._evict]
        until_ms = _BEGIN_MS + LONGEST_MS
        next_ms = _BEGIN_MS + engine.between(*_BEGINS_WITHIN_MS)
        look_ms = engine.between(*_LOOK_MS)
        while engine.now_ms < until_ms:
            has, is_at_rest = group.described()
            self._cost.look(has, engine.now_ms, is_at_rest=is_at_rest and not steps)
            if steps and is_at_rest and engine.now_ms >= next_ms:
                steps.pop(0)()
            if self._cost.rested_ms(engine.now_ms) >= QUIET_MS:
                break
            engine.run_until(engine.now_ms + look_ms)
        costs = self._cost.costs(engine.now_ms)
        return {**costs, "rest_ms": costs["rest_ms"] + engine.between(*_ANSWER_MS)}

    def _evict(self) -> None:
        assert isinstance(self._group, ClassicConsumers), "brokers evict nobody"
        assert self._evicted is not None, "a member is evicted"
        counts = self._group.settings.assignor in ("sticky", COOPERATIVE)
        ahead = [name for name in self._members if name != self._evicted and self._engine.chance(_AHEAD_PER_MILLION[counts])]
        for name in (self._evicted, *ahead):
            self._group.evict(name)
        self._group.wants(self._wanted)
