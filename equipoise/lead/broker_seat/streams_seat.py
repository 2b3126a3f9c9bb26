"""The broker seat in a group of Kafka Streams (KIP-1071, brokers of 4.4 or later): no member of the
group, but who writes the group's settings. Each look at the group that finds something to decide is
a round (docs/protocol.md#d12), as those that Kafka Streams' own leader asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set

import attrs
from aiokafka import errors

from equipoise.bridge.mapping import facts_of, names_of, racks_of
from equipoise.bridge.question import Question
from equipoise.events.decisions import EventRejected, RoundPlanned
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import PartitionsObserved
from equipoise.events.parts import whole
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.client import Admin, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup
from equipoise.kafka.described_groups import DescribedStreamsGroup, read_streams_groups
from equipoise.kafka.group_requests import StreamsGroupDescribe, own_group_settings, set_group_settings
from equipoise.kafka.started_clients import reader
from equipoise.lead.any_seat import AnySeat, unless_stopped
from equipoise.lead.broker_seat.broker_plan import MARK, MOST_FOLLOWED, BrokerPlan, newest, write_plan
from equipoise.lead.broker_seat.described_streams import (
    caught_up_copies,
    is_at_rest,
    pending_tasks,
    processes_of,
    question_of,
    sources_of_streams,
    streams_plan,
    topics_of_streams,
)
from equipoise.lead.broker_seat.extra_member import ASSIGNOR, CLIENT_ID, REQUEST_TIMEOUT_MS, ExtraMember, NoBrokerSeatError
from equipoise.lead.broker_seat.seat_queue import PREFIX, SeatQueue
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat_status import SeatState, SeatStatus
from equipoise.replay.wording import counted
from equipoise.statemachine.rejections import rejection_text

_LOG = logging.getLogger(__name__)

LOOK_S, RETRY_S = 0.5, 1.0
STANDBY_LOOK_S = 10.0
"""Between two looks at a group that another process leads."""
TAGS, NAME = "streams.rack.aware.assignment.tags", "streams.assignor.name"


@attrs.frozen(kw_only=True)
class FirstRound:
    """`is_led`: the group has equipoise's assignor already."""

    question: Question
    planned: RoundPlanned
    is_led: bool


class StreamsSeat(AnySeat):
    """The seat in one group. Of several processes the one that began first leads."""

    def __init__(self, connection: Connection, group: str, seat_log: SeatLog, runtime: Runtime = DEPLOYED, status: SeatStatus | None = None) -> None:
        super().__init__(connection, group, seat_log, runtime, status)
        self._connection = connection
        self._described = ConsumerGroup(connection, group, request_timeout_ms=REQUEST_TIMEOUT_MS, client_id=CLIENT_ID)
        self._topics = ExtraMember(connection, group, "")
        self._queue = SeatQueue(connection, group, runtime)
        self._number = runtime.wall_us() // 1_000
        self._others: list[str] = []
        """Tags of the group that are no plans."""
        self._is_in = False
        self._has_settings = False
        """Whether the group may have settings of this process."""
        self._led: object = None
        """Members and topology for which the last round was."""
        self._epoch = 0
        """The group's, by what the last round wrote; a later one is of somebody else's change."""
        self._hands_over = False
        """Whether the last round moved tasks, which their members have not all handed over."""
        self._caught_up: Set[tuple[str, TaskId]] = frozenset()
        """Copies that had caught up in the last round: member, task."""
        self._said_of: list[str] = []
        """Members of the last round that was logged."""
        self._left_because = ""
        """Why the group is left as it is, as it was said; empty: it is not."""
        self._noted_s = -STANDBY_LOOK_S
        self._due_s: float | None = None
        self._asked_s: float | None = None

    @property
    def is_settled(self) -> bool:
        """Returns whether it stands by, or the group has what was decided and waits for nothing."""
        return self.status.stands_by or (self._is_in and not self._hands_over and self._due_s is None)

    async def run(self) -> None:
        """Leads until `stop`. Raises NoBrokerSeatError, and EquipoiseError when the log fails; the
        group has its former settings then.
        """
        try:
            async with self._topics, self._queue:
                try:
                    await unless_stopped(self._take_part(), self._stopped)
                finally:
                    self.status.become(SeatState.JOINS)
                    if self._has_settings:
                        await self._give_back()
                    with contextlib.suppress(errors.KafkaError, OSError):  # else the broker ends the session
                        await self._queue.leave()
        finally:
            await self._described.close()

    async def _take_part(self) -> None:
        while True:
            try:
                await self._look(await self._described.admin())
                await asyncio.sleep(LOOK_S)
            except (errors.GroupAuthorizationFailedError, errors.ClusterAuthorizationFailedError, errors.TopicAuthorizationFailedError) as error:
                rights = f"DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS on the group, and READ on the group {PREFIX}{self.group}"
                raise NoBrokerSeatError(f"--group {self.group}: the user needs {rights}: {error}") from None
            except (errors.InvalidConfigurationError, errors.InvalidRequestError) as error:
                raise NoBrokerSeatError(f"--group {self.group}: the brokers do not take its settings: {error}") from None
            except (errors.KafkaError, OSError) as error:
                if not self._brokers.noted("the group's coordinator", error):
                    _LOG.warning("group %s: %s: %s; trying again", self.group, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)

    async def _give_back(self) -> None:
        try:
            admin = await self._described.admin()
            _, others = await self._tags(admin)
            await set_group_settings(admin, self.group, {NAME: None, TAGS: ",".join(others) or None})
            _LOG.info("group %s: left; nothing of equipoise is in it any more; the brokers' own assignor goes on", self.group)
        except (errors.KafkaError, OSError) as error:
            _LOG.warning("group %s: its settings %s and %s are still equipoise's (%s)", self.group, NAME, TAGS, error)

    async def _tags(self, admin: Admin) -> tuple[list[str], list[str]]:
        """Returns the group's tags: those that are plans, and those of somebody else."""
        own = await own_group_settings(admin, self.group)
        tags = [each for each in own.get(TAGS, "").split(",") if each]
        return [each for each in tags if each.startswith(MARK)], [each for each in tags if not each.startswith(MARK)]

    async def _look(self, admin: Admin) -> None:
        asked_s = self._runtime.monotonic_s()
        is_first = await self._queue.is_first()
        self._answered(asked_s)
        if not is_first:
            self._stand_by()
            if asked_s - self._noted_s >= STANDBY_LOOK_S:
                self._note(await self._describe(), asked_s)
            return
        group = await self._describe()
        self._note(group, asked_s)
        if self.status.become(SeatState.LEADS):
            _LOG.info("group %s: equipoise leads it", self.group)
        if not group.members or group.topology is None or group.assignment_epoch < group.group_epoch:
            return
        led = (sorted((each.member_id, each.process_id) for each in group.members), group.topology)
        caught_up = caught_up_copies(group, self._log.state.settings.acceptable_recovery_lag)
        if led == self._led and group.group_epoch <= self._epoch and not self._is_due(group, caught_up):
            return
        plans, self._others = await self._tags(admin)
        carried = newest(plans)
        if carried is not None and carried.number < MOST_FOLLOWED:
            self._number = max(self._number, carried.number)
        try:
            question = await self._question(group)
        except InputError as error:
            if str(error) != self._left_because:
                _LOG.warning("%s: it is left as it is", error)
            self._left_because = str(error)
            return
        self._left_because = ""
        planned = self._decide(question)
        now_s = self._runtime.monotonic_s()
        self._asked_s, self._due_s = now_s, None if planned.follow_up_ms is None else now_s + planned.follow_up_ms / 1_000
        self._number += 1
        plan = streams_plan(group, planned, names_of(question), question.tasks, number=self._number)
        await self._carry(admin, group, plan)
        self._led, self._caught_up, self._hands_over = led, caught_up, any(each.kind == "move" for each in plan.entries)

    def _note(self, group: DescribedStreamsGroup, asked_s: float) -> None:
        """Notes what is seen of the group, whoever leads it."""
        self._noted_s = asked_s
        self.status.sees(len(processes_of(group)), self._queue.seats)
        self.status.topics = sources_of_streams(group)
        self.status.pending = pending_tasks(group) if self.status.leads else 0

    def _is_due(self, group: DescribedStreamsGroup, caught_up: Set[tuple[str, TaskId]]) -> bool:
        """Returns whether there may be something to decide, though nothing of the group is new: all
        that moved is handed over, a copy that is waited for has caught up, or the time has come.
        """
        if self._hands_over:
            return group.group_epoch >= self._epoch and is_at_rest(group)
        return self._due_s is not None and (self._runtime.monotonic_s() >= self._due_s or not caught_up <= self._caught_up)

    def _stand_by(self) -> None:
        if self.status.become(SeatState.STANDS_BY, leader=self._queue.first):
            _LOG.info("group %s: another process leads it: standing by", self.group)
        self._is_in, self._has_settings, self._led = False, False, None

    async def _describe(self) -> DescribedStreamsGroup:
        answer = await self._described.send(StreamsGroupDescribe(self.group))
        (group,) = read_streams_groups(answer.body)
        self._described.check(group.error_code)
        return group

    async def _question(self, group: DescribedStreamsGroup) -> Question:
        """Asks for what the description lacks. Raises InputError, KafkaError, OSError."""
        asked = await self._topics.topics(topics_of_streams(group))
        counts = asked.metadata.counts
        changelogs = {each.name for part in group.topology.subtopologies for each in part.state_changelog_topics} if group.topology else set()
        places = [TopicPartition(name, number) for name in sorted(changelogs & counts.keys()) for number in range(counts[name])]
        ends: dict[tuple[str, int], int] = {}
        if places:
            async with reader(self._connection) as consumer:
                ends = {(place.topic, place.partition): end for place, end in (await consumer.end_offsets(places)).items()}
        acceptable_lag = self._log.state.settings.acceptable_recovery_lag
        return question_of(group, asked.metadata, ends, {}, f"{group.group_epoch}-{self._runtime.unique()[:12]}", acceptable_lag=acceptable_lag)

    async def first_round(self) -> FirstRound:
        """Decides once, and changes nothing but the log. Raises EquipoiseError, KafkaError,
        OSError.
        """
        try:
            admin = await self._described.admin()
            async with self._topics:
                group = await self._describe()
                own = await own_group_settings(admin, self.group)
                question = await self._question(group)
        finally:
            await self._described.close()
        return FirstRound(question=question, planned=self._decide(question), is_led=own.get(NAME) == ASSIGNOR)

    def _decide(self, question: Question) -> RoundPlanned:
        """Appends the round's facts, and returns what was decided. Raises EquipoiseError."""
        passed_ms = 0 if self._asked_s is None else int((self._runtime.monotonic_s() - self._asked_s) * 1_000)
        facts = list(facts_of(question, self._log.state, passed_ms))
        racks = racks_of(question)
        observed = list(observed_in_parts(PartitionsObserved(racks=racks))) if racks else []
        for decision in whole(each.decision for each in self._log.append(*facts[:-1], *observed, facts[-1])):
            if isinstance(decision, RoundPlanned):
                return decision
            if isinstance(decision, EventRejected):
                raise EquipoiseError(f"group {self.group}: a round was rejected: {rejection_text(decision, facts[-1])}")
        raise EquipoiseError(f"group {self.group}: the round {question.round_id} was not decided")

    async def _carry(self, admin: Admin, group: DescribedStreamsGroup, plan: BrokerPlan) -> None:
        began_s, self._epoch = self._runtime.monotonic_s(), group.group_epoch
        is_first = not self._is_in
        if plan.entries or is_first:
            settings: dict[str, str | None] = {TAGS: ",".join([*self._others, write_plan(plan)])}
            self._has_settings = True
            await set_group_settings(admin, self.group, settings | ({NAME: ASSIGNOR} if is_first else {}))
            self._is_in, self._epoch = True, self._epoch + 1
        counts = {kind: sum(each.last - each.first + 1 for each in plan.entries if each.kind == kind) for kind in ("move", "copy", "drop")}
        self.status.decided(counts["move"])
        members = sorted({each.member_id for each in group.members})
        is_news = bool(plan.entries) or is_first or members != self._said_of
        self._said_of = members
        _LOG.log(
            logging.INFO if is_news else logging.DEBUG,
            "group %s: epoch %d, %s, assigned in %.0f ms: %s to move, %s to begin, %d to end",
            self.group,
            group.group_epoch,
            counted(len(processes_of(group)), "process", "processes"),
            (self._runtime.monotonic_s() - began_s) * 1_000,
            counted(counts["move"], "task"),
            counted(counts["copy"], "copy", "copies"),
            counts["drop"],
        )
