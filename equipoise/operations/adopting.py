"""Moves an application between a consumer group and members that take its place (`Member(adopts=)`,
docs/adopt.md): follows what Kafka and the members do, and gives the offsets back at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned, ExpectedCost
from equipoise.hosting.live_settings import LiveSettings
from equipoise.hosting.runtime import DEPLOYED
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.held_group import RELEASE, HeldGroup, Holders
from equipoise.kafka.known_ends import batches_before, looks_back
from equipoise.kafka.started_clients import NotAllowedError, admin_client, reaching
from equipoise.member.copies.fencing import SOURCES_KEY, ChangelogFence
from equipoise.member.tasks.context import unpack_sources
from equipoise.member.tasks.positions import PositionsReader, positions_topic
from equipoise.operations.live_group import LiveGroup
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.wording import planned_text
from equipoise.statemachine.state import GroupState
from equipoise.statemachine.watched_change import measured

LOOK_S = 0.05
RETRY_S = 0.5
FIRST_LOOK_BACK = 10_000
"""Records from the end of a changelog in which the source offsets are looked for first. Each
commit has them.
"""
PAUSES_MS = {"median": 500, "low_50": 200, "high_50": 1_000, "low_95": 0, "high_95": 1_500}
"""Nobody reads for so long when members take over, by what was measured (docs/adopt.md). How long
consumers take to start is theirs.
"""
Say = Callable[[str], None]
Ends = Callable[[], Awaitable[None]]
"""Has the application start or stop, or asks somebody for it."""


class Adopting:
    """The consumer group `consumers`, and the members of `group` that take its place. An
    asynchronous context manager. `say`: prints a line.
    """

    def __init__(self, settings: LiveSettings, group: str, consumers: str, say: Say) -> None:
        if group == consumers:
            raise InputError(f"--group: the members' group and the consumers' are both {group!r}; give the members another name")
        self._settings, self.group, self.consumers, self._say = settings, group, consumers, say
        self._live = LiveGroup(settings, group)
        self._held = HeldGroup(settings, consumers, RELEASE, DEPLOYED.boot_ms)
        self._left_s: float | None = None
        """When the last one who read was seen to have left."""
        self._planned: ChangePlanned | None = None
        self._planned_s = 0.0

    async def __aenter__(self) -> Adopting:
        await self._live.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._held.leave()
        await self._live.__aexit__(None, None, None)

    @contextlib.contextmanager
    def _allowed(self) -> Iterator[None]:
        from aiokafka.errors import GroupAuthorizationFailedError

        with reaching(self._settings):
            try:
                yield
            except GroupAuthorizationFailedError:
                needs = f"it needs READ on this group, and DESCRIBE on the members' group {self.group}"
                raise NotAllowedError(f"group {self.consumers}: the user may not see or change it; {needs}") from None

    async def _check_there(self, places: list[TopicPartition]) -> None:
        """Raises InputError when there is no such consumer group: nobody would ever come."""
        with self._allowed():
            there = await self._held.look()
            if there.members or there.others or not places or await self._committed(self.consumers, places):
                return
        topics = ", ".join(dict.fromkeys(place.topic for place in places))
        raise InputError(
            f"--consumers {self.consumers}: there is no such consumer group: it has no members, and no committed offsets of {topics}; "
            "`equipoise cluster kafka://HOST:PORT` lists those that there are"
        )

    # To the members

    async def to_members(self, stop: Ends) -> float | None:
        """Returns when the members read. The pause in seconds; None: they did so before. `stop`:
        ends the application of the consumers. Raises InputError.
        """
        await self._check_there(_sources(await self._live.state()))
        state = await self._ready_members()
        places = _sources(state)
        with self._allowed():
            holders = await self._held.look()
            if holders.members:
                self._say(f"group {self.consumers} is held by {_counted(len(holders.members), 'member')} of {self.group} already")
                return None
            missing = sorted((await self._held.consumers()).topics - {place.topic for place in places})
            if missing:
                raise InputError(f"--consumers {self.consumers}: its consumers read {', '.join(missing)}, which no task of {self.group} reads")
            before = await self._committed(self.consumers, places)
            self._say(f"group {self.consumers}: {_counted(len(holders.others), 'consumer')}, offsets of {_counted(len(before), 'partition')}")
            await self._plan(state, f"members take the place of the consumers of {self.consumers}", predicts_pause=True)
            await stop()
            left_s = await self._until(lambda now: not now.others, "consumer")
            handed = await self._committed(self.consumers, places)
            await self._until(lambda now: bool(now.members), "")
            entered_s = _now_s()
            self._say(f"the members hold group {self.consumers}, {entered_s - left_s:.1f} s after its last consumer has left")
            await self._first_commit(handed, places)
        return await self._done(state, left_s)

    async def _ready_members(self) -> GroupState:
        """The group, once its leader has granted every task."""
        said = ""
        while True:
            state = await self._live.state()
            granted, tasks = len(state.owner), len(state.tasks())
            members = f"group {self.group}: {_counted(len(state.members), 'member')}"
            if tasks and granted == tasks:
                self._say(f"{members} with {_counted(tasks, 'task')}")
                return state
            now = f"{members}, {granted} of {_counted(tasks, 'task')} granted; waiting"
            if now != said:
                said = now
                self._say(now)
            await self._live.until_next_look()

    async def _first_commit(self, handed: Mapping[TopicPartition, int], places: list[TopicPartition]) -> None:
        """Returns when members have committed something new, or have nothing to read."""
        consumer = self._settings.clients.consumer()
        try:
            await consumer.start()
            while True:
                ends = await consumer.end_offsets(places)
                theirs = await self._committed(self.group, places)
                if any(offset > handed.get(place, 0) for place, offset in theirs.items()):
                    return
                if all(handed.get(place, 0) >= end for place, end in ends.items()):
                    self._say("there is nothing to read")
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            await consumer.stop()

    # Back to the consumers

    async def to_consumers(self, start: Ends) -> float | None:
        """Returns when consumers read. The pause in seconds; None: they did so before. `start`:
        starts the application of the consumers. Raises InputError.
        """
        state = await self._live.state()
        await self._check_there(_sources(state))
        await self._plan(state, f"consumers of {self.consumers} take the place of the members", predicts_pause=False)
        holding = asyncio.ensure_future(self._hold())
        try:
            with self._allowed():
                left_s = await self._members_left(holding)
                if left_s is None:
                    return None
                found = await self._positions(state)
                had = await self._committed(self.consumers, _sources(state))
                ahead = {place: offset for place, offset in found.items() if offset > had.get(place, -1)}
                await self._commit(ahead)
                self._say(f"offsets of {_counted(len(ahead), 'partition')} are committed for group {self.consumers}")
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await self._held.leave()
        self._say(f"group {self.consumers} is free")
        await start()
        with self._allowed():
            while not (await self._held.consumers()).reads:  # noqa: ASYNC110  # the broker tells nobody
                await asyncio.sleep(LOOK_S)
        return await self._done(state, left_s)

    async def _hold(self) -> None:
        from aiokafka.errors import InconsistentGroupProtocolError, KafkaError

        while True:
            try:
                await self._held.enter_and_stay(lambda holders: None)
            except InconsistentGroupProtocolError:
                raise
            except (KafkaError, OSError) as error:
                self._say(f"group {self.consumers}: {type(error).__name__}; trying again")
                await asyncio.sleep(RETRY_S)

    async def _members_left(self, holding: asyncio.Future[None]) -> float | None:
        """Waits until the members have stopped their tasks and left. None: consumers are there."""
        from aiokafka.errors import InconsistentGroupProtocolError

        said = -1
        while True:
            if holding.done():
                try:
                    holding.result()
                except InconsistentGroupProtocolError:
                    self._say(f"group {self.consumers} has consumers of its own: nothing is to be released")
                    return None
            now = await self._held.look()
            if len(now.members) != said and not now.others:
                said = len(now.members)
                self._say(f"group {self.consumers} is held by {_counted(said, 'member')} of {self.group}")
            if now.releasing and not now.members:
                return self._left_s or _now_s()
            if now.members:
                self._left_s = None
            elif self._left_s is None:
                self._left_s = _now_s()
            await asyncio.sleep(LOOK_S)

    async def _positions(self, state: GroupState) -> dict[TopicPartition, int]:
        """Where the members have read to: what their changelogs say, else what they committed."""
        found = await self._committed(self.group, _sources(state))
        found |= await self._stored(_sources(state))
        for task, part in state.tasks().items():
            logged = [await self._logged(TopicPartition(topic, task.partition)) for topic in (part.changelog_topics if part.stateful else ())]
            for place in set(logged[0]).intersection(*logged) if logged else ():
                found[place] = min(each[place] for each in logged)
        return found

    async def _stored(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of tasks without changelogs."""
        reader = PositionsReader(self.group, lambda: self._settings.clients.consumer(read_committed=True))
        found: dict[TopicPartition, int] = {}
        try:
            async with admin_client(self._settings) as admin:
                (described,) = await admin.describe_topics([positions_topic(self.group)])
            for place in places if not described["error_code"] else ():
                stored = (await reader.read(place.partition)).of_source(place)
                offsets = [each.position.offset for each in stored if not each.position.changelogs and each.position.offset is not None]
                if offsets:
                    found[place] = min(offsets)
        finally:
            await reader.stop()
        return found

    async def _logged(self, changelog: TopicPartition) -> dict[TopicPartition, int]:
        """The source offsets of the last commit in a changelog; empty: there is none."""
        consumer = self._settings.clients.consumer(read_committed=True)
        try:
            await consumer.start()
            first, end = (await consumer.beginning_offsets([changelog]))[changelog], (await consumer.end_offsets([changelog]))[changelog]
            consumer.assign([changelog])
            for start in looks_back(first, end, FIRST_LOOK_BACK):
                consumer.seek(changelog, start)
                packed: bytes | None = None
                fence = ChangelogFence()
                async for batch in batches_before(consumer, changelog, end):
                    changes = fence.fold([(each.key, each.value, each.headers, each.offset) for each in batch])
                    packed = changes.get(SOURCES_KEY, packed)
                if packed is not None:
                    return unpack_sources(packed)[0]
            return {}
        finally:
            await consumer.stop()

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of the consumers' group, which this one holds."""
        from aiokafka.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError

        while offsets:
            with contextlib.suppress(IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError):  # it joins again
                await self._held.commit({(place.topic, place.partition): offset for place, offset in offsets.items()})
                return
            await asyncio.sleep(LOOK_S)

    # Both ways

    async def _plan(self, state: GroupState, what: str, *, predicts_pause: bool) -> None:
        """Writes down what is going to be changed, unless it is from an earlier run, or cannot be."""
        from equipoise.operations.worker_builds import check_workers_read

        self._planned_s = _now_s()
        before = None if state.change is None else state.change.planned
        if before is not None and (before.kind, before.what) == ("adopt", what):
            self._planned = before
            return
        tasks = len(state.tasks())
        pause = ExpectedCost(metric="unavailable_task_ms", **{name: tasks * each for name, each in PAUSES_MS.items()})
        moves = ExpectedCost(metric="moves", **dict.fromkeys(PAUSES_MS, tasks))
        planned = ChangeWish().planned("adopt", what, state.last_offset, None, state.config_number)
        planned = attrs.evolve(planned, expected=(pause, moves) if predicts_pause else (moves,))
        try:
            problem = await check_workers_read(self._settings)
            if before is not None and before.kind != "adopt":
                problem = f"{before.change_id} is not over"
            if not problem:
                self._planned = planned if await self._live.plan(planned) else None
                problem = "" if self._planned else "the settings of the group have changed meanwhile"
        except InputError as error:
            problem = str(error)
        self._say(f"not judged: {problem}" if problem else f"{planned.change_id}: {planned_text(planned)}")

    async def _done(self, state: GroupState, left_s: float) -> float:
        """Says what it has cost. Returns for how many seconds nobody read."""
        now_s = _now_s()
        if self._planned is not None:
            tasks, rest_ms = len(state.tasks()), int((now_s - self._planned_s) * 1_000)
            unavailable_ms = tasks * int((now_s - left_s) * 1_000)
            costs = {"unavailable_task_ms": unavailable_ms, "moves": tasks, "rest_ms": rest_ms}
            try:
                await self._live.append(measured(self._planned, costs, is_over=True))
            except InputError as error:
                self._say(f"{self._planned.change_id} is not judged: {error}")  # what was asked for is done
        return now_s - left_s

    async def _until(self, done: Callable[[Holders], bool], what: str) -> float:
        """Waits until those in the consumers' group are as wanted. When that was seen."""
        said: int | None = None
        while True:
            now = await self._held.look()
            if done(now):
                return _now_s()
            if what and len(now.others) != said:
                said = len(now.others)
                there = f"{_counted(said, what)} still there" if said else f"no {what} there any more"
                self._say(f"group {self.consumers}: {there}")
            await asyncio.sleep(LOOK_S)

    async def _committed(self, group: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Committed offsets of a group, where there are any."""
        async with admin_client(self._settings) as admin:
            found = await admin.committed_offsets(group, places)
        return {place: offset for place, offset in found.items() if offset is not None}


def _sources(state: GroupState) -> list[TopicPartition]:
    return sorted({TopicPartition(topic, task.partition) for task, part in state.tasks().items() for topic in part.source_topics})


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
