"""Real members for the benchmarks on a real broker: a small stateful application whose members are
processes that record the time of each processed record.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import attrs

from bench.live import PATIENCE_S
from equipoise import Member, Record, TaskContext
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, writer

Turn = tuple[int, int, float]
"""Partition, fencing token, and time of one processed record in seconds of CLOCK_MONOTONIC, which
the processes of a machine share.
"""

BACK_WITHIN_S = 30.0


@attrs.frozen(kw_only=True)
class Application:
    """Sums values per key, with a changelog and an output; one stateful sub-topology."""

    connection: Connection
    name: str
    partitions: int
    config: GroupConfigured
    value_bytes: int = 20
    """Size of each changelog record."""
    work_s: float = 0.0
    """The handler computes for so long, for each record."""

    async def make_topics(self) -> None:
        from aiokafka.admin import NewTopic

        names = (self.name, f"{self.name}-state", f"{self.name}-out")
        async with admin_client(self.connection) as admin:
            settings = {f"{self.name}-state": {"cleanup.policy": "compact"}, f"{self.name}-out": {"message.timestamp.type": "LogAppendTime"}}
            await admin.create_topics([NewTopic(name, self.partitions, 1, topic_configs=settings.get(name, {})) for name in names])

    async def feed(self, per_second: float) -> None:
        """Sends one record to each partition at a time, `per_second` records in total, until
        cancelled.
        """
        async with writer(self.connection) as producer:
            begun_s = time.monotonic()
            for number in itertools.count(1):
                await producer.send(self.name, b"1", key=b"k%d" % (number % 1_000), partition=number % self.partitions)
                ahead_s = number / per_second - (time.monotonic() - begun_s)
                if ahead_s > 0 and number % self.partitions == 0:
                    await asyncio.sleep(ahead_s)


class MemberProcess:
    """One member process, from construction to `leave` or `kill`."""

    def __init__(self, application: Application, member_id: str, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_be_member, args=(application, member_id, options, theirs), daemon=True)
        self._process.start()
        self.asked_s = self.ended_s = 0.0
        """After `leave` or `restart`: when it was asked to, and when its code had ended
        (CLOCK_MONOTONIC).
        """

    def began_s(self) -> float:
        """When its code began (CLOCK_MONOTONIC)."""
        began_s: float = self._asked("began")
        return began_s

    def running(self) -> int:
        """Number of tasks it processes now."""
        count: int = self._asked("running")
        return count

    def turns(self) -> list[Turn]:
        """All records processed so far."""
        return _turns_in(self._asked("turns"))

    def leave(self) -> list[Turn]:
        """Lets it hand over its tasks and leave; returns the records it processed."""
        return self._ended("leave")

    def restart(self) -> list[Turn]:
        """As `leave`, but it says that it will be back. Start the next process with this name."""
        return self._ended("restart")

    def _ended(self, how: str) -> list[Turn]:
        self.asked_s = time.monotonic()
        self._pipe.send(how)
        return self.gone()

    def gone(self) -> list[Turn]:
        """Waits until it has left, as it was asked to, here or by a command; returns the records it
        processed.
        """
        written, self.ended_s = self._answer("to leave")
        self._process.join(PATIENCE_S)
        return _turns_in(written)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None, "it was started"
        os.kill(self._process.pid, number)

    def _asked(self, what: str) -> Any:
        self._pipe.send(what)
        return self._answer(what)

    def _answer(self, what: str) -> Any:
        assert self._pipe.poll(PATIENCE_S), f"a member did not answer {what!r} in time"
        return self._pipe.recv()


def _be_member(application: Application, member_id: str, options: dict[str, Any], pipe: Pipe) -> None:
    asyncio.run(_run_member(application, member_id, options, pipe))


async def _run_member(application: Application, member_id: str, options: dict[str, Any], pipe: Pipe) -> None:
    turns = array("d")  # the garbage collector has no objects to look at in it
    began_s = time.monotonic()
    filling = bytes(application.value_bytes)

    async def add_up(record: Record, context: TaskContext) -> None:
        known = context.state.get(record.key)
        total = int(record.value) + (0 if known is None else int(known[:10]))
        context.state.put(record.key, b"%010d" % total + filling)
        context.send(f"{application.name}-out", b"%d" % total, key=record.key, partition=context.task.partition)
        if application.work_s:
            time.sleep(application.work_s)  # noqa: ASYNC251 as one that computes
        turns.extend((context.task.partition, context.token, time.monotonic()))

    member = Member(
        application.name,
        add_up,
        sources=application.name,
        state=f"{application.name}-state",
        member_id=member_id,
        connection=application.connection,
        group_config=application.config,
        **options,
    )
    over = asyncio.create_task(member.run())  # as applications are deployed
    while not over.done():
        if pipe.poll():
            what = pipe.recv()
            if what in ("leave", "restart"):
                await member.leave(back_within_s=BACK_WITHIN_S if what == "restart" else None)
            else:
                pipe.send({"turns": turns, "began": began_s}.get(what, _running(member)))
        await asyncio.sleep(0.02)
    assert await over == 0, "it has said why"
    pipe.send((turns, time.monotonic()))


def _running(member: Member) -> int:
    try:
        return len(member.running)
    except InputError:  # it has not joined
        return 0


def _turns_in(written: Sequence[float]) -> list[Turn]:
    return [(int(partition), int(token), when_s) for partition, token, when_s in zip(*[iter(written)] * 3, strict=True)]


async def until_running(members: Iterable[MemberProcess], tasks: int, each: int = 1) -> None:
    """Waits until the members run all tasks, each member at least `each`."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            counts = [await asyncio.to_thread(member.running) for member in members]
            if sum(counts) == tasks and min(counts) >= each:
                return
            await asyncio.sleep(0.2)


def state_directory(folder: str) -> dict[str, Any]:
    """The option for members that keep their state on disk."""
    return {"state_directory": Path(folder)}


def pauses(turns: Iterable[Turn]) -> tuple[list[float], dict[int, float]]:
    """Seconds between the last record of each owner and the first of the next one; and the longest
    time without a record, by partition.
    """
    of_task: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for partition, token, when_s in turns:
        of_task[partition].append((when_s, token))
    handed_over: list[float] = []
    longest: dict[int, float] = {}
    for partition, each in sorted(of_task.items()):
        each.sort()
        for (one_s, one), (next_s, other) in itertools.pairwise(each):
            longest[partition] = max(longest.get(partition, 0.0), next_s - one_s)
            if one != other:
                handed_over.append(next_s - one_s)
    return handed_over, longest
