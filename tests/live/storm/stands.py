"""Which tasks stood still while records waited for them, and what was logged meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from equipoise.kafka.client import Consumer, TopicPartition
from equipoise.kafka.connection import Connection

EVERY_S = 2.0
ASK_S = 5.0
MOST_S = 45.0
"""A request has 40 s. What stands for longer must be in a log by then."""
_SAYS = re.compile(
    r"(does|have) not answer|not answered|halted|not led|expired|lease|led by| left|may go|giving up|takeover session .* failed|is off: it is"
)
"""Why a whole group, a member or a worker stands."""
_TASKS = re.compile(r"0_(\d+)(?:\.\.(\d+))?")


@attrs.frozen
class Stand:
    """`begin_s`, `end_s`: by the clock of the storm. `waiting`: records, at least."""

    partition: int
    begin_s: float
    end_s: float
    waiting: int
    said: tuple[str, ...]

    def __str__(self) -> str:
        return f"0_{self.partition}: {self.end_s - self.begin_s:.0f} s from {self.begin_s:.0f} s on, {self.waiting} records waited"


@attrs.frozen
class Look:
    at_s: float
    written: dict[int, int]
    """Ends of the source."""
    done: dict[int, int]
    """Ends of the changelog, of what is committed."""
    sizes: dict[Path, int]
    """Of what processes have printed."""


class Stands:
    """Looks every EVERY_S, as far as brokers answer. `folder`: of what processes print."""

    def __init__(self, connection: Connection, topic: str, folder: Path) -> None:
        self._connection, self._topic, self._folder = connection, topic, folder
        self.looks: list[Look] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._look_on())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_on(self) -> None:
        from aiokafka.errors import KafkaError

        clock = asyncio.get_running_loop().time
        began_s = clock()
        consumers = [self._connection.clients.consumer(read_committed=each, request_timeout_ms=int(ASK_S * 1_000)) for each in (False, True)]
        for each in consumers:
            await each.start()
        try:
            while True:
                try:
                    async with asyncio.timeout(ASK_S):
                        written, done = [
                            await self._ends(consumer, topic)
                            for consumer, topic in zip(consumers, (self._topic, f"{self._topic}-state"), strict=True)
                        ]
                    sizes = {path: path.stat().st_size for path in self._folder.glob("*.out")}
                    self.looks.append(Look(clock() - began_s, written, done, sizes))
                except (KafkaError, TimeoutError):
                    pass
                await asyncio.sleep(EVERY_S)
        finally:
            for each in consumers:
                await each.stop()

    async def _ends(self, consumer: Consumer, topic: str) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or {0})]
        return {place.partition: end for place, end in (await consumer.end_offsets(places)).items()}

    def found(self) -> list[Stand]:
        """Those of more than MOST_S."""
        stands: list[Stand] = []
        for partition in sorted({number for look in self.looks for number in look.written}):
            looks = [look for look in self.looks if partition in look.written and partition in look.done]
            stands += self._of_partition(partition, looks)
        return stands

    def _of_partition(self, partition: int, looks: Sequence[Look]) -> Iterable[Stand]:
        """It stands from the first record on that comes after the last commit."""
        begin: int | None = None
        for number, look in enumerate(looks):
            moved = number == 0 or look.done[partition] != looks[number - 1].done[partition]
            if begin is not None and (moved or number == len(looks) - 1):
                first = looks[begin]
                if look.at_s - first.at_s > MOST_S:
                    waiting = look.written[partition] - looks[begin - 1].written[partition]
                    yield Stand(partition, first.at_s, look.at_s, waiting, tuple(self._said(partition, first, look)))
            if moved:
                begin = None
            elif begin is None and look.written[partition] > looks[number - 1].written[partition]:
                begin = number

    def _said(self, partition: int, first: Look, last: Look) -> Iterable[str]:
        for path, end in last.sizes.items():
            with open(path, "rb") as file:
                file.seek(first.sizes.get(path, 0))
                printed = file.read(end - first.sizes.get(path, 0)).decode(errors="replace")
            for line in printed.splitlines():
                ranges = ((int(low), int(high or low)) for low, high in _TASKS.findall(line))
                if any(low <= partition <= high for low, high in ranges) or _SAYS.search(line):
                    yield f"{path.name}: {line}"
