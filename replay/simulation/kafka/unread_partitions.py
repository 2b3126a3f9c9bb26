"""How long partitions are read by nobody in a simulated group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.broker_led import BrokerLedGroup
from equipoise.replay.simulation.kafka.classic_consumers import ClassicConsumers
from equipoise.replay.simulation.kafka.connect import ConnectSettings, ConnectWorkers
from equipoise.replay.simulation.kafka.consumers import ConsumerEvent, ConsumerSettings, SimulatedGroup

SETTLED_MS = 60_000
"""A simulated group begins so long before its first event, with the owners that it is given."""


@attrs.frozen(kw_only=True)
class GroupCost:
    """`unavailable_ms`: over all partitions, as `unavailable_ms` counts it. `moves`: how often a
    partition got another reader.
    """

    unavailable_ms: int
    moves: int


def unavailable_ms(
    owners: Mapping[str, str], events: Sequence[ConsumerEvent], settings: ConsumerSettings, *, seed: int, until_ms: int, idle: Iterable[str] = ()
) -> dict[str, int]:
    """Simulates a group, and returns for each partition how long nobody read it, as
    `equipoise.replay.numbers.counted_ms` counts it. `owners`: partition -> its reader at first.
    `idle`: members that have nothing at first. An event of a member that is not there, or is there
    already, changes nothing.
    """
    return _simulated(owners, events, settings, seed, until_ms, idle).readers.silent_ms(_begin_ms(events, until_ms), until_ms)


def cost_of(
    owners: Mapping[str, str], events: Sequence[ConsumerEvent], settings: ConsumerSettings, *, seed: int, until_ms: int, idle: Iterable[str] = ()
) -> GroupCost:
    """The same with all partitions together, and moves."""
    readers = _simulated(owners, events, settings, seed, until_ms, idle).readers
    begin_ms = _begin_ms(events, until_ms)
    return GroupCost(unavailable_ms=sum(readers.silent_ms(begin_ms, until_ms).values()), moves=readers.moves(begin_ms))


def _simulated(
    owners: Mapping[str, str], events: Sequence[ConsumerEvent], settings: ConsumerSettings, seed: int, until_ms: int, idle: Iterable[str]
) -> SimulatedGroup:
    engine = _engine(events, seed, until_ms)
    kind = BrokerLedGroup if settings.is_broker_led else ClassicConsumers
    group = kind(engine, owners, settings, idle)
    _run(engine, group, events, until_ms)
    return group


def connect_unavailable_ms(
    workers: Mapping[str, str],
    readers: Mapping[str, str],
    events: Sequence[ConsumerEvent],
    settings: ConnectSettings,
    *,
    seed: int,
    until_ms: int,
) -> dict[str, int]:
    """The same of a cluster of Kafka Connect, whose workers the events are about. `workers`:
    connector or task -> its worker at first. `readers`: partition -> task of a sink that reads it.
    """
    engine = _engine(events, seed, until_ms)
    sinks = {}
    for connector in sorted({task.rpartition("-")[0] for task in readers.values()}):
        owners = {partition: task for partition, task in readers.items() if task.rpartition("-")[0] == connector}
        idle = [task for task in workers if task.rpartition("-")[0] == connector]
        sinks[connector] = ClassicConsumers(engine, owners, settings.sinks, idle)
    group = ConnectWorkers(engine, workers, settings.workers, sinks)
    _run(engine, group, events, until_ms)
    silent = [sink.readers.silent_ms(_begin_ms(events, until_ms), until_ms) for sink in sinks.values()]
    return {partition: each[partition] for each in silent for partition in each}


def _engine(events: Sequence[ConsumerEvent], seed: int, until_ms: int) -> Engine:
    return Engine(seed=seed, start_ms=_begin_ms(events, until_ms) - SETTLED_MS)


def _begin_ms(events: Sequence[ConsumerEvent], until_ms: int) -> int:
    """Just before the first event."""
    return min((event.at_ms for event in events), default=until_ms) - 1


def _run(engine: Engine, group: SimulatedGroup, events: Sequence[ConsumerEvent], until_ms: int) -> None:
    for event in sorted(events):
        engine.at(event.at_ms, group.happens, event)
    engine.run_until(until_ms)
