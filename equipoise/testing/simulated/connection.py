"""Connections to simulated brokers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from equipoise.kafka.client import BrokerFailures, Clients
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.throttling import Throttling
from equipoise.kafka.wire_clients import WireClients
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.simulated_wire import SimulatedWire
from equipoise.worker.settings import WorkerSettings


@attrs.frozen(kw_only=True)
class SimulatedConnection(Connection):
    """A connection of one process to the simulated brokers."""

    made: Any = attrs.field(default=None, eq=False, repr=False)

    @property
    def clients(self) -> Clients:
        made: Clients = self.made
        return made

    def of_process(self, name: str) -> SimulatedConnection:
        """The same of another process."""
        return attrs.evolve(self, made=self.made.of_process(name))


@attrs.frozen(kw_only=True)
class SimulatedSettings(WorkerSettings):
    """The same with a worker's settings."""

    made: Any = attrs.field(default=None, eq=False, repr=False)

    @property
    def clients(self) -> Clients:
        made: Clients = self.made
        return made


# Makes the clients of one simulated process.


class SimulatedClients(WireClients):
    """Implements `equipoise.kafka.client.Clients` for the process named `process`."""

    def __init__(self, cluster: Cluster, process: str) -> None:
        throttling = Throttling()
        super().__init__(
            lambda *, request_timeout_ms, **_: SimulatedWire(cluster, process, throttling, request_timeout_ms=request_timeout_ms), throttling
        )
        self._cluster = cluster

    def of_process(self, name: str) -> SimulatedClients:
        """The same for another process."""
        return SimulatedClients(self._cluster, name)

    def consumer(self, *, rack: str | None = None, **options: Any) -> WireConsumer:
        """With a `rack` it reads what another replica than the leader knows by then; the leader
        stands in for that replica.
        """
        self._cluster.has_near_readers = self._cluster.has_near_readers or rack is not None
        return super().consumer(rack=rack, **options)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        return nullcontext()
