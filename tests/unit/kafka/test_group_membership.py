"""The table of a membership: what follows each answer, in each phase."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import errors

from equipoise.kafka.group_client import Generation
from equipoise.kafka.group_membership import NEXT, GroupMembership, MembershipPhase, NextStep, next_step

JOINING, SYNCING, STABLE = MembershipPhase.JOINING, MembershipPhase.SYNCING, MembershipPhase.STABLE
PHASES = pytest.mark.parametrize("phase", [JOINING, SYNCING, STABLE])


@PHASES
@pytest.mark.parametrize(
    ("error", "step"),
    [
        (None, NextStep.GO_ON),
        (errors.UnknownMemberIdError(), NextStep.JOIN_AS_NEW),
        (errors.IllegalGenerationError(), NextStep.JOIN_AS_NEW),
        (errors.RebalanceInProgressError(), NextStep.JOIN),
        (errors.GroupAuthorizationFailedError(), NextStep.END),
        (errors.InconsistentGroupProtocolError(), NextStep.END),
        (errors.InvalidSessionTimeoutError(), NextStep.END),
    ],
    ids=lambda each: each.value if isinstance(each, NextStep) else type(each).__name__,
)
def test_answer_leads_to_the_same_step_in_each_phase(phase: MembershipPhase, error: Exception | None, step: NextStep) -> None:
    assert next_step(phase, error) is step


@pytest.mark.parametrize(
    "error", [errors.NotCoordinatorForGroupError(), errors.KafkaConnectionError(), errors.RequestTimedOutError(), OSError(), TimeoutError()]
)
@pytest.mark.parametrize(
    ("phase", "is_overdue", "step"),
    [
        (JOINING, False, NextStep.JOIN),
        (SYNCING, False, NextStep.JOIN),
        (STABLE, False, NextStep.AGAIN),
        (STABLE, True, NextStep.JOIN),
    ],
)
def test_member_without_an_answer_stays_in_its_generation_for_a_session(
    error: Exception, phase: MembershipPhase, is_overdue: bool, step: NextStep
) -> None:
    assert next_step(phase, error, is_overdue=is_overdue) is step


def test_each_phase_has_a_next_one() -> None:
    assert NEXT.keys() == set(MembershipPhase)


class Coordinator:
    """Answers in the order of `answers`: an exception is raised. Then no answer comes."""

    group, member_id, generation = "g", "m1", 7

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.is_answered = asyncio.Event()

    async def _answer(self, request: str) -> Any:
        if not self._answers:
            self.is_answered.set()
            await asyncio.Event().wait()
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def join(self, protocols: tuple[str, ...]) -> Any:
        return await self._answer("join")

    async def sync(self, assignments: Any) -> Any:
        return await self._answer(f"sync {assignments}")

    async def heartbeat(self) -> Any:
        return await self._answer("heartbeat")

    def forget_id(self) -> None:
        self.asked.append("forget")


class Shared:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def assign(self, generation: Generation) -> list[tuple[str, bytes]]:
        return [("m1", b"all")]

    def revoked(self) -> None:
        self.heard.append("revoked")

    def assigned(self, generation: int, member_id: str, assignment: bytes) -> None:
        self.heard.append((generation, assignment))


def generation(number: int, leader: str) -> Generation:
    return Generation(number=number, protocol="p", leader=leader, members=())


async def played(*answers: Any) -> tuple[list[str], list[Any], MembershipPhase]:
    client: Any = Coordinator(*answers)
    shared = Shared()
    membership = GroupMembership(client=client, protocol="p", shared=shared, session_s=30.0, heartbeat_s=0.001)
    running = asyncio.ensure_future(membership.run())
    await asyncio.wait((running, asyncio.ensure_future(client.is_answered.wait())), timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    running.cancel()
    return client.asked, shared.heard, membership.phase


async def test_leader_assigns_and_keeps_its_partitions_until_the_next_generation_begins() -> None:
    asked, heard, phase = await played(generation(1, "m1"), b"mine", None, errors.RebalanceInProgressError(), generation(2, "m2"), b"less", None)
    assert asked == ["join", "sync [('m1', b'all')]", "heartbeat", "heartbeat", "join", "sync []", "heartbeat"]
    assert heard == [(1, b"mine"), "revoked", (2, b"less")]
    assert phase is STABLE


async def test_member_that_the_coordinator_has_lost_joins_as_a_new_one() -> None:
    asked, heard, _ = await played(generation(1, "m2"), b"mine", errors.UnknownMemberIdError(), generation(2, "m2"), b"mine")
    assert asked == ["join", "sync []", "heartbeat", "forget", "join", "sync []"]
    assert heard == [(1, b"mine"), "revoked", (2, b"mine")]


async def test_generation_that_ends_before_it_is_assigned_revokes_nothing() -> None:
    asked, heard, _ = await played(generation(1, "m2"), errors.RebalanceInProgressError(), generation(2, "m2"), b"mine")
    assert asked == ["join", "sync []", "join", "sync []"]
    assert heard == [(2, b"mine")]


async def test_coordinator_that_is_away_for_a_moment_costs_no_generation() -> None:
    asked, heard, _ = await played(generation(1, "m2"), b"mine", errors.KafkaConnectionError(), None, errors.NotCoordinatorForGroupError(), None)
    assert asked == ["join", "sync []", *["heartbeat"] * 4]
    assert heard == [(1, b"mine")]


async def test_error_that_does_not_pass_ends_the_membership() -> None:
    with pytest.raises(errors.GroupAuthorizationFailedError):
        await played(errors.GroupAuthorizationFailedError("g"))
