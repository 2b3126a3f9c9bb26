"""The group coordinator of the classic protocol: membership, the start of a rebalance, and its
completion when all have joined (Kafka: ``GroupMetadataManager``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import attrs

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol

Subscription = TypeVar("Subscription")
"""What a member joins with."""
Assignment = TypeVar("Assignment")
"""What a member is given."""
Given_contra = TypeVar("Given_contra", contravariant=True)


class GroupConsumer(Protocol[Given_contra]):
    """A member of the group, as the coordinator sees it."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def session_timeout_ms(self) -> int: ...
    def assigned(self, assignment: Given_contra) -> None:
        """Receives its assignment."""

    def join_again(self) -> None:
        """Called when another rebalance began before the assignment arrived."""


Lead = Callable[[Sequence[Subscription], str], Mapping[str, Assignment]]
"""(subscriptions of all members, the leader's name) -> consumer -> assignment."""


class _Phase(enum.Enum):
    EMPTY = enum.auto()
    PREPARING = enum.auto()
    """Members are joining."""
    COMPLETING = enum.auto()
    """All have joined, and the leader is deciding."""
    STABLE = enum.auto()


@attrs.define
class _Member(Generic[Subscription, Assignment]):
    consumer: GroupConsumer[Assignment]
    heard_ms: int
    subscription: Subscription
    joined: bool = True
    """Whether it has joined the rebalance under way."""


class Coordinator(Generic[Subscription, Assignment]):
    """`noted`: called with the cause of each rebalance when its assignment has arrived."""

    def __init__(self, engine: Engine, protocol: KafkaProtocol, *, lead: Lead[Subscription, Assignment], noted: Callable[[str], None]) -> None:
        self.generation = 0
        self._engine = engine
        self._protocol = protocol
        self._lead = lead
        self._noted = noted
        self._phase = _Phase.EMPTY
        self._members: dict[str, _Member[Subscription, Assignment]] = {}
        self._leader = ""
        self._cause = ""
        self._hold_until_ms = 0

    def join(self, consumer: GroupConsumer[Assignment], subscription: Subscription, cause: str) -> None:
        """JoinGroup. `cause`: cause of the rebalance, should this request begin one."""
        known = self._members.get(consumer.name)
        first = not self._members
        self._members[consumer.name] = _Member(consumer, self._engine.now_ms, subscription)
        if self._phase is not _Phase.PREPARING:
            self._prepare(cause if known is not None else "join", joins=consumer.name)
            self._members[consumer.name].joined = True
            if first:
                self._hold()
        elif known is None and self._engine.now_ms < self._hold_until_ms:
            self._hold()
        self._complete_if_all_joined()

    def heartbeat(self, consumer: GroupConsumer[Assignment]) -> bool:
        """Returns whether a rebalance is under way that the member has not joined."""
        member = self._members.get(consumer.name)
        if member is None:
            return True
        member.heard_ms = self._engine.now_ms
        return self._phase is _Phase.PREPARING and not member.joined

    def is_gone(self, consumer: GroupConsumer[Assignment]) -> bool:
        """Returns whether it left, or was removed."""
        return consumer.name not in self._members

    @property
    def is_stable(self) -> bool:
        """Returns whether no rebalance is under way."""
        return self._phase is _Phase.STABLE

    def rebalance(self, cause: str) -> None:
        """Has every member join again: one that reads nothing has joined."""
        if self._members:
            self._prepare(cause)

    def leave(self, consumer: GroupConsumer[Assignment]) -> None:
        """LeaveGroup."""
        self._remove(consumer.name, "leave")

    def fell_silent(self, consumer: GroupConsumer[Assignment], heard_ms: int = 0) -> None:
        """The consumer sends nothing more; the coordinator expires it after its session timeout.
        `heard_ms`: age of its last commit.
        """
        member = self._members.get(consumer.name)
        if member is not None:
            member.heard_ms = max(member.heard_ms, heard_ms)
            self._engine.at(member.heard_ms + consumer.session_timeout_ms, self._expire, consumer.name)

    def _expire(self, name: str) -> None:
        member = self._members.get(name)
        if member is None:
            return
        until_ms = member.heard_ms + member.consumer.session_timeout_ms
        waits = self._phase is _Phase.PREPARING and member.joined  # a member whose join waits for other members does not expire
        if waits or until_ms > self._engine.now_ms:
            self._engine.at(max(until_ms, self._engine.now_ms + 1_000), self._expire, name)
        else:
            self._remove(name, "expiry")

    def _remove(self, name: str, cause: str) -> None:
        if self._members.pop(name, None) is None:
            return
        if not self._members:
            self._phase = _Phase.EMPTY
        elif self._phase is _Phase.PREPARING:
            self._complete_if_all_joined()
        else:
            self._prepare(cause)

    def _prepare(self, cause: str, joins: str = "") -> None:
        """Begins a rebalance. Members that wait for the last assignment join again, but for the one
        that `joins`.
        """
        waiting = self._phase is _Phase.COMPLETING
        self._phase = _Phase.PREPARING
        self._cause = cause
        for name, member in self._members.items():
            member.joined = False
            if waiting and name != joins:
                member.consumer.join_again()

    def _hold(self) -> None:
        self._hold_until_ms = self._engine.now_ms + self._protocol.initial_delay_ms
        self._engine.after(self._protocol.initial_delay_ms, self._complete_if_all_joined)

    def _complete_if_all_joined(self) -> None:
        if self._phase is not _Phase.PREPARING or self._engine.now_ms < self._hold_until_ms:
            return
        if self._members and all(member.joined for member in self._members.values()):
            self._phase = _Phase.COMPLETING
            self.generation += 1
            if self._leader not in self._members:
                self._leader = next(iter(self._members))
            self._engine.after(self._protocol.leader_ms, self._sync, self.generation)

    def _sync(self, generation: int) -> None:
        """Delivers the leader's assignment."""
        if self._phase is not _Phase.COMPLETING or generation != self.generation:
            return
        self._phase = _Phase.STABLE
        self._noted(self._cause)
        assignments = self._lead([member.subscription for member in self._members.values()], self._leader)
        for name, member in list(self._members.items()):
            member.heard_ms = self._engine.now_ms
            if member.consumer.alive:
                member.consumer.assigned(assignments[name])
            else:
                self.fell_silent(member.consumer)
