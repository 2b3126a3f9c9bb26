"""Examines a deployment as one of its users: everything that this user can see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import attrs
from aiokafka import errors

from equipoise.events.errors import EquipoiseError
from equipoise.kafka.asking import Asking, BrokerAddress, TopicFound, refusal, transaction_s
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.group_requests import ConsumerGroupDescribe, StreamsGroupDescribe
from equipoise.kafka.started_clients import reader
from equipoise.log.kafka.log_topics import MUST_BE
from equipoise.member.tasks.positions import positions_topic
from equipoise.operations.doctor import brokers, directory_findings, group_findings, open_transactions, protocol_findings, topic_findings
from equipoise.operations.doctor.access import Acl, Application, Need, needs
from equipoise.operations.doctor.finding import CHECKS, Finding, problem, unknown, warning
from equipoise.operations.follower import Follower, KnownGroup
from equipoise.operations.worker_builds import ask_workers
from equipoise.replay.all_clear import AskedNow
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupState
from equipoise.worker.settings import WorkerSettings

ANSWER_S = 5.0
"""Longest wait for one broker."""
READ_S = 60.0
"""Longest time to read the log."""
CLOCK_S = 4.0
"""How long the doctor waits for facts, by which it compares clocks. Members send one each 3 s."""
ROUND_TRIPS = 10
_FACTS_WANTED = 3


@attrs.frozen(kw_only=True)
class Examined:
    """What is examined. `role`: one of `access.ROLES`. `group`: None: all of the log. The topics
    are in addition to those that the log names.
    """

    settings: WorkerSettings
    role: str
    group: str | None = None
    sources: tuple[str, ...] = ()
    changelogs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    state_directories: tuple[Path, ...] = ()


async def examine(examined: Examined) -> list[Finding]:
    """All findings, in the order of `finding.CHECKS`."""
    found = [each async for each in _of_brokers(examined)]
    for folder in examined.state_directories:
        found += directory_findings.of_state_directory(folder)
    return sorted(found, key=lambda each: CHECKS.index(each.check))


async def _of_brokers(examined: Examined) -> AsyncIterator[Finding]:
    settings = examined.settings
    addresses = [address.strip() for address in settings.bootstrap.split(",")]
    whys = await asyncio.gather(*(_refusal(settings, address) for address in addresses))
    refused = [brokers.refused(address, why) for address, why in zip(addresses, whys, strict=True) if why is not None]
    some_answer = len(refused) < len(addresses)
    for each in refused:
        yield attrs.evolve(each, status="warning") if some_answer else each
    if not some_answer:
        return
    try:
        async with Asking(settings, request_timeout_ms=int(2 * ANSWER_S * 1_000)) as asking:
            async for finding in _Examination(examined, asking).findings():
                yield finding
    except errors.KafkaConnectionError:
        yield brokers.refused(settings.bootstrap, "the connection is closed at the first request")
    except errors.KafkaError as error:
        yield problem("brokers", f"a request fails: {error!r}", "look at the brokers' own logs, and run the doctor again")


async def _refusal(settings: WorkerSettings, address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return f"{address!r} is not host:port"
    return await refusal(settings, host.strip("[]"), int(port), ANSWER_S)


class _Examination:
    """Of brokers of which one answers."""

    def __init__(self, examined: Examined, asking: Asking) -> None:
        self._examined, self._asking = examined, asking
        self._settings, self._topics = examined.settings, examined.settings.topics
        self._brokers: list[BrokerAddress] = []
        self._asked = AskedNow(workers=None, unknown="nobody was asked", now_ms=None)

    async def findings(self) -> AsyncIterator[Finding]:
        self._brokers = self._asking.brokers()
        whys = await asyncio.gather(*(refusal(self._settings, each.host, each.port, ANSWER_S) for each in self._brokers))
        refusals = {each.node_id: why for each, why in zip(self._brokers, whys, strict=True) if why is not None}
        for finding in brokers.of_brokers(self._brokers, refusals):
            yield finding
        there = [each.node_id for each in self._brokers if each.node_id not in refusals]
        if not there:
            return
        requests = [await self._asking.versions(node_id) for node_id in there]
        for finding in brokers.of_versions(min(requests, key=lambda each: each.get(brokers.METADATA, (0, 0))[1])):
            yield finding

        names = [self._topics.name_of(what) for what in MUST_BE]
        found = await self._asking.topics([*names, self._topics.bases])
        if not found[self._topics.bases].is_hidden and not found[self._topics.bases].partitions:
            del found[self._topics.bases]  # no worker has had a retention
        known, unread = await self._read(found)
        machines = [each.lead.machine for each in known]
        yield unread or group_findings.of_workers(self._asked, [each.lead for each in known])
        for group in known:
            for finding in group_findings.of_group(group.lead, group.grounds):
                yield finding
        if unread is None and self._examined.group is not None and not machines and not self._examined.sources:
            yield group_findings.unknown_group(self._examined.group, await self._groups())
        applications = self._applications(machines)
        if self._examined.role == "member":
            for finding in self._incomplete(applications):
                yield finding
        own = [topic for each in applications for topic in (*each.sources, *each.changelogs, *each.outputs, positions_topic(each.group))]
        found |= await self._asking.topics(list(dict.fromkeys(own))) if own else {}
        transaction = await self._transaction() if self._examined.role == "member" else None
        settings = await self._asking.settings(list(found))
        for finding in await self._rights(applications, found, settings, transaction):
            yield finding
        of_log = topic_findings.of_log(self._topics, found, settings, len(self._brokers), self._settings.bootstrap)
        for finding in of_log:
            yield finding
        for application in applications if self._examined.role != "reader" else ():
            for finding in topic_findings.of_application(application, found, settings, len(self._brokers), self._settings.bootstrap):
                yield finding
        for each in machines:
            for finding in topic_findings.of_topology(each.state, found):
                yield finding
        for finding in await self._held(applications, found):
            yield finding
        async for finding in self._times(found, transaction):
            yield finding
        broker = (await self._asking.settings(broker=there[0])).get(str(there[0]))
        session_ms = self._settings.worker_session_timeout_ms if self._examined.role == "worker" else None
        for finding in protocol_findings.of_protocols([await self._protocols(node_id) for node_id in there]):
            yield finding
        for each in machines:
            for finding in group_findings.of_troubles(each.state):
                yield finding
        states: Sequence[GroupState | None] = [each.state for each in machines] or [None]
        for number, state in enumerate(states):
            for finding in group_findings.of_timeouts(state, broker, len(self._brokers), session_ms):
                if number == 0 or state is None or f"group {state.group}" in finding.text:
                    yield finding

    async def _held(self, applications: Iterable[Application], found: Mapping[str, TopicFound]) -> list[Finding]:
        names = dict.fromkeys(name for each in applications for name in (*each.sources, *each.changelogs))
        places = [
            TopicPartition(name, partition)
            for name in names
            if not found[name].is_hidden and "Read" in (found[name].allowed or ("Read",))
            for partition in range(len(found[name].partitions))
        ]
        return await open_transactions.of_sources(self._settings, self._asking.admin, places, int(ANSWER_S * 1_000))

    async def _protocols(self, node_id: int) -> protocol_findings.GroupProtocols:
        consumer, streams = [await self._asking.assigns(node_id, kind) for kind in (ConsumerGroupDescribe, StreamsGroupDescribe)]
        settings = (await self._asking.settings(broker=node_id)).get(str(node_id))
        return protocol_findings.GroupProtocols(node_id=node_id, consumer=consumer, streams=streams, settings=settings)

    async def _read(self, found: dict[str, TopicFound]) -> tuple[list[KnownGroup], Finding | None]:
        """The groups of the log as far as they are decided on, and why they are not read."""
        wanted = (self._topics.facts, self._topics.decisions, self._topics.checkpoints)
        if not all(found[name].partitions for name in wanted) or not all("Read" in (found[name].allowed or ()) for name in wanted):
            return [], unknown("groups", "the log is not read: a topic is missing, or the right to read it; how its groups are is not known")
        follower = Follower(self._settings, self._topics, self._examined.group)
        try:
            async with asyncio.timeout(READ_S):
                await follower.catch_up()
                self._asked = await ask_workers(self._settings, self._topics)
                return await follower.known(self._asked), None
        except (EquipoiseError, errors.KafkaError, TimeoutError) as error:
            why = f"the log cannot be read: {error or f'not within {READ_S:.0f} s'}"
            return [], problem("topics", why, "equipoise verify says more; docs/logs.md#retention")

    async def _groups(self) -> list[str]:
        """Every group of the log; empty: it cannot be read now."""
        follower = Follower(self._settings, self._topics, None)
        try:
            async with asyncio.timeout(READ_S):
                await follower.catch_up()
        except (EquipoiseError, errors.KafkaError, TimeoutError):
            return []
        return [lead.name for _, lead in follower.groups()]

    def _applications(self, machines: Iterable[GroupMachine]) -> list[Application]:
        """Returns what groups of the log name, and the user of the doctor."""
        examined, found = self._examined, []
        for each in machines:
            parts = () if each.state.topology is None else each.state.topology.subtopologies
            found.append(
                Application(
                    group=each.state.group,
                    deals_by_lag=each.deals_by_lag,
                    sources=tuple(topic for part in parts for topic in part.source_topics),
                    changelogs=tuple(topic for part in parts if part.stateful for topic in part.changelog_topics),
                )
            )
        if examined.group is None:
            return found
        known = next(iter(found), Application(group=examined.group))
        return [
            attrs.evolve(
                known,
                outputs=examined.outputs,
                sources=tuple(dict.fromkeys((*known.sources, *examined.sources))),
                changelogs=tuple(dict.fromkeys((*known.changelogs, *examined.changelogs))),
            )
        ]

    def _incomplete(self, applications: Iterable[Application]) -> Iterable[Finding]:
        for each in applications:
            if not each.sources:
                yield unknown("rights", f"the topics of group {each.group} are not known", "name them with --source, --changelog and --output")
            elif not each.outputs:
                yield unknown("rights", f"outputs of group {each.group} are not in the log", "name them with --output, if there are any")

    # Rights

    async def _rights(
        self,
        applications: Sequence[Application],
        found: Mapping[str, TopicFound],
        settings: topic_findings.Settings,
        transaction: float | Exception | None,
    ) -> Iterable[Finding]:
        needed: dict[Acl, Need] = {}
        wanted: Sequence[Application | None] = applications or [None]
        for application in wanted:
            needed |= {each.acl: each for each in needs(self._examined.role, self._topics, application)}
        if self._topics.bases not in found:
            needed = {acl: need for acl, need in needed.items() if acl.name != self._topics.bases}
        places = {positions_topic(each.group) for each in applications}
        absent = {name for name in places if name in found and not found[name].is_hidden and not found[name].partitions}
        needed = {acl: need for acl, need in needed.items() if acl.name not in absent or acl.operation == "Create"}
        there = {name for name, each in found.items() if each.partitions}
        needed = {acl: need for acl, need in needed.items() if acl.operation != "Create" or acl.name not in there}
        groups = {acl.name: await self._operations(acl.name) for acl in needed if acl.resource == "Group"}

        def is_allowed(acl: Acl) -> bool | None:
            if acl.resource == "TransactionalId":
                return not isinstance(transaction, errors.TransactionalIdAuthorizationFailed)
            if acl.resource == "Group":
                allowed = groups[acl.name]
                return None if allowed is None else acl.operation in allowed
            names = [name for name in found if name == acl.name or (acl.is_prefix and name.startswith(acl.name))]
            of_each = [topic_findings.is_allowed(found[name], acl.operation, has_settings=name in settings) for name in names]
            return False if False in of_each else True if True in of_each else None

        had = [(need, is_allowed(acl)) for acl, need in needed.items()]
        return brokers.of_rights(self._settings.bootstrap, self._settings.sasl_username, had)

    async def _operations(self, group: str) -> Collection[str] | None:
        """Returns what the user may do with a consumer group; None: its coordinator does not say."""
        try:
            return await self._asking.group_operations(group)
        except errors.KafkaError:  # it is silent, or still away: the rest is examined all the same
            return None

    # Times

    async def _transaction(self) -> float | Exception | None:
        """Seconds of a transaction, or why there was none."""
        group = self._examined.group
        assert group is not None, "a member is of a group"
        try:
            return await transaction_s(self._settings, f"{group}/equipoise.doctor", group, TopicPartition(self._topics.facts, 0), 2 * ANSWER_S)
        except (errors.KafkaError, TimeoutError) as error:
            return error

    async def _times(self, found: dict[str, TopicFound], transaction: float | Exception | None) -> AsyncIterator[Finding]:
        facts = found[self._topics.facts]
        if not facts.partitions:
            return
        places = [TopicPartition(self._topics.facts, partition) for partition in range(len(facts.partitions))]
        took: list[float] = []
        differences_ms: list[float] = []
        try:
            async with reader(self._settings, request_timeout_ms=int(ANSWER_S * 1_000)) as consumer:
                await consumer.end_offsets(places)  # finds the leaders
                for _ in range(ROUND_TRIPS):
                    began_s = time.monotonic()
                    ends = await consumer.end_offsets(places[:1])
                    took.append(time.monotonic() - began_s)
                if "Read" in (facts.allowed or ()):
                    ends = await consumer.end_offsets(places)
                    consumer.assign(places)
                    for place, end in ends.items():
                        consumer.seek(place, end)
                    by_s = time.monotonic() + CLOCK_S
                    while len(differences_ms) < _FACTS_WANTED and (left_s := by_s - time.monotonic()) > 0:
                        for records in (await consumer.getmany(timeout_ms=int(left_s * 1_000))).values():
                            now_ms = time.time() * 1_000
                            differences_ms += [record.timestamp_ms - now_ms for record in records]
        except (EquipoiseError, errors.KafkaError) as error:
            yield warning("times", f"leaders of {self._topics.facts} do not answer: {error}", "look at the brokers that lead its partitions")
        if took:
            is_missing_right = isinstance(transaction, errors.TransactionalIdAuthorizationFailed)
            said = None if is_missing_right else f"{transaction!r}" if isinstance(transaction, Exception) else transaction
            for finding in brokers.of_times(took, said):
                yield finding
            yield brokers.of_clock(differences_ms)
