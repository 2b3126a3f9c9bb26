"""Connections to simulated brokers."""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.kafka.client import Clients
from equipoise.kafka.connection import Connection
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
