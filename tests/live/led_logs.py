"""Logs of which topics are lost: each leads one group, whose orders are recounted."""

from __future__ import annotations

from pathlib import Path

import attrs

from equipoise.events.errors import EquipoiseError
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import BASES_MUST_BE, MUST_BE, Topics
from equipoise.member import Member
from equipoise.operations.follower import Follower
from equipoise.replay.trouble import wrong
from equipoise.worker.settings import WorkerSettings
from tests.live.chains import delete, lose_beginning, make, until
from tests.live.kafka import writer
from tests.live.test_member import PARTITIONS, Application
from tests.simulated.judge import verify_log

SETTINGS = {**MUST_BE, "bases": BASES_MUST_BE}
DAY_MS = 86_400_000


class LedLog:
    """A log, and members that lead it, one after the other. `lost`: which topics of it are to be
    lost, with + between them.
    """

    def __init__(self, bootstrap: str, prefix: str, lost: str, folder: Path) -> None:
        self.application = Application(bootstrap, f"{prefix}-{lost.replace('+', '-')}")
        self.connection, self.topics = Connection(bootstrap=bootstrap), Topics(self.application.prefix)
        self.lost, self._folder = lost, folder / lost

    @property
    def names(self) -> list[str]:
        """Of the topics that are to be lost."""
        return [self.topics.name_of(what) for what in self.lost.split("+")]

    def member(self, member_id: str, log: str = "") -> Member:
        """A member whose process leads the log, or the one with the prefix `log`."""
        prefix = log or self.topics.prefix
        lead = WorkerSettings(bootstrap=self.connection.bootstrap, prefix=prefix, http_port=0, checkpoint_facts=5, observe_interval_ms=1_000)
        if "bases" in self.lost:
            lead = attrs.evolve(lead, retention_ms=DAY_MS, base_interval_ms=1_000)
        of = self.application
        return of.member(member_id, self._folder, "exactly_once", prefix=prefix, lead=lead, group_config=of.config, session_timeout_ms=25_000)

    async def process(self, member: Member) -> None:
        """The member runs all tasks, and counts new orders, each once."""

        async def runs_all() -> bool:
            return len(member.running) == PARTITIONS

        await until(runs_all, lambda: f"{self.lost}: runs {sorted(map(str, member.running))}")
        await self.application.order(40)
        await self.application.until_counted(exactly=True)

    async def stray(self) -> None:
        """Somebody appends a record that belongs to no group."""
        async with writer(self.connection) as producer:
            await producer.send_and_wait(self.topics.facts, b"stray", partition=0)

    async def lose(self, fault: str) -> None:
        """Its topics are made again, lose their beginnings, or are deleted."""
        for what, topic in zip(self.lost.split("+"), self.names, strict=True):
            if fault == "loses its beginning":
                await lose_beginning(self.connection, topic, SETTINGS[what])
            else:
                await delete(self.connection, topic)
        if fault == "is made again":
            for what, topic in zip(self.lost.split("+"), self.names, strict=True):
                await make(self.connection, topic, SETTINGS[what])

    async def status(self) -> str:
        """What `equipoise status` says first; "": all is well."""
        follower = Follower(self.connection, self.topics, self.application.prefix)
        try:
            await follower.catch_up()
        except EquipoiseError as error:
            return str(error)
        troubles = [text for _, lead in follower.groups() for text in wrong(lead.machine.state, None if lead.halted is None else str(lead.halted))]
        return troubles[0] if troubles else ""

    async def until_said(self, text: str) -> None:
        """Waits until `status` says that first; "": that all is well."""
        said = [""]

        async def is_said() -> bool:
            said[0] = await self.status()
            return text in said[0] if text else not said[0]

        await until(is_said, lambda: f"{text!r}: {said[0]}")

    async def verify(self) -> list[str]:
        """What cannot be recomputed."""
        try:
            return await verify_log(self.connection, self.topics)
        except EquipoiseError as error:
            return [str(error)]
