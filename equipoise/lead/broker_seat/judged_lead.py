"""That equipoise begins to lead a group, or joins it to stand by, is a change, too: it is planned in
the group's log, with what it is expected to cost, and measured by what the coordinator describes
while it happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import attrs
from aiokafka import errors

from equipoise.events.decisions import ChangeJudged
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import ChangeMeasured, ChangePlanned
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup
from equipoise.kafka.described_groups import read_streams_groups
from equipoise.kafka.group_client import COOPERATIVE, GroupClient
from equipoise.kafka.group_requests import StreamsGroupDescribe
from equipoise.lead.broker_seat.described_streams import active_tasks, is_at_rest
from equipoise.lead.broker_seat.extra_member import CLIENT_ID, ExtraMember
from equipoise.lead.broker_seat.first_plan import FirstPlan, classic_consumers, has_of
from equipoise.lead.broker_seat.ways import Way
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat_status import SeatStatus
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.prediction.described_cost import DescribedCost
from equipoise.replay.wording import judged_text, planned_text
from equipoise.statemachine.watched_change import measured, verdict_on

_LOG = logging.getLogger(__name__)
LOOK_S = 0.25
PLAN_WITHIN_S = 10.0
"""Nobody waits longer to be led."""
WITHIN_S = 600.0
"""It is measured for no longer."""

Described = tuple[Mapping[str, str], bool]
"""Who has each partition or task, and whether the group is at rest."""


class LedSeat(Protocol):
    @property
    def status(self) -> SeatStatus:
        """Returns what it knows of its group."""

    @property
    def is_settled(self) -> bool:
        """Returns whether it has begun to lead, or to stand by, and changes nothing more."""


@attrs.frozen(kw_only=True)
class PlannedLead:
    """`first`: what the group had, and was to have, when the change was planned. `leads`: the change
    is that equipoise leads; else it joins a classic group that has a leader, and stands by.
    """

    change: ChangePlanned
    first: FirstPlan
    leads: bool


async def planned_lead(
    group: str, log: SeatLog, way: Way, plan: Callable[[], Awaitable[FirstPlan | None]], runtime: Runtime, *, evicts: bool
) -> PlannedLead | None:
    """Appends that equipoise is going to lead the group, or to join it, and what that is expected to
    cost. None: nobody is in the group, equipoise is in it already, or it cannot be asked.
    """
    number = log.state.config_number
    try:
        async with asyncio.timeout(PLAN_WITHIN_S):
            first = await plan()
    except (EquipoiseError, errors.KafkaError, OSError, TimeoutError) as error:
        _LOG.warning("group %s: what it costs to lead it is not predicted: %s %s", group, type(error).__name__, error)
        return None
    if first is None or first.is_led or not first.has:
        return None
    expected = await runtime.run_blocking(partial(first.expected, way, evicts=evicts))
    leads = way.name != "seat" or evicts
    planned = attrs.evolve(ChangeWish().planned("lead", way.what(leads=leads), log.state.last_offset, None, number), expected=expected)
    log.append(planned)
    _LOG.info("group %s: %s: %s", group, planned.change_id, planned_text(planned))
    for line in first.warnings(way, evicts=evicts):
        _LOG.info("group %s: %s", group, line)
    return PlannedLead(change=planned, first=first, leads=leads)


class LeadMeasuring:
    """Looks at the group while it begins to be led, and appends what that has cost."""

    def __init__(self, connection: Connection, group: str, log: SeatLog, way: Way, planned: PlannedLead, runtime: Runtime) -> None:
        self._connection, self._group, self._log, self._way, self._runtime = connection, group, log, way, runtime
        self._planned, self._first, self._leads = planned.change, planned.first, planned.leads
        self._began_s = runtime.monotonic_s()
        self._cost = DescribedCost[str](0)
        self._has: Mapping[str, str] = {}
        counts = Counter(planned.first.names.values())
        self._named = {name for name, count in counts.items() if count == 1 and way.name != "streams"}
        """Clients that are known by their names: their member ids change when they join again."""

    async def run(self, seat: LedSeat) -> None:
        """Returns when it is over. A seat that was to lead, and stands by, has not made the change:
        another process leads. Raises EquipoiseError when the log fails.
        """
        self._look(self._first.described(self._named), is_at_rest=False)
        async with self._describing() as describe:
            while self._cost.rested_ms(self._now_ms()) < self._planned.quiet_ms and self._now_ms() < WITHIN_S * 1_000:
                await asyncio.sleep(LOOK_S)
                if self._leads and seat.status.stands_by and seat.is_settled:
                    self._append(verdict_on(self._planned, "replaced"))
                    return
                try:
                    described = await describe()
                except (errors.KafkaError, OSError, EquipoiseError):
                    continue  # another broker coordinates it soon
                if described is not None:
                    self._look(described[0], is_at_rest=described[1] and seat.is_settled)
        self._end()

    def _end(self) -> None:
        now_ms = self._now_ms()
        is_over = self._cost.rested_ms(now_ms) >= self._planned.quiet_ms
        self._append(measured(self._planned, self._cost.costs(now_ms), is_over=is_over))

    def _append(self, verdict: ChangeMeasured) -> None:
        change = self._log.state.change
        if change is None or change.planned.change_id != self._planned.change_id:
            return  # other settings are in force
        for each in self._log.append(verdict):
            if isinstance(each.decision, ChangeJudged):
                level = logging.WARNING if each.decision.outcome != "at_rest" or each.decision.above else logging.INFO
                _LOG.log(level, "group %s: %s %s", self._group, self._planned.change_id, judged_text(each.decision))

    def _now_ms(self) -> int:
        return int((self._runtime.monotonic_s() - self._began_s) * 1_000)

    def _look(self, has: Mapping[str, str], *, is_at_rest: bool) -> None:
        self._has = has
        self._cost.look(has, self._now_ms(), is_at_rest=is_at_rest)

    @contextlib.asynccontextmanager
    async def _describing(self) -> AsyncIterator[Callable[[], Awaitable[Described | None]]]:
        """Yields what describes the group; its answer is None while that is none of this way."""
        if self._way.name == "streams":
            async with ConsumerGroup(self._connection, self._group, client_id=CLIENT_ID) as streams:
                yield lambda: self._streams(streams)
        elif self._way.name == "brokers":
            async with ExtraMember(self._connection, self._group, "") as member:
                yield lambda: self._consumers(member)
        else:
            async with GroupClient(self._connection, self._group) as client:
                yield lambda: self._classic(client)

    async def _streams(self, asked: ConsumerGroup) -> Described:
        (group,) = read_streams_groups((await asked.send(StreamsGroupDescribe(self._group))).body)
        asked.check(group.error_code)
        return active_tasks(group), is_at_rest(group)

    async def _consumers(self, member: ExtraMember) -> Described | None:
        found = await member.describe()
        return None if found is None else (has_of(found, self._named), found.is_at_rest)

    async def _classic(self, client: GroupClient) -> Described:
        """While a classic group is rebalanced, members of an eager protocol stop, each at a time
        that nobody is told: all of them count as stopped. Nobody is told the protocol then, either.
        """
        found = await client.describe()
        if found.state == "Stable":
            return has_of(classic_consumers(found), self._named), True
        return (self._has if self._first.strategy == COOPERATIVE else {}), False
