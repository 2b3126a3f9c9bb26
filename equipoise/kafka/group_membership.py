"""A member of a classic consumer group that shares partitions with others, and leads generations.

What follows an answer is one table (`next_step`); `GroupMembership` asks. The member keeps its
partitions while a generation is prepared: nobody else gets one before the generation has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable
from typing import Protocol

import attrs
from aiokafka import errors

from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.group_client import Generation, GroupClient

_LOG = logging.getLogger(__name__)
AGAIN_S = 0.2
"""Wait before a request that was refused or not answered is made again."""
SAID_AFTER_S = 3.0
"""A group without an answer for so long is worth a line: that of a new broker has no coordinator at
first.
"""
LEAVE_S = 1.0
"""Longest wait for the answer when the member leaves. Without it the group waits for the session."""


class MembershipPhase(enum.Enum):
    """The phases of a membership."""

    OUT = "out"
    JOINING = "joining"
    """It has asked for the next generation."""
    SYNCING = "syncing"
    """The generation has begun, and its leader assigns the partitions."""
    STABLE = "stable"
    """It has its partitions, and sends heartbeats."""


class NextStep(enum.Enum):
    """The steps that may follow an answer."""

    GO_ON = "goes on: joining, then syncing, then stable"
    JOIN = "joins the next generation"
    JOIN_AS_NEW = "joins as a new member, because the coordinator does not have it"
    AGAIN = "asks the same again"
    END = "ends, because what is wrong does not pass by itself"


NEXT = {
    MembershipPhase.OUT: MembershipPhase.JOINING,
    MembershipPhase.JOINING: MembershipPhase.SYNCING,
    MembershipPhase.SYNCING: MembershipPhase.STABLE,
    MembershipPhase.STABLE: MembershipPhase.STABLE,
}
"""The phase behind each one, when it is answered."""
_NOT_THERE = (errors.UnknownMemberIdError, errors.IllegalGenerationError)


def next_step(phase: MembershipPhase, error: Exception | None, *, is_overdue: bool = False) -> NextStep:
    """Returns what follows a request of `phase`. `error`: it was refused, or nobody has answered;
    None: it was answered. `is_overdue`: no heartbeat was answered for as long as the session lasts,
    so the group may have gone on without the member.
    """
    if error is None:
        return NextStep.GO_ON
    if isinstance(error, _NOT_THERE):
        return NextStep.JOIN_AS_NEW
    if isinstance(error, errors.RebalanceInProgressError):
        return NextStep.JOIN
    if isinstance(error, errors.KafkaError) and not error.retriable:
        return NextStep.END
    return NextStep.AGAIN if phase is MembershipPhase.STABLE and not is_overdue else NextStep.JOIN


class SharedPartitions(Protocol):
    """The partitions that the members of a group share, as one member sees them."""

    async def assign(self, generation: Generation) -> list[tuple[str, bytes]]:
        """Returns what each member of a generation gets, when this member leads it. Raises
        KafkaError.
        """
        ...

    def revoked(self) -> None:
        """A generation is prepared, in which the member may get others than now."""
        ...

    def assigned(self, generation: int, member_id: str, assignment: bytes) -> None:
        """The member has these partitions in the generation."""
        ...


@attrs.define(eq=False, kw_only=True)
class GroupMembership:
    """Keeps `client` in its group while `run` runs. `protocol`: by which partitions are assigned.
    `noted`: says that brokers do not answer, and returns whether an error means that
    (`BrokerWatch.noted`). `phase`: what it does now.
    """

    client: GroupClient
    protocol: str
    shared: SharedPartitions
    session_s: float
    heartbeat_s: float
    noted: Callable[[str, BaseException], bool] = lambda what, error: False
    phase: MembershipPhase = MembershipPhase.OUT
    _heard_s: float = 0.0
    _generation: Generation | None = None

    async def run(self) -> None:
        """Runs until it is cancelled. Raises the KafkaError that does not pass by itself."""
        now_s = asyncio.get_running_loop().time
        self._heard_s = now_s()
        self.phase = MembershipPhase.JOINING
        while True:
            error: Exception | None = None
            try:
                await self._ask()
                self._heard_s = now_s()
            except (errors.KafkaError, OSError, TimeoutError) as failed:
                error = failed
            silent_s = now_s() - self._heard_s
            is_overdue = silent_s > self.session_s
            if error is not None and silent_s > SAID_AFTER_S and not self.noted(f"group {self.client.group}", error) and is_overdue:
                _LOG.warning("group %s has not answered for %.0f s: %s %s", self.client.group, silent_s, error.__class__.__name__, error)
            if is_overdue:
                self._heard_s = now_s()
            self._take(next_step(self.phase, error, is_overdue=is_overdue), error)
            if not (error is None or isinstance(error, errors.RebalanceInProgressError)):
                await asyncio.sleep(AGAIN_S)

    async def _ask(self) -> None:
        """Makes the request of this phase. Raises KafkaError, OSError."""
        if self.phase is MembershipPhase.JOINING:
            self._generation = await self.client.join((self.protocol,))
        elif self.phase is MembershipPhase.SYNCING:
            generation = self._generation
            assert generation is not None, "it has joined one"
            leads = generation.leader == self.client.member_id
            assignment = await self.client.sync(await self.shared.assign(generation) if leads else [])
            self.shared.assigned(generation.number, self.client.member_id, assignment)
        else:
            await asyncio.sleep(self.heartbeat_s)
            await self.client.heartbeat()

    def _take(self, step: NextStep, error: Exception | None) -> None:
        if step is NextStep.END:
            assert error is not None, "an answer ends nothing"
            raise error
        if step is NextStep.GO_ON:
            self.phase = NEXT[self.phase]
        elif step is not NextStep.AGAIN:
            if step is NextStep.JOIN_AS_NEW:
                _LOG.info("group %s: %s (%s)", self.client.group, step.value, error)
                self.client.forget_id()
            if self.phase is MembershipPhase.STABLE:
                self.shared.revoked()
            self.phase = MembershipPhase.JOINING

    async def leave(self) -> None:
        """Leaves the group, if it is in it, and disconnects. `run` must have ended."""
        self.phase = MembershipPhase.OUT
        leaving = asyncio.ensure_future(self.client.leave("it ends"))
        await asyncio.wait((leaving,), timeout=LEAVE_S)
        await call_off(leaving, again_s=ENDS_S)
        with contextlib.suppress(errors.KafkaError, OSError):
            await self.client.close()
