"""One group of a live log, for commands that append a fact and follow what comes of it. The group is folded here; a worker leads it elsewhere."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from equipoise.live import LiveSettings
from equipoise.worker.follower import Follower
from events.errors import InputError
from events.facts import Fact
from events.log.kafka.clients import start_client, stop_client
from events.log.kafka.envelope import group_key, pack_fact, partition_of
from events.log.kafka.opening import reaching
from replay.wording import groups_text
from statemachine.machine import GroupMachine
from statemachine.partition import Folded
from statemachine.state import GroupState

LOOK_S = 0.5


class LiveGroup:
    """Use it as an asynchronous context manager: it holds a producer. `folded`: called for each fact that is folded here, of any group."""

    def __init__(self, settings: LiveSettings, group: str, *, folded: Folded = lambda record, decisions, machine: None) -> None:
        self._settings = settings
        self.group = group
        self._follower = Follower(settings, settings.topics, group, folded=folded)

    async def __aenter__(self) -> Self:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(**self._settings.options(), enable_idempotence=True)
        with reaching(self._settings):
            await start_client(self._producer)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await stop_client(self._producer)

    async def machine(self) -> GroupMachine:
        """The group's machine after the last fact. Raises InputError when the log has no such group, GroupHalted when the group is halted."""
        await self._follower.catch_up()
        found = next(self._follower.groups(), None)
        if found is None:
            everybody = Follower(self._settings, self._settings.topics)
            await everybody.catch_up()
            raise InputError(f"--group: the log holds no fact of group {self.group!r}; {groups_text({each.name for _, each in everybody.groups()})}")
        lead = found[1]
        if lead.halted is not None:
            raise lead.halted
        return lead.machine

    async def state(self) -> GroupState:
        """The group's state after the last fact. Raises what `machine` raises."""
        return (await self.machine()).state

    async def append(self, fact: Fact) -> int:
        """Appends a fact of the group and returns its offset."""
        partition = partition_of(self.group, await self._follower.partitions())
        with reaching(self._settings):
            sent = await self._producer.send_and_wait(self._settings.topics.facts, pack_fact(fact), key=group_key(self.group), partition=partition)
        return int(sent.offset)

    async def until_next_look(self) -> None:
        await asyncio.sleep(LOOK_S)

    async def is_answered(self) -> bool:
        """Whether a worker has published every decision that the group's facts cause; False: no worker is running, or it is behind."""
        return await self._follower.is_published()
