"""Leads one group in the way that its protocol and the brokers allow, or every group whose name
fits a pattern, each of them so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

import attrs

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ListedGroup, listed_groups, repeated
from equipoise.lead.any_seat import unless_stopped
from equipoise.lead.broker_seat.broker_seat import BrokerSeat
from equipoise.lead.broker_seat.first_plan import first_plan
from equipoise.lead.broker_seat.jar_watch import JarWatch
from equipoise.lead.broker_seat.judged_lead import LeadMeasuring, planned_lead
from equipoise.lead.broker_seat.seat_queue import PREFIX
from equipoise.lead.broker_seat.streams_seat import StreamsSeat
from equipoise.lead.broker_seat.ways import check_way, way_of
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.seat import NotClassicError, Seat
from equipoise.lead.seat_status import SeatState, SeatStatus

_LOG = logging.getLogger(__name__)
BROKERS_WITHIN_S = 120.0
"""So long brokers may be away when a group is looked at first."""
PROTOCOL_S = 1.0
"""After which a group that has another protocol than a moment ago is looked at again."""
LOOK_S = 5.0
"""Between two looks at which groups there are."""
LEAVES_S = 45.0
"""For the seats to leave their groups: longer than a broker may take to answer."""
AGAIN_S = 60.0
"""After which a group that could not be led is tried again."""
_LED_TYPES, _LED_PROTOCOLS, _WITHOUT_MEMBERS = ("classic", "consumer", "streams"), ("consumer", "streams"), ("Empty", "Dead")


@attrs.frozen(kw_only=True)
class HowToLead:
    """`config`: of each group; `streams_config`: of those of Kafka Streams that the brokers assign.
    `evict`, `convert`: as the options of `equipoise lead`.
    """

    connection: Connection
    settings: SeatSettings
    config: GroupConfigured
    streams_config: GroupConfigured
    evict: bool = False
    convert: bool = False
    runtime: Runtime = DEPLOYED
    jars: JarWatch = attrs.field(default=attrs.Factory(lambda self: JarWatch(self.connection, self.runtime.monotonic_s), takes_self=True), init=False)
    """One for all groups of the process."""


def leads(group: ListedGroup, patterns: Sequence[str]) -> bool:
    """Returns whether its name fits one of the patterns (``*``, ``?``; a bracket is itself), it has
    members, and they are of a kind that can be led.
    """
    can_be = group.group_type in _LED_TYPES and group.protocol_type in _LED_PROTOCOLS and group.state not in _WITHOUT_MEMBERS
    return can_be and not group.name.startswith(PREFIX) and any(fnmatchcase(group.name, pattern.replace("[", "[[]")) for pattern in patterns)


class LedGroup:
    """The seat of this process in one group. `is_named`: settings are for this one group, and must
    have a meaning for it.
    """

    def __init__(self, how: HowToLead, group: str, log_file: Path, *, is_named: bool = True) -> None:
        self._how, self._group, self._log_file, self._is_named = how, group, log_file, is_named
        self.status = SeatStatus(group=group, monotonic_s=how.runtime.monotonic_s)

    def statuses(self) -> list[SeatStatus]:
        return [self.status]

    def unready(self) -> str:
        """Returns why the seat is not in its group; "": it is."""
        return self.status.unready()

    async def run(self, stopped: asyncio.Event) -> None:
        """Leads the group until `stopped` is set. Raises InputError where it cannot be led, or
        brokers do not have the assignor any more, and EquipoiseError when the log fails; the seat
        has left the group then. A group whose protocol is another one meanwhile is led in the way
        that it has now.
        """
        while not stopped.is_set():
            try:
                await self._lead_in_its_way(stopped)
            except NotClassicError as error:
                _LOG.info("%s; looking at it again", error)
                await unless_stopped(asyncio.sleep(PROTOCOL_S), stopped)
            except Exception as error:
                why = str(error) if isinstance(error, EquipoiseError) else "its seat has failed; the log has the defect"
                self.status.become(SeatState.REFUSED, problem=why)
                raise
            else:
                return

    async def _lead_in_its_way(self, stopped: asyncio.Event) -> None:
        how, group, settings = self._how, self._group, self._how.settings
        connection, runtime = how.connection, how.runtime
        with SeatLog(self._log_file, group, runtime) as book:
            way = await unless_stopped(repeated(lambda: way_of(connection, group, convert=how.convert), BROKERS_WITHIN_S), stopped)
            if way is None:
                return
            check_way(way, group)
            if how.evict and way.name != "seat":
                raise InputError("--evict: the broker assigns this group, so it has no leader to take out")
            if self._is_named and way.name == "streams" and (settings.hold_ms or settings.capacities):
                raise InputError("--hold, --capacity: Kafka Streams' processes are as large as they have threads, and their copies are kept")
            book.configure(how.streams_config if way.name == "streams" else how.config)
            self.status.way = way.name
            _LOG.info("group %s: its log is %s", group, self._log_file)
            _LOG.info("%s", way.said(group))
            seat: Seat | BrokerSeat | StreamsSeat
            if way.name == "streams":
                seat = StreamsSeat(connection, group, book, runtime, self.status)
            elif way.name == "brokers":
                seat = BrokerSeat(connection, group, book, settings, together=way.together, runtime=runtime, status=self.status)
            else:
                seat = Seat(connection, group, book, settings, evict=how.evict, runtime=runtime, status=self.status)
            config = book.state.config
            assert config is not None, "the group is configured"
            planned = await unless_stopped(
                planned_lead(group, book, way, lambda: first_plan(connection, group, way, settings, config), runtime, evicts=how.evict), stopped
            )
            lost = asyncio.create_task(how.jars.until_lost(way, group))
            beside = [asyncio.create_task(_stop(seat, stopped, lost)), lost]
            if planned is not None:
                beside.append(asyncio.create_task(LeadMeasuring(connection, group, book, way, planned, runtime).run(seat)))
            try:
                await seat.run()
            finally:
                await call_off(*beside, again_s=ENDS_S)
            _LOG.info("group %s: not led here any more", group)
            if not lost.cancelled():
                lost.result()


async def _stop(seat: Seat | BrokerSeat | StreamsSeat, stopped: asyncio.Event, lost: asyncio.Task[None]) -> None:
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((stopping, lost), return_when=asyncio.FIRST_COMPLETED)
        seat.stop()
    finally:
        stopping.cancel()


def log_in(folder: Path, group: str) -> Path:
    """The log of a group in this folder, which is made. Raises InputError when that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the logs of groups cannot be there: {error.strerror}; name another folder") from None
    return folder / f"{quote(group, safe='')}.db"


class LedGroups:
    """Leads each group that fits one of `patterns` (``*``, ``?``) and has members, those that come
    later included. `folder`: of their logs, one for each group.
    """

    def __init__(self, how: HowToLead, patterns: Sequence[str], folder: Path) -> None:
        self._how, self._patterns, self._folder = how, patterns, folder
        self._groups: dict[str, LedGroup] = {}
        """Those that it has looked at; their statuses stay when a seat has ended."""
        self._seats: dict[str, asyncio.Task[None]] = {}
        self._again_s: dict[str, float] = {}
        """Group -> when it may be tried again."""
        self._said: dict[str, str] = {}

    def statuses(self) -> list[SeatStatus]:
        """Where the seats of this process are, and which groups it cannot lead."""
        return [each.status for each in self._groups.values()]

    def unready(self) -> str:
        """Returns why not every seat is in its group; "": each is, but for groups that cannot be
        led.
        """
        return self._said.get("", "") or "; ".join(filter(None, (each.unready() for each in self.statuses())))

    async def run(self, stopped: asyncio.Event) -> None:
        """Returns when `stopped` is set, and the seats have left their groups. Raises InputError
        when the folder cannot be made.
        """
        log_in(self._folder, "")
        waiting = asyncio.create_task(stopped.wait())
        try:
            while not stopped.is_set():
                await unless_stopped(self._look(stopped), stopped)
                await asyncio.wait((waiting,), timeout=LOOK_S)
        finally:
            waiting.cancel()
            if stopped.is_set() and self._seats:
                await asyncio.wait(self._seats.values(), timeout=LEAVES_S)
            await call_off(*self._seats.values(), again_s=ENDS_S)

    async def _look(self, stopped: asyncio.Event) -> None:
        try:
            found = await listed_groups(self._how.connection)
        except Exception as error:  # noqa: BLE001  # whatever a client raises must not end a worker that leads other groups
            self._say("", f"groups cannot be listed ({type(error).__name__} {error}); trying again")
            return
        self._said.pop("", None)
        now_s = asyncio.get_running_loop().time()
        for name in self._groups.keys() - {each.name for each in found}:
            seat = self._seats.get(name)
            if seat is None or seat.done():  # there is no such group any more
                self._seats.pop(name, None)
                del self._groups[name]
        for name in [each.name for each in found if each.name in self._seats or leads(each, self._patterns)]:
            seat = self._seats.get(name)
            if seat is not None and seat.done():
                del self._seats[name]
                self._ended(name, seat, now_s)
            if name not in self._seats and now_s >= self._again_s.get(name, now_s):
                if name not in self._groups:
                    self._groups[name] = LedGroup(self._how, name, log_in(self._folder, name), is_named=False)
                self._seats[name] = asyncio.create_task(self._groups[name].run(stopped))

    def _ended(self, group: str, seat: asyncio.Task[None], now_s: float) -> None:
        self._again_s[group] = now_s + AGAIN_S
        error = None if seat.cancelled() else seat.exception()
        if isinstance(error, EquipoiseError):
            self._say(group, f"group {group}: it is not led: {error}")
        elif error is not None:
            _LOG.error("group %s: its seat has failed; the group goes on", group, exc_info=error)

    def _say(self, group: str, text: str) -> None:
        """Says it, unless it was said last."""
        if self._said.get(group) != text:
            self._said[group] = text
            _LOG.warning("%s", text)
