"""The group as its log tells it, folded by a follower that sends no requests."""

from __future__ import annotations

import asyncio
import contextlib
import time

from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import GroupConfigured
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import Topics
from equipoise.operations.follower import Follower
from equipoise.statemachine.state import GroupState

EVERY_S = 1.0


class Watch:
    """Looks every second, whatever is up or down."""

    def __init__(self, connection: Connection, topics: Topics, group: str) -> None:
        self._follower = Follower(connection, topics, group)
        self._task: asyncio.Task[None] | None = None
        self.halted = ""
        """Why the group makes no progress; "": it does."""
        self.broken = ""
        """Why the log cannot be read any further; "": it can."""

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._look_on())

    async def stop(self) -> None:
        while self._task is not None and not self._task.done():
            self._task.cancel()  # again, because `wait_for` may miss one
            await asyncio.wait((self._task,), timeout=EVERY_S)

    async def _look_on(self) -> None:
        from aiokafka.errors import KafkaError

        while True:
            try:
                with contextlib.suppress(KafkaError, OSError, TimeoutError):
                    await asyncio.wait_for(self._follower.catch_up(), 30)
                self.broken = ""
            except EquipoiseError as error:
                self.broken = str(error)
            for _, lead in self._follower.groups():
                self.halted = "" if lead.halted is None else str(lead.halted)
            await asyncio.sleep(EVERY_S)

    @property
    def state(self) -> GroupState | None:
        """None: nothing is known of the group yet."""
        return next((lead.machine.state for _, lead in self._follower.groups()), None)

    def has_members(self) -> bool:
        """Whether anybody is in the group."""
        return self.state is not None and bool(self.state.members)

    def config(self) -> GroupConfigured | None:
        """The group's configuration in force; None: nothing is known of the group yet."""
        return None if self.state is None else self.state.config

    def owned(self, member_id: str) -> list[int]:
        """Partitions of the tasks that a member owns."""
        state = self.state
        return [] if state is None else [task.partition for task, owner in state.owner.items() if owner == member_id]

    def __str__(self) -> str:
        state = self.state
        if state is None:
            return "no group yet"
        verdict = "undecided" if state.verdict is None else state.verdict[0]
        return f"{len(state.owner)} of {len(state.tasks())} tasks owned, {len(state.members)} members, {verdict}, generation {state.generation}"

    def unsettled(self, present: set[str], tasks: int) -> str:
        """What is still to be done, so that `present` are in the group, all runs and nothing is
        wanted; "" = nothing.
        """
        state = self.state
        if state is None or len(state.tasks()) < tasks:
            return "the group is not known"
        if set(state.members) != present:
            return f"members are {', '.join(sorted(state.members))}, and should be {', '.join(sorted(present))}"
        idle = [str(task) for task in state.tasks() if task not in state.owner]
        if idle:
            return f"nobody owns {', '.join(idle)}"
        moving = sorted(name for name, member in state.members.items() if member.revoking or member.warmup or member.leaving)
        if moving:
            return f"{', '.join(moving)} still revoke, warm up or leave"
        if state.verdict is None or state.verdict[0] != "balanced":
            return f"the verdict is {state.verdict}"
        return ""

    async def until_settled(self, present: set[str], tasks: int, *, quiet_s: float, most_s: float) -> str:
        """Waits until nothing is left to do and nothing was decided for `quiet_s`. What is wrong
        instead after `most_s`; "" = nothing.
        """
        end_s, since_s, generation = time.monotonic() + most_s, time.monotonic(), -1
        while True:
            undone = self.halted or self.broken or self.unsettled(present, tasks)
            state = self.state
            now_s = time.monotonic()
            if undone or state is None or state.generation != generation:
                since_s, generation = now_s, -1 if state is None else state.generation
            elif now_s - since_s >= quiet_s:
                return ""
            if now_s > end_s:
                return undone or "one round after the other"
            await asyncio.sleep(EVERY_S / 2)
