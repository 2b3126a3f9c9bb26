"""One group of a live log, for commands that append a fact and wait for its effect. The group is
folded here; a worker leads it elsewhere.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import attrs

from equipoise.assignors.unconfigured import default_configuration
from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned, DealRequested, Fact, GroupConfigured, ProbingTick, SilenceObserved
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.log_reading import PartitionReading
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.client import FIRST_ANSWER_S, LOG_COMPRESSION, Producer
from equipoise.kafka.started_clients import reaching
from equipoise.log.kafka.envelope import group_key, pack_fact, partition_of
from equipoise.operations.follower import Follower
from equipoise.operations.group_settings import OtherChange, changes_between
from equipoise.replay.trouble import UNCONFIGURED
from equipoise.replay.wording import groups_text
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import Folded
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.state import GroupState

LOOK_S = 0.5
"""Time between two looks at the log."""


class LiveGroup:
    """One group of the log that `settings` names. An asynchronous context manager: it holds a
    producer from the first `append` on, because whoever only looks need not have the right to
    write. `folded`: called for each fact of the group's partition, after it was folded here.
    """

    def __init__(self, settings: LiveSettings, group: str, *, folded: Folded = lambda record, decisions, machine: None) -> None:
        self._settings = settings
        self.group = group
        self._follower = Follower(settings, settings.topics, group, folded=folded)
        self._producer: Producer | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._producer is not None:
            await self._producer.stop()

    async def machine(self) -> GroupMachine:
        """The group's machine after the last fact.

        Raises InputError when the log holds no fact of the group, GroupHalted when it is halted.
        """
        return (await self._lead()).machine

    async def _lead(self) -> GroupLead:
        await self._follower.catch_up()
        found = next(self._follower.groups(), None)
        if found is None:
            everybody = Follower(self._settings, self._settings.topics)
            await everybody.catch_up()
            raise InputError(f"--group: the log holds no fact of group {self.group!r}; {groups_text({each.name for _, each in everybody.groups()})}")
        lead = found[1]
        if lead.halted is not None:
            raise lead.halted
        return lead

    async def state(self) -> GroupState:
        """The group's state after the last fact. Raises what `machine` raises."""
        return (await self.machine()).state

    async def configuration(self, *, or_default: bool = False) -> GroupConfigured:
        """The configuration in force, with its number in `made_from`: what is made of it names it.
        `or_default`: where the group has none, the one that a member brings by default; else raises
        InputError. Raises what `machine` raises.
        """
        state = await self.state()
        if state.config is None and not or_default:
            raise InputError(f"--group {self.group}: {UNCONFIGURED}")
        return attrs.evolve(state.config or default_configuration(), made_from=state.config_number)

    async def append(self, fact: Fact) -> int:
        """Appends a fact of the group and returns its offset. Raises InputError when no broker
        answers, or when this user may not write to the topic of facts.
        """
        from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError

        facts = self._settings.topics.facts
        partition = partition_of(self.group, await self._follower.partitions())
        with reaching(self._settings):
            try:
                if self._producer is None:
                    producer = self._settings.clients.producer(compression_type=LOG_COMPRESSION)
                    await producer.start(within_s=FIRST_ANSWER_S)
                    self._producer = producer
                sent = await self._producer.send_and_wait(facts, pack_fact(fact), key=group_key(self.group), partition=partition)
            except (ClusterAuthorizationFailedError, TopicAuthorizationFailedError):  # the first: it may write to no topic at all
                fix = f"give it Write on Topic {facts} (docs/deploy.md#tls-passwords-and-acls)"
                raise InputError(f"topic {facts}: this user may not write to it; {fix}") from None
        return sent.offset

    async def plan(self, planned: ChangePlanned) -> bool:
        """Appends what is going to be changed, and returns whether it will be judged. False: other
        settings are in force than it was made from. Raises what `append` and `machine` raise.
        """
        await self.append(planned)
        change = (await self.state()).change
        return change is not None and change.planned == planned

    async def until_next_look(self) -> None:
        """Sleeps for LOOK_S."""
        await asyncio.sleep(LOOK_S)

    async def is_answered(self) -> bool:
        """Returns whether a worker has published every decision that the group's facts cause.
        False: no worker runs, or it is behind.
        """
        return await self._follower.is_published()


class AnsweredFact(LiveGroup):
    """Appends one fact of an operator, and finds a worker's answer to it."""

    def __init__(self, settings: LiveSettings, group: str) -> None:
        super().__init__(settings, group, folded=self._note)
        self.offset: int | None = None
        """Offset of the appended fact; None: none was appended."""
        self.is_without_effect = False
        """Whether the fact causes no decision; once `look` has found an answer."""
        self.configurations: dict[int, FactRecord] = {}
        """Number of a configuration -> its fact, of those that were read here."""
        self._fact: Fact | None = None
        self._is_folded = False
        self._answered_to: int | None = None
        """Number of the last decision that must be published; None: no worker has shown that it
        read the fact.
        """
        self._rejected: EventRejected | None = None
        self._published_to: dict[PartitionReading, int] = {}
        """Up to where decisions had been read before the fact was appended."""

    def _note(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        is_rejected = any(isinstance(each.decision, EventRejected) for each in decisions)
        if record.group == self.group and isinstance(record.event, GroupConfigured) and not is_rejected:
            self.configurations[machine.state.config_number] = record
        if self.offset is None or record.group != self.group or record.offset < self.offset:
            return
        if record.offset == self.offset:
            self._is_folded, self._answered_to, self.is_without_effect = True, None, not decisions
            self._rejected = next((each.decision for each in decisions if isinstance(each.decision, EventRejected)), None)
        # Every build deals the same state alike, and remembers a plan: neither needs an answer.
        needs_none = isinstance(record.event, DealRequested | ChangePlanned) or not machine.state.members
        is_answer = bool(decisions) or (record.offset == self.offset and needs_none)  # on a later fact, too: facts are read in order
        if self._answered_to is None and (is_answer or isinstance(record.event, ProbingTick | SilenceObserved)):
            self._answered_to = machine.state.number

    async def say(self, fact: Fact) -> None:
        """Appends the fact. Raises InputError when it is too large or no broker answers."""
        codec.encode(fact)
        self.offset, self._is_folded, self._answered_to, self._rejected, self.is_without_effect = None, False, None, None, False
        self.offset = await self.append(fact)
        self._published_to = dict(self._follower.published_to)
        self._fact = fact

    async def look(self) -> bool:
        """Returns whether a worker has answered. A group without members needs no answer: the next
        worker that leads it reads the fact. Raises what `machine` raises.
        """
        lead = await self._lead()
        if self.offset is not None and lead.checkpoint_offset >= self.offset:  # of a worker
            if not self._is_folded:
                self._rejected = await self._follower.published_rejection(self.group, self.offset, self._published_to)
            self._is_folded, self._answered_to = True, 0
        if not self._is_folded or self._answered_to is None or not await self._follower.is_published(self._answered_to):
            return False
        await self.state()  # read again: the worker's answer may differ from this build's
        return True

    async def is_answered_within(self, timeout_s: float) -> bool:
        """Waits until a worker has answered. False: none has within `timeout_s`."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + timeout_s
        while not await self.look():
            if clock() >= end_s:
                return False
            await self.until_next_look()
        return True

    @property
    def is_outdated(self) -> bool:
        """Returns whether it was rejected because the settings that it was made from are not in
        force any more.
        """
        return self._rejected is not None and self._rejected.code == "configuration_changed"

    async def changed_since(self, before: GroupConfigured) -> list[OtherChange]:
        """Returns what was changed since these settings of `configuration` were in force, in the
        order of the log. Raises what `configuration` raises.
        """
        now, found = await self.configuration(), []
        for number, record in sorted(self.configurations.items()):
            if number > (before.made_from or 0) and isinstance(config := record.event, GroupConfigured):
                changes = changes_between(before, config)
                found.append(OtherChange(by=config.by, offset=record.offset, at_ms=record.append_ms, change_id=config.change_id, changes=changes))
                before = config
        rest = changes_between(before, now)
        return [*found, OtherChange(changes=rest)] if rest else found

    def rejection(self) -> str | None:
        """Returns why the fact was rejected, once `look` has found an answer; None: it was
        accepted.
        """
        return None if self._rejected is None else rejection_text(self._rejected, self._fact)
