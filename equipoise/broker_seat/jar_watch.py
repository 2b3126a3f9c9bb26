"""Looks again and again whether brokers still have the assignor by which equipoise leads. A
coordinator that starts again without it cannot assign a group as long as equipoise is in that:
clients that join are refused with an error that they do not know, and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from equipoise.broker_seat.ways import Way, check_way, look_inside
from equipoise.kafka.connection import Connection
from equipoise.operations.doctor.asking import Asking

CHECK_S = 5.0
"""Between two looks at the brokers' settings, which are for all groups of a process."""
WITHIN_S = 20.0
"""A look that takes longer is given up."""


class JarWatch:
    """Looks at the settings of brokers for all groups that a process leads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._looked: dict[str, tuple[float, Way]] = {}
        """Way -> when the brokers were looked at for it, and what they had."""

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
            now_s = time.monotonic()
            looked_s, found = self._looked.get(way.name, (now_s - CHECK_S, way))
            if now_s - looked_s >= CHECK_S:
                with contextlib.suppress(Exception):  # a broker is away, or whatever its client raises: the next look sees what it has
                    async with asyncio.timeout(WITHIN_S), Asking(self._connection) as asking:
                        found = await look_inside(asking, way)
                self._looked[way.name] = time.monotonic(), found
            return found
