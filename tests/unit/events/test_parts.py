"""Decisions that are too large: their parts fit and join to the decision; a decision that fits is
unchanged.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events import codec
from equipoise.events.decisions import (
    MOST_MOVES,
    AssignmentIssued,
    AssignmentProposed,
    AssignmentProposedPart,
    Decision,
    MemberAssigned,
    MemberAssignedPart,
    Move,
    ProposedMember,
    RoundPlanned,
)
from equipoise.events.errors import FieldError
from equipoise.events.fields import MOST_TASK_NUMBER
from equipoise.events.parts import split, whole
from equipoise.events.tasks import TaskId
from tests.strategies import any_decision, instances

LONGEST = "\U0001f600" * 1_000
"""4,000 bytes, which no name exceeds."""
DENSE = tuple(TaskId(0, partition) for partition in range(100_000))
SPARSE = tuple(TaskId(MOST_TASK_NUMBER - 100_000 + index, MOST_TASK_NUMBER) for index in range(100_000))


def moves(count: int, name: str) -> tuple[Move, ...]:
    return tuple(Move(task=task, source=name, destination=name, state="revoking", reason="balance") for task in DENSE[:count])


def issued(**fields: Any) -> AssignmentIssued:
    return AssignmentIssued(generation=2**40, cause="join", **{"members": ("m1",), "probing": True, **fields})


def together(parts: list[Decision]) -> list[Decision]:
    """Joins the parts, those of AssignmentIssued too."""
    rounds = [each for each in parts if isinstance(each, AssignmentIssued)]
    if not rounds:
        return list(whole(parts))
    assert [(each.part, each.parts) for each in rounds] == [(number, len(rounds)) for number in range(1, len(rounds) + 1)]
    members, moves = (tuple(item for each in rounds for item in getattr(each, name)) for name in ("members", "moves"))
    return [attrs.evolve(rounds[0], members=members, moves=moves, part=1, parts=1)]


@given(any_decision(), st.integers(0, 2_000))
def test_split_decision_that_fits_is_itself(decision: Decision, room: int) -> None:
    assert split(decision, codec.size_bytes(decision) + room) == [decision]


@given(instances(MemberAssigned), st.integers(200, 400))
def test_split_assignment_parts_join_to_it(assigned: MemberAssigned, most_bytes: int) -> None:
    parts = split(assigned, most_bytes)
    assert list(whole(parts)) == [assigned]
    assert all(codec.size_bytes(part) <= most_bytes for part in parts)


@given(instances(AssignmentProposed), st.integers(200, 400))
def test_split_proposal_parts_join_to_it(proposed: AssignmentProposed, most_bytes: int) -> None:
    by_name = {member.member_id: member for member in proposed.members}
    proposed = attrs.evolve(proposed, members=tuple(by_name.values()))
    assert list(whole(split(proposed, most_bytes))) == [proposed]


@given(instances(RoundPlanned), st.integers(200, 400))
def test_split_planned_round_parts_join_to_it(planned: RoundPlanned, most_bytes: int) -> None:
    by_name = {member.member_id: member for member in planned.members}
    planned = attrs.evolve(planned, members=tuple(by_name.values()), part=1, parts=1)
    parts = split(planned, most_bytes)
    assert [(part.part, part.parts) for part in parts if isinstance(part, RoundPlanned)] == [(n, len(parts)) for n in range(1, len(parts) + 1)]
    assert list(whole(parts)) == [planned]


def test_split_planned_round_that_is_large_fits_in_its_parts() -> None:
    members = tuple(ProposedMember(member_id=f"m{number}", active=DENSE[number * 100 : number * 100 + 100]) for number in range(20))
    planned = RoundPlanned(round_id="r" * 200, generation=1, members=members, moves=moves(500, "m1"), probing=True, follow_up_ms=5_000)
    parts = split(planned, 4_000)
    assert len(parts) > 3
    assert all(codec.size_bytes(part) <= 4_000 for part in parts)
    assert list(whole(parts)) == [planned]


@pytest.mark.slow
@pytest.mark.parametrize(
    "decision",
    [
        MemberAssigned(
            member_id=LONGEST,
            incarnation=1,
            assignment_epoch=1,
            active=SPARSE,
            standby=SPARSE,
            warmup=SPARSE,
            revoke=SPARSE,
            tokens=tuple(2**63 - 1 - index for index in range(len(SPARSE))),
            hold_ms={task: 2**63 - 1 - index for index, task in enumerate(SPARSE)},
        ),
        AssignmentProposed(
            generation=1,
            members=(
                ProposedMember(member_id=LONGEST, active=SPARSE, standby=SPARSE),
                *(ProposedMember(member_id=f"{LONGEST[:990]}{number}", active=SPARSE[:1]) for number in range(500)),
            ),
            moves=moves(10_000, "m" * 500),
            probing=False,
        ),
        issued(members=tuple(f"{LONGEST[:990]}{number:05}" for number in range(500)), moves=moves(3_000, LONGEST)),
    ],
    ids=["MemberAssigned", "AssignmentProposed", "AssignmentIssued"],
)
def test_split_any_decision_gives_parts_that_fit(decision: Decision) -> None:
    parts = split(decision)
    assert len(parts) > 1
    assert max(map(codec.size_bytes, parts)) <= codec.MOST_EVENT_BYTES
    assert together(parts) == [decision]
    assert [codec.decode(*codec.encode(part)) for part in parts] == parts


def test_split_assignment_of_100000_tasks_is_one_event() -> None:
    holds = dict.fromkeys(DENSE, 30_000)
    assigned = MemberAssigned(
        member_id="m1", incarnation=1, assignment_epoch=1, active=DENSE, tokens=tuple(range(1, 100_001)), revoke=DENSE, hold_ms=holds
    )
    assert split(assigned) == [assigned]


def test_split_round_of_short_names_at_8000_moves() -> None:
    parts = split(issued(moves=moves(2 * MOST_MOVES + 1, "member-000001")))
    assert [(len(each.moves), each.members) for each in parts if isinstance(each, AssignmentIssued)] == [(8_000, ("m1",)), (8_000, ()), (1, ())]


def test_split_round_of_long_names_fits() -> None:
    parts = split(issued(moves=moves(9_000, "a" * 120)))
    assert max(map(codec.size_bytes, parts)) <= codec.MOST_EVENT_BYTES
    assert len(parts) == 3


def test_part_invalid_number_or_member_raises() -> None:
    assigned = MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1)
    with pytest.raises(FieldError, match=r"MemberAssignedPart\.part: 3 is over the number of parts, 2"):
        MemberAssignedPart(member_id="m1", incarnation=1, part=3, parts=2, assigned=assigned)
    with pytest.raises(FieldError, match=r"MemberAssignedPart\.assigned: is for another incarnation than its part says"):
        MemberAssignedPart(member_id="m1", incarnation=2, part=1, parts=2, assigned=assigned)
    proposed = AssignmentProposed(generation=1, members=(), probing=False)
    with pytest.raises(FieldError, match=r"AssignmentProposedPart\.part: 4 is over the number of parts, 2"):
        AssignmentProposedPart(part=4, parts=2, proposed=proposed)


def test_parts_without_the_last_give_nothing() -> None:
    assigned = MemberAssigned(member_id="m1", incarnation=1, assignment_epoch=1, active=SPARSE, tokens=(1,) * len(SPARSE))
    parts = split(assigned)
    assert list(whole(parts[:-1])) == []
    assert list(whole([*parts, *parts])) == [assigned, assigned]
