"""A simulated cluster of Kafka Connect: its workers deal connectors and tasks as KIP-415 has it,
and the tasks of each sink are the consumers of a group of their own.

What a worker that is gone had is given to nobody for ``scheduled.rebalance.max.delay.ms``
(``IncrementalCooperativeAssignor``), whether it is back or not. Meanwhile the other tasks of a sink
read its partitions, as soon as their group has missed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.classic_consumers import ClassicConsumers
from equipoise.replay.simulation.kafka.consumers import ConsumerSettings, Readers


@attrs.frozen(kw_only=True)
class ConnectSettings:
    """`workers`: `hold_ms` is their ``scheduled.rebalance.max.delay.ms``, `begin_ms` the start of a
    task. `sinks`: the consumers of all sinks.
    """

    workers: ConsumerSettings
    sinks: ConsumerSettings


class Tasks(Readers):
    """Who runs each connector and task; a task of a sink is a consumer while it runs."""

    def __init__(self, engine: Engine, tasks: Iterable[str], sinks: Mapping[str, ClassicConsumers]) -> None:
        super().__init__(engine, tasks)
        self.is_killed = False
        """Whether what stops now says nothing to its group."""
        self._sinks = sinks

    def reads(self, name: str, partitions: Iterable[str]) -> None:
        super().reads(name, partitions)
        for task, sink in self._of_sinks(partitions):
            sink.start(task)

    def stops(self, name: str, partitions: Iterable[str]) -> None:
        stopped = self._of_sinks(task for task in partitions if self.owner(task) == name)
        super().stops(name, partitions)
        for task, sink in stopped:
            sink.stop(task, leaves=not self.is_killed)

    def _of_sinks(self, tasks: Iterable[str]) -> Sequence[tuple[str, ClassicConsumers]]:
        return [(task, self._sinks[connector]) for task in sorted(tasks) if (connector := task.rpartition("-")[0]) in self._sinks]


class ConnectWorkers(ClassicConsumers):
    """`owners`: connector or task -> worker."""

    readers: Tasks

    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings, sinks: Mapping[str, ClassicConsumers]) -> None:
        super().__init__(engine, owners, settings)
        self.readers = Tasks(engine, self.partitions, sinks)

    def stop(self, name: str, *, leaves: bool) -> None:
        self.readers.is_killed = not leaves
        super().stop(name, leaves=leaves)
        self.readers.is_killed = False

    def waits_for(self, process: str, member: str) -> str:
        return member
