"""The coordinators of consumer groups, found and asked over a `Wire`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.protocol.coordination import FindCoordinatorRequest

from equipoise.kafka.admin.broker_choice import SILENT_S, AnyBroker
from equipoise.kafka.broker_wire import Wire

T = TypeVar("T")
_OF_GROUP = 0
_LOG = logging.getLogger(__name__)


async def ask_any(wire: Wire, request: Any) -> Any:
    """Returns the answer of the first broker that is there. Raises KafkaError."""
    choice = AnyBroker()
    for broker in choice.each(wire.nodes):
        try:
            async with asyncio.timeout(choice.within_s):
                return await wire.send(broker, request)
        except errors.KafkaError as error:
            choice.failed(broker, error)
        except TimeoutError:
            choice.failed(broker, errors.RequestTimedOutError(f"broker {broker} has not answered within {SILENT_S:.0f} s"))
    raise choice.error


class GroupCoordinators:
    """Each request is made once. After an error the coordinator is looked for again. `apart`:
    requests go over connections of their own. `logs`: errors are logged, for one who repeats
    requests and does not raise them.
    """

    def __init__(self, wire: Wire, *, apart: bool = True, logs: bool = False) -> None:
        self.wire = wire
        self._apart, self._logs = apart, logs
        self._found: dict[str, int] = {}

    async def send(self, group: str, request: Any, read: Callable[[Any], T]) -> T:
        """Returns what `read` makes of the answer of the group's coordinator. Raises KafkaError."""
        node = await self.find(group)
        try:
            answer = await self.wire.send(node, request, apart=self._apart)
        except errors.KafkaError as error:
            self.forget(group)
            if self._logs:  # in aiokafka's words, so that `aiokafka_log` knows them
                _LOG.error("Error sending %s to node %s [%s] -- marking coordinator dead", type(request).__name__, node, error)
            raise
        try:
            return read(answer)
        except errors.KafkaError:
            self.forget(group)
            raise

    async def find(self, group: str) -> int:
        """Returns the broker that coordinates the group. Raises KafkaError, of its kinds
        GroupAuthorizationFailedError (`args[0]`: the group).
        """
        if group not in self._found:
            try:
                self._found[group] = await self._ask(group)
            except errors.KafkaError as error:
                self.wire.refresh()
                if self._logs:
                    _LOG.error("Group Coordinator Request failed: %s", error)
                raise
        return self._found[group]

    async def _ask(self, group: str) -> int:
        answer = await ask_any(self.wire, FindCoordinatorRequest(group, _OF_GROUP))
        if answer.error_code:
            raise errors.for_code(answer.error_code)(group)
        node: int = answer.coordinator_id
        if not await self.wire.ready(node, apart=self._apart):
            raise errors.NodeNotReadyError(f"broker {node} coordinates group {group}, and is away")
        return node

    def forget(self, group: str) -> None:
        """The coordinator is another one by now."""
        self._found.pop(group, None)
