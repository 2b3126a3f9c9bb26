"""The clients of `client`, over aiokafka."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from equipoise.kafka.aiokafka_log import hold_back_log
from equipoise.kafka.aiokafka_wire import AiokafkaWire
from equipoise.kafka.client import BrokerFailures
from equipoise.kafka.throttling import Throttling
from equipoise.kafka.wire_clients import WireClients

_THROTTLING = Throttling()
"""Of this process."""


class DeployedClients(WireClients):
    """Makes clients, in the event loop that runs them. `connection`: aiokafka's options for the
    connection.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        super().__init__(lambda **options: AiokafkaWire({**connection, **options}, _THROTTLING), _THROTTLING)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """See `client.Clients`."""
        return hold_back_log(failures)
