"""Classic consumer groups, as their coordinators run them. A group survives its coordinator: what
changes with a failover is the broker that answers.
"""

from __future__ import annotations

from typing import Any

import attrs
from aiokafka import errors

from equipoise.testing.simulated.kafka.broker_network import CallsLater
from equipoise.testing.simulated.kafka.cluster_state import ErrorClass, Reply

INITIAL_US = 200_000
"""How long an empty group waits for more members (group.initial.rebalance.delay.ms)."""


@attrs.define(eq=False)
class GroupSession:
    """`heard`: how often it was heard. `joins`, `syncs`: what answers its requests that wait."""

    id: str
    session_us: int
    rebalance_us: int
    protocols: dict[str, bytes]
    heard: int = 0
    joins: Reply | None = None
    syncs: Reply | None = None
    assignment: bytes = b""

    def take_sync(self) -> Reply | None:
        reply, self.syncs = self.syncs, None
        return reply


def _answer(reply: Reply | None, answer: Any) -> None:
    if reply is not None:
        reply(answer)


class CoordinatedGroup:
    """`state`: as DescribeGroups names it."""

    def __init__(self, name: str, scheduler: CallsLater) -> None:
        self.name, self._scheduler = name, scheduler
        self.state = "Empty"
        self.generation = 0
        self.protocol, self.leader = "", ""
        self.members: dict[str, GroupSession] = {}
        self.given_ids: set[str] = set()
        self._round = 0
        """Of the rebalance that is prepared."""
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        member_id = f"{self.name}-{self._ids}"
        self.given_ids.add(member_id)
        return member_id

    def problem(self, member_id: str, generation: int) -> ErrorClass | None:
        if member_id not in self.members:
            return errors.UnknownMemberIdError
        if generation != self.generation:
            return errors.IllegalGenerationError
        return errors.RebalanceInProgressError if self.state == "PreparingRebalance" else None

    def heard(self, member: GroupSession) -> None:
        """The member lives: its session begins again."""
        member.heard += 1
        self._scheduler.call_later(member.session_us, self._expire, member, member.heard)

    def _expire(self, member: GroupSession, heard: int) -> None:
        if member.heard == heard and member.joins is None and self.members.get(member.id) is member:
            self.remove(member.id)

    def remove(self, member_id: str) -> bool:
        member = self.members.pop(member_id, None)
        if member is None:
            return False
        for reply in (member.joins, member.syncs):
            _answer(reply, errors.UnknownMemberIdError)
        self._prepare()
        return True

    def join(self, member: GroupSession) -> None:
        is_first = not self.members
        known = self.members.get(member.id)
        if known is not None:
            member.heard, member.assignment = known.heard, known.assignment
        self.given_ids.discard(member.id)
        self.members[member.id] = member
        self.heard(member)
        self._prepare(INITIAL_US if is_first else 0)

    def _prepare(self, wait_us: int = 0) -> None:
        if self.state != "PreparingRebalance":
            self.state = "PreparingRebalance"
            self._round += 1
            for each in self.members.values():
                _answer(each.take_sync(), errors.RebalanceInProgressError)
            longest_us = max((each.rebalance_us for each in self.members.values()), default=0)
            self._scheduler.call_later(wait_us + longest_us, self._complete, self._round)
        self._scheduler.call_later(wait_us, self._complete_if_all_joined, self._round)

    def _complete_if_all_joined(self, number: int) -> None:
        if all(each.joins is not None for each in self.members.values()):
            self._complete(number)

    def _complete(self, number: int) -> None:
        """Begins the generation with those that have joined."""
        if self._round != number or self.state != "PreparingRebalance":
            return
        self.members = {each.id: each for each in self.members.values() if each.joins is not None}
        self.generation += 1
        if not self.members:
            self.state = "Empty"
            return
        self.state = "CompletingRebalance"
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        self.protocol = next(name for name in self.members[self.leader].protocols if all(name in each.protocols for each in self.members.values()))
        told = [(each.id, None, each.protocols[self.protocol]) for each in self.members.values()]
        for each in self.members.values():
            reply, each.joins = each.joins, None
            self.heard(each)
            _answer(reply, (self.generation, self.protocol, self.leader, each.id, told if each.id == self.leader else []))

    def sync(self, member: GroupSession, assigned: dict[str, bytes], reply: Reply) -> None:
        self.heard(member)
        if self.state == "Stable":
            reply(member.assignment)
            return
        member.syncs = reply
        if member.id != self.leader:
            return
        self.state = "Stable"
        for each in self.members.values():
            each.assignment = assigned.get(each.id, b"")
            _answer(each.take_sync(), each.assignment)


class ClassicGroups:
    """The groups of a cluster."""

    def __init__(self, scheduler: CallsLater) -> None:
        self._scheduler = scheduler
        self._groups: dict[str, CoordinatedGroup] = {}

    def group(self, name: str) -> CoordinatedGroup:
        return self._groups.setdefault(name, CoordinatedGroup(name, self._scheduler))
