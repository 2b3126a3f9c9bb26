"""Asks a process beside the worker (`equipoise.console.answering`) what would hold up the event
loop: explanations, what-if and sizes. One question at a time; the process starts with the first
one, and ended when nobody has asked for a while, or when an answer takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import struct
import sys
from typing import Any

import attrs

from equipoise.events.records import BaseState
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import ENDS_S
from equipoise.replay.all_clear import Grounds
from equipoise.replay.history import MoveStory
from equipoise.replay.owners import Interval
from equipoise.replay.prediction.habits import Habits
from equipoise.replay.sizing.autoscaling import FollowingPolicy, LastAnswer
from equipoise.replay.sizing.demand import Demand

ANSWER_S = 30.0
"""Longest time for an answer."""
IDLE_S = 300.0
"""The process ends after so long without a question."""
MOST_WAITING = 8
"""Most questions that wait for each other."""


@attrs.frozen(kw_only=True)
class Explain:
    """Why `task` is where it is. `moves`, `stopped`: what is known of its past. `grounds`: what the
    answer rests on.
    """

    base: BaseState
    task: TaskId
    moves: tuple[MoveStory, ...]
    stopped: tuple[Interval, ...]
    unknown_before: str
    grounds: Grounds


@attrs.frozen(kw_only=True)
class WhatIfQuestion:
    """What would follow if `join` members joined, the members `without` were asked to leave, or the
    settings (``name=value``) changed.
    """

    base: BaseState
    join: int = 0
    without: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class SizeQuestion:
    """The question how many members should run now. `last`: the last answer that asked for another
    number.
    """

    base: BaseState
    habits: Habits
    demand: Demand
    policy: FollowingPolicy
    last: LastAnswer | None


Question = Explain | WhatIfQuestion | SizeQuestion


class BusyError(Exception):
    """It cannot be asked now."""


class Questions:
    """The process beside one worker. `close` ends it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, question: Question) -> dict[str, Any]:
        """Returns the answer. Raises BusyError when too many wait, or no answer came in time."""
        if self._waiting >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} questions are being answered; ask again")
        self._waiting += 1
        try:
            async with self._lock:
                return await self._asked(question)
        finally:
            self._waiting -= 1

    async def _asked(self, question: Question) -> dict[str, Any]:
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(ANSWER_S):
                process = await self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                body = pickle.dumps(question)
                process.stdin.write(struct.pack(">I", len(body)) + body)
                await process.stdin.drain()
                length = struct.unpack(">I", await process.stdout.readexactly(4))[0]
                found: dict[str, Any] = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301 of the process that was started here
        except TimeoutError:
            await self.close()
            raise BusyError(f"no answer within {ANSWER_S:.0f} s: the group is too large to be asked here; ask the log (equipoise explain)") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.close()
            raise BusyError("the process that answers has ended; ask again") from None
        except BaseException:
            await self.close()  # the next question must not get the answer to this one
            raise
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        return found

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "equipoise.console.answering", stdin=pipe, stdout=pipe, start_new_session=True
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Ends the process."""
        if self._idle is not None:
            self._idle.cancel()
        self._end()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), ENDS_S)
            self._process = None
