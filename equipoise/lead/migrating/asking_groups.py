"""Asks a cluster about its groups, and their coordinators about what they have set."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
from aiokafka import errors

from equipoise.kafka.asking import Asking
from equipoise.kafka.consumer_groups import ClassicDescription, ListedGroup, classic_groups, groups_of, repeated
from equipoise.kafka.group_requests import ConsumerGroupDescribe, DescribeGroups
from equipoise.lead.broker_seat.described_group import CLASSIC_MEMBER
from equipoise.lead.migrating.clients import UNKNOWN, ClassicClient, read_client
from equipoise.lead.migrating.verdict import ASSIGNORS, POLICY, SIZE, CoordinatorSettings, MigratedGroup, TakeoverVerdict, verdict_of
from equipoise.replay.wording import counted

HEARTBEAT = "group.consumer.heartbeat.interval.ms"
LOADED_S = 30.0
MOST_AT_ONCE = 100
"""Groups in one request."""

_GROUP_ID_NOT_FOUND = 69
_NOT_CONSUMERS = {"streams": "it is a group of Kafka Streams that the broker assigns (KIP-1071)", "share": "it is a share group"}


@attrs.frozen(kw_only=True)
class JudgedGroup:
    """A group of the cluster. `group_type`: ``classic``, ``consumer``, ... `classic`: how many of
    its clients use the classic protocol.
    """

    group: MigratedGroup
    group_type: str
    classic: int
    coordinator: CoordinatorSettings
    verdict: TakeoverVerdict


class GroupsAsking(Asking):
    """Methods raise KafkaError, OSError, and InputError where the brokers are too old."""

    async def judged(self, patterns: Collection[str] = ()) -> list[JudgedGroup]:
        """The groups whose names match one of the patterns (``*``, ``?``), by name; without
        patterns all of them. A coordinator that is loading its groups is waited for.
        """
        return await repeated(lambda: self._judged(patterns), LOADED_S)

    async def _judged(self, patterns: Collection[str]) -> list[JudgedGroup]:
        found: list[JudgedGroup] = []
        for broker in self.brokers():
            listed = await groups_of(self.admin, broker.node_id)
            wanted = [each for each in listed if not patterns or any(fnmatch.fnmatchcase(each.name, pattern) for pattern in patterns)]
            if wanted:
                found += await self._of_coordinator(broker.node_id, wanted)
        return sorted(found, key=lambda each: each.group.name)

    async def _of_coordinator(self, node_id: int, listed: Sequence[ListedGroup]) -> list[JudgedGroup]:
        coordinator = await self.coordinator_settings(node_id)
        kinds = {each.name: (each.group_type, each.protocol_type, each.state) for each in listed}
        found = [_other(name, *kinds[name], coordinator) for name in kinds if kinds[name][0] not in ("classic", "consumer")]
        for some in _in_parts([name for name in kinds if kinds[name][0] == "classic"]):
            for each in classic_groups(await self.admin.ask(DescribeGroups(*some), node_id)):
                group = _classic_group(each)
                found.append(
                    JudgedGroup(
                        group=group,
                        group_type="classic",
                        classic=len(group.clients),
                        coordinator=coordinator,
                        verdict=_denied(each.error_code) or verdict_of(group, coordinator),
                    )
                )
        for some in _in_parts([name for name in kinds if kinds[name][0] == "consumer"]):
            answer = (await self.admin.ask(ConsumerGroupDescribe(*some), node_id)).to_object()
            found += [_consumers(each, coordinator) for each in answer["groups"]]
        return found

    async def coordinator_settings(self, node_id: int) -> CoordinatorSettings:
        """Returns what a coordinator has set."""
        given = (await self.settings(broker=node_id)).get(str(node_id)) or {}
        knows = await self.assigns(node_id, ConsumerGroupDescribe)
        return CoordinatorSettings(
            node_id=node_id,
            knows=knows,
            policy=given.get(POLICY),
            max_size=int(given[SIZE]) if SIZE in given else None,
            assignors=given.get(ASSIGNORS),
            heartbeat_interval_ms=int(given.get(HEARTBEAT, "5000")),
        )


def _in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), MOST_AT_ONCE):
        yield names[begin : begin + MOST_AT_ONCE]


def _denied(code: int) -> TakeoverVerdict | None:
    if not code or code == _GROUP_ID_NOT_FOUND:
        return None
    why = f"it cannot be described: {errors.for_code(code).__name__}"
    return TakeoverVerdict(takes="unknown", why=why, to_do="the user needs DESCRIBE on the group")


def _classic_group(described: ClassicDescription) -> MigratedGroup:
    settled = described.state == "Stable" and described.protocol_type == "consumer"
    clients = [
        read_client(each.member_id, each.client_id, each.host, each.instance_id, each.subscription, each.assignment)
        if settled
        else ClassicClient(member_id=each.member_id, client_id=each.client_id, host=each.host, instance_id=each.instance_id, library=UNKNOWN)
        for each in described.members
    ]
    return MigratedGroup(
        name=described.name,
        state=described.state,
        protocol_type=described.protocol_type,
        protocol=described.protocol,
        clients=tuple(sorted(clients, key=lambda each: (each.client_id, each.member_id))),
    )


def _consumers(described: Mapping[str, Any], coordinator: CoordinatorSettings) -> JudgedGroup:
    """A group of KIP-848: the broker has taken it over, or it never was a classic one."""
    classic = [each for each in described["members"] if each.get("member_type") == CLASSIC_MEMBER]
    group = MigratedGroup(name=described["group"], state=described["state"], protocol_type="consumer", protocol=described["assignor"] or "")
    denied = _denied(described["error_code"])
    if denied is not None:
        verdict = denied
    elif classic:
        named = ", ".join(sorted({each["client_id"] for each in classic})[:5])
        verdict = TakeoverVerdict(
            takes="taken over",
            why=f"{len(classic)} of {counted(len(described['members']), 'member')} use the classic protocol: {named}",
            to_do="start them again with group.protocol=consumer, one by one",
        )
    else:
        verdict = TakeoverVerdict(takes="new protocol", why="every client uses the new protocol")
    return JudgedGroup(group=group, group_type="consumer", classic=len(classic), coordinator=coordinator, verdict=verdict)


def _other(name: str, group_type: str, protocol_type: str, state: str, coordinator: CoordinatorSettings) -> JudgedGroup:
    verdict = TakeoverVerdict(takes="not for it", why=_NOT_CONSUMERS.get(group_type, f"it is a group of type {group_type!r}"))
    group = MigratedGroup(name=name, state=state, protocol_type=protocol_type)
    return JudgedGroup(group=group, group_type=group_type, classic=0, coordinator=coordinator, verdict=verdict)
