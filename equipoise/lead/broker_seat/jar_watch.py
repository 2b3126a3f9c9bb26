"""Looks again and again whether brokers still have the assignor by which equipoise leads. A
coordinator that starts again without it cannot assign a group as long as equipoise is in that:
clients that join are refused with an error that they do not know, and end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from equipoise.kafka.asking import Asking
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat.ways import Way, check_way, look_inside

_LOG = logging.getLogger(__name__)
CHECK_S = 5.0
"""Between two looks at the brokers' settings, which are for all groups of a process."""
WITHIN_S = 20.0
"""A look that takes longer is given up."""


class JarWatch:
    """Looks at the settings of brokers for all groups that a process leads."""

    def __init__(self, connection: Connection, monotonic_s: Callable[[], float]) -> None:
        self._connection, self._monotonic_s = connection, monotonic_s
        self._lock = asyncio.Lock()
        self._looked: dict[str, tuple[float, Way]] = {}
        """Way -> when the brokers were looked at for it, and what they had."""
        self._is_said = False

    async def until_lost(self, way: Way, group: str) -> None:
        """Returns never. Raises NoBrokerSeatError as soon as it is seen that a broker does not have
        the assignor any more.
        """
        while True:
            await asyncio.sleep(CHECK_S)
            if way.name != "seat" and way.without_jar is not None:
                check_way(await self._look(way), group)

    async def _look(self, way: Way) -> Way:
        async with self._lock:
            if way.name in self._looked and self._monotonic_s() - self._looked[way.name][0] < CHECK_S:
                return self._looked[way.name][1]
            found = way  # what cannot be asked is as it was when the group's seat began
            try:
                async with asyncio.timeout(WITHIN_S), Asking(self._connection) as asking:
                    found = await look_inside(asking, way)
                self._is_said = False
            except Exception as error:  # noqa: BLE001  # a broker is away; and whatever its client raises must not end a seat
                if not self._is_said:
                    _LOG.warning("whether brokers still have the assignor cannot be asked (%s %s); asking again", type(error).__name__, error)
                self._is_said = True
            self._looked[way.name] = self._monotonic_s(), found
            return found
