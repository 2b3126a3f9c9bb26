"""Tells autoscalers, which ask again and again, how many members a group should run
(docs/change.md#let-an-autoscaler-follow-it).

The loads of a group are followed from the first question on, and what its log says of the time
before is read once. A process beside the worker computes (`equipoise.console.questions`); an answer
counts for ten seconds, or for ten times as long as it took.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from equipoise.console.questions import BusyError, Questions, SizeQuestion
from equipoise.events.errors import EquipoiseError
from equipoise.events.records import BaseState, DecisionRecord, FactRecord
from equipoise.replay.sizing.autoscaling import FollowingPolicy, FollowingReader, LastAnswer
from equipoise.replay.wording import counted
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.partition_host import PartitionHost

_LOG = logging.getLogger(__name__)
READ_BACK_FACTS = 20_000
"""Facts of the partition before the first question that are read again."""
_MOST_PENDING = 50_000
"""Most records that wait until that is read."""
FRESH_S = 10.0
TIMES_ITS_WORK = 10
"""An answer counts for FRESH_S, or so many times as long as it took."""
FORGOTTEN_S = 3_600.0
"""A group about which nobody has asked for so long is no longer followed."""
MOST_POLICIES = 8
"""Answers kept of each group: autoscalers of one group may want different things."""


class NoAnswerError(Exception):
    """There is no answer now. `status`: of HTTP."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@attrs.define
class _Given:
    """The last answer to one policy. `asked`: the last one that asked for another number."""

    document: dict[str, Any] = attrs.field(factory=dict)
    until_s: float = 0.0
    asked: LastAnswer | None = None


@attrs.define
class _Followed:
    """A group whose loads are followed. `pending`: records that came while the time before is read;
    None: that is done.
    """

    partition: int
    reader: FollowingReader
    last_offset: int
    wanted_s: float
    pending: deque[FactRecord | DecisionRecord] | None = attrs.field(factory=deque)
    reading: asyncio.Task[None] | None = None
    given: dict[FollowingPolicy, _Given] = attrs.field(factory=dict)
    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    def take(self, records: Iterable[FactRecord | DecisionRecord]) -> None:
        if self.pending is None:
            for each in records:
                self.reader.take(each)
        else:
            self.pending.extend(records)


class GroupSizes:
    """The sizes of the groups of one worker. `host_of`: the host that leads a group; None: not this
    worker. `close` ends what was started.
    """

    def __init__(self, host_of: Callable[[str], PartitionHost | None], monotonic_s: Callable[[], float]) -> None:
        self._host_of, self._monotonic_s = host_of, monotonic_s
        self._questions = Questions()
        self._groups: dict[str, _Followed] = {}

    def note(self, partition: int, record: FactRecord, decisions: Iterable[DecisionRecord]) -> None:
        """Takes a fact that was folded, with its decisions."""
        followed = self._groups.get(record.group)
        if followed is None or record.offset <= followed.last_offset:
            return
        followed.last_offset = record.offset
        try:
            followed.take([record, *decisions])
        except EquipoiseError:
            self._forget(record.group)
            _LOG.warning("partition %d: group %s: its loads are read again with the next question", partition, record.group, exc_info=True)
        if followed.pending is not None and len(followed.pending) > _MOST_PENDING:
            self._forget(record.group)

    def forget(self, partition: int) -> None:
        """Forgets the groups of a partition: another worker may have led it."""
        for group in [group for group, followed in self._groups.items() if followed.partition == partition]:
            self._forget(group)

    def _forget(self, group: str) -> None:
        followed = self._groups.pop(group, None)
        if followed is not None and followed.reading is not None:
            followed.reading.cancel()

    async def close(self) -> None:
        """Ends the process beside the worker."""
        for group in list(self._groups):
            self._forget(group)
        await self._questions.close()

    async def answer(self, group: str, policy: FollowingPolicy) -> dict[str, Any]:
        """Returns the number of members to run, and why (`Following.as_json`). Raises
        NoAnswerError.
        """
        self._forget_unasked()
        followed, lead = self._followed(group)
        if followed.pending is not None:
            raise NoAnswerError(503, f"group {group!r}: the loads of the last hours are being read; ask again")
        async with followed.lock:
            given = followed.given.pop(policy, None) or _Given()
            followed.given[policy] = given  # the one that was asked for last is the last one
            while len(followed.given) > MOST_POLICIES:
                del followed.given[next(iter(followed.given))]
            if self._monotonic_s() >= given.until_s:
                await self._ask(followed, lead, policy, given)
            return given.document

    def _forget_unasked(self) -> None:
        now_s = self._monotonic_s()
        for group in [group for group, each in self._groups.items() if now_s - each.wanted_s > FORGOTTEN_S]:
            self._forget(group)

    def _followed(self, group: str) -> tuple[_Followed, GroupLead]:
        host = self._host_of(group)
        if host is None:
            raise NoAnswerError(404, f"group {group!r} is not led by this worker")
        lead = host.lead.groups.get(group)
        if lead is None:
            raise NoAnswerError(404, f"there is no group {group!r} in this log")
        if lead.halted is not None:
            raise NoAnswerError(503, f"the group is halted: {lead.halted}")
        followed = self._groups.get(group)
        if followed is None:
            last = lead.machine.state.last_offset
            followed = _Followed(host.partition, FollowingReader(group, lead.machine.state), last, self._monotonic_s())
            self._groups[group] = followed
            followed.reading = asyncio.ensure_future(self._read_back(host, lead, followed, last + 1))
        followed.wanted_s = self._monotonic_s()
        return followed, lead

    async def _read_back(self, host: PartitionHost, lead: GroupLead, followed: _Followed, end: int) -> None:
        """Reads what the log says of the time before the first question, which came at `end`."""
        group = lead.name
        try:
            async for record, decisions in host.former(max(0, end - READ_BACK_FACTS), end):
                if record.group == group:
                    followed.reader.take(record)
                    for each in decisions:
                        followed.reader.take(each)
        except Exception as error:  # noqa: BLE001 brokers may be away, records deleted: what comes from now on is followed
            _LOG.debug("group %s: its former loads are not read: %r", group, error)
            followed.reader = FollowingReader(group, lead.machine.state)
        pending, followed.pending = followed.pending, None
        followed.take(pending or ())

    async def _ask(self, followed: _Followed, lead: GroupLead, policy: FollowingPolicy, given: _Given) -> None:
        began_s, state = self._monotonic_s(), lead.machine.state
        habits, demand = followed.reader.read()
        base = BaseState(
            group=lead.name,
            offset=state.last_offset,
            number=state.number,
            begins_offset=state.last_offset,
            append_ms=state.last_append_ms or 0,
            state=lead.machine.snapshot(),
        )
        try:
            found = await self._questions.ask(SizeQuestion(base=base, habits=habits, demand=demand, policy=policy, last=given.asked))
        except BusyError as error:
            raise NoAnswerError(503, str(error)) from None
        problem = found.pop("problem")
        if problem:
            raise NoAnswerError(503, problem)
        if not given.document or found["members"] != given.document["members"]:
            _LOG.info("group %s: an autoscaler is told to run %s: %s", lead.name, counted(found["members"], "member"), found["line"])
        if not found["holds"]:
            given.asked = LastAnswer(members=found["members"], at_ms=base.append_ms) if found["members"] != found["now"] else None
        given.document = found
        given.until_s = self._monotonic_s() + max(FRESH_S, TIMES_ITS_WORK * (self._monotonic_s() - began_s))
