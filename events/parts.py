"""Splits decisions that are too large for a log into parts that fit, and joins them again
(docs/protocol.md#l8).

The parts depend on the decision alone, so a recomputed decision has the same parts. A decision that
fits is never split. Sizes are upper bounds in bytes of the payload, and cost no encoding unless a
decision is near the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.codec import MOST_EVENT_BYTES
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
from equipoise.events.tasks import TaskId

HEAD_BYTES = 100
"""Upper bound for the fixed fields of a decision, without its texts, and the headers of its arrays.
"""
_MOVE_BYTES = 50
"""Upper bound for a move without its texts: task, state, lag, headers."""
TASK_BYTES = 16
"""Upper bound for a task of a set: a sub-topology (11) and a step (5)."""
_TOKEN_BYTES = 9
HOLD_BYTES = TASK_BYTES + 15
"""Upper bound for a task with a hold of its own: the number and headers in addition."""
_COPIES = ("standby", "warmup", "revoke")
_MEMBER_TASKS_MOST = 10_000
"""Most tasks of one member in one piece of a proposal that is split."""


def split(decision: Decision, most_bytes: int = MOST_EVENT_BYTES) -> list[Decision]:
    """Returns the decision alone if its payload has at most `most_bytes`, else its parts in the
    order to publish them.

    AssignmentIssued always comes in parts of MOST_MOVES moves. A single item is never split: a part
    with one item may be larger than a very small `most_bytes`, but not than MOST_EVENT_BYTES. Other
    kinds are bounded by the limits of their texts and returned unchanged.
    """
    if isinstance(decision, AssignmentIssued):
        return list(_split_issued(decision, most_bytes))
    if isinstance(decision, MemberAssigned):
        return list(_split_assigned(decision, most_bytes))
    if isinstance(decision, AssignmentProposed):
        return list(_split_proposed(decision, most_bytes))
    if isinstance(decision, RoundPlanned):
        return list(_split_round(decision, most_bytes))
    return [decision]


def whole(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yields the decisions with every MemberAssigned, AssignmentProposed and RoundPlanned joined.
    AssignmentIssued stays in parts.

    The parts of a decision are consecutive. Parts without their last one at the end are left out.
    """
    parts: list[MemberAssignedPart] = []
    proposed: list[AssignmentProposedPart] = []
    planned: list[RoundPlanned] = []
    for decision in decisions:
        if isinstance(decision, MemberAssignedPart):
            parts.append(decision)
            if decision.part == decision.parts:
                yield join_assigned(parts)
                parts = []
        elif isinstance(decision, AssignmentProposedPart):
            proposed.append(decision)
            if decision.part == decision.parts:
                yield _join_proposed(proposed)
                proposed = []
        elif isinstance(decision, RoundPlanned):
            planned.append(decision)
            if decision.part == decision.parts:
                yield join_round(planned)
                planned = []
        else:
            yield decision


def text_bytes(text: str | None) -> int:
    """Upper bound for a text with its header."""
    return 5 if text is None else 5 + (len(text) if text.isascii() else len(text.encode()))


def _longest(texts: Iterable[str | None]) -> int:
    return max(map(text_bytes, set(texts)), default=0)


def weighed_runs(weights: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of runs that weigh at most `most` each. A heavier item has a run of its
    own. Yields at least one run.
    """
    begin = total = 0
    for at, weight in enumerate(weights):
        if total + weight > most and at > begin:
            yield begin, at
            begin, total = at, 0
        total += weight
    yield begin, len(weights)


# --------------------------------------------------------------------------------- AssignmentIssued


def _split_issued(issued: AssignmentIssued, most_bytes: int) -> Iterator[AssignmentIssued]:
    members, moves = issued.members, issued.moves
    cuts = [(() if at else members, moves[at : at + MOST_MOVES]) for at in range(0, max(1, len(moves)), MOST_MOVES)]
    head = HEAD_BYTES + text_bytes(issued.cause)
    names = _longest(name for move in moves for name in (move.source, move.destination))
    move_bytes = _MOVE_BYTES + 2 * names + _longest(move.reason for move in moves)
    in_first = len(members) * _longest(members)
    if head + in_first + min(len(moves), MOST_MOVES) * move_bytes > most_bytes:
        if all(codec.size_bytes(part) <= most_bytes for part in _issued(issued, cuts)):
            yield from _issued(issued, cuts)
            return
        count = len(members)
        weights = [*map(text_bytes, members), *map(_move_bytes, moves)]
        runs = weighed_runs(weights, most_bytes - head)
        cuts = [(members[begin:end], moves[max(0, begin - count) : max(0, end - count)]) for begin, end in runs]
    yield from _issued(issued, cuts)


def _issued(issued: AssignmentIssued, cuts: Sequence[tuple[tuple[str, ...], tuple[Move, ...]]]) -> Iterator[AssignmentIssued]:
    if len(cuts) == 1:
        yield issued
        return
    for part, (members, moves) in enumerate(cuts, 1):
        yield attrs.evolve(issued, members=members, moves=moves, part=part, parts=len(cuts))


def _move_bytes(move: Move) -> int:
    return _MOVE_BYTES + text_bytes(move.source) + text_bytes(move.destination) + text_bytes(move.reason)


# ----------------------------------------------------------------------------------- MemberAssigned


def _split_assigned(assigned: MemberAssigned, most_bytes: int) -> Iterator[MemberAssigned | MemberAssignedPart]:
    head = HEAD_BYTES + 2 * text_bytes(assigned.member_id)
    active_bytes = TASK_BYTES + _TOKEN_BYTES
    copies = sum(len(getattr(assigned, name)) for name in _COPIES)
    most = head + len(assigned.active) * active_bytes + len(assigned.hold_ms) * HOLD_BYTES + copies * TASK_BYTES
    if most <= most_bytes or codec.size_bytes(assigned) <= most_bytes:
        yield assigned
        return
    held = assigned.hold_ms
    weights = [active_bytes + (HOLD_BYTES if task in held else 0) for task in assigned.active] + [TASK_BYTES] * copies
    runs = list(weighed_runs(weights, most_bytes - head))
    if len(runs) == 1:
        yield assigned
        return
    for part, (begin, end) in enumerate(runs, 1):
        active = assigned.active[begin:end]
        at = len(assigned.active)
        lists: dict[str, Any] = {}
        for name in _COPIES:
            tasks: tuple[TaskId, ...] = getattr(assigned, name)
            lists[name] = tasks[max(0, begin - at) : max(0, end - at)]
            at += len(tasks)
        piece = attrs.evolve(
            assigned, active=active, tokens=assigned.tokens[begin:end], hold_ms={task: held[task] for task in active if task in held}, **lists
        )
        yield MemberAssignedPart(member_id=assigned.member_id, incarnation=assigned.incarnation, part=part, parts=len(runs), assigned=piece)


def join_assigned(parts: Sequence[MemberAssignedPart]) -> MemberAssigned:
    """Joins all parts of an assignment, in order."""
    pieces = [part.assigned for part in parts]
    lists: dict[str, Any] = {name: tuple(task for piece in pieces for task in getattr(piece, name)) for name in ("active", "tokens", *_COPIES)}
    return attrs.evolve(pieces[0], hold_ms={task: hold_ms for piece in pieces for task, hold_ms in piece.hold_ms.items()}, **lists)


# ----------------------------------------------------------------- AssignmentProposed, RoundPlanned

_LISTS = ("active", "standby", "warmup")


def _split_proposed(proposed: AssignmentProposed, most_bytes: int) -> Iterator[AssignmentProposed | AssignmentProposedPart]:
    cuts = list(_cuts(proposed, most_bytes, HEAD_BYTES))
    if len(cuts) == 1:
        yield proposed
        return
    for part, (members, moves) in enumerate(cuts, 1):
        yield AssignmentProposedPart(part=part, parts=len(cuts), proposed=attrs.evolve(proposed, members=members, moves=moves))


def _split_round(planned: RoundPlanned, most_bytes: int) -> Iterator[RoundPlanned]:
    cuts = list(_cuts(planned, most_bytes, HEAD_BYTES + text_bytes(planned.round_id)))
    if len(cuts) == 1:
        yield planned
        return
    for part, (members, moves) in enumerate(cuts, 1):
        yield attrs.evolve(planned, members=members, moves=moves, part=part, parts=len(cuts))


def _cuts(
    whole: AssignmentProposed | RoundPlanned, most_bytes: int, head_bytes: int
) -> Iterator[tuple[tuple[ProposedMember, ...], tuple[Move, ...]]]:
    """The members and moves of each part; of one part when the whole fits. `head_bytes`: most bytes
    of all else in a part.
    """
    if _proposed_bytes(whole, head_bytes) <= most_bytes or codec.size_bytes(whole) <= most_bytes:
        yield whole.members, whole.moves
        return
    most_tasks = max(1, min(_MEMBER_TASKS_MOST, most_bytes // 4 // TASK_BYTES))
    members = [piece for member in whole.members for piece in _pieces(member, most_tasks)]
    weights = [*map(_member_bytes, members), *map(_move_bytes, whole.moves)]
    count = len(members)
    for begin, end in weighed_runs(weights, most_bytes - head_bytes):
        yield tuple(members[begin:end]), whole.moves[max(0, begin - count) : max(0, end - count)]


def _proposed_bytes(proposed: AssignmentProposed | RoundPlanned, head_bytes: int) -> int:
    moves = proposed.moves
    names = _longest(name for move in moves for name in (move.source, move.destination))
    return head_bytes + sum(map(_member_bytes, proposed.members)) + len(moves) * (_MOVE_BYTES + 2 * names + _longest(move.reason for move in moves))


def _member_bytes(member: ProposedMember) -> int:
    return HEAD_BYTES + text_bytes(member.member_id) + TASK_BYTES * sum(len(getattr(member, name)) for name in _LISTS)


def _pieces(member: ProposedMember, most_tasks: int) -> Iterator[ProposedMember]:
    """The member in several pieces, each with at most `most_tasks` tasks in each list."""
    count = max(len(getattr(member, name)) for name in _LISTS)
    for at in range(0, max(1, count), most_tasks):
        yield attrs.evolve(member, **{name: getattr(member, name)[at : at + most_tasks] for name in _LISTS})


def _join_proposed(parts: Sequence[AssignmentProposedPart]) -> AssignmentProposed:
    members, moves = _joined([part.proposed for part in parts])
    return attrs.evolve(parts[0].proposed, members=members, moves=moves)


def join_round(parts: Sequence[RoundPlanned]) -> RoundPlanned:
    """Joins all parts of a planned round, in order."""
    members, moves = _joined(parts)
    return attrs.evolve(parts[0], members=members, moves=moves, part=1, parts=1)


def _joined(parts: Sequence[AssignmentProposed] | Sequence[RoundPlanned]) -> tuple[tuple[ProposedMember, ...], tuple[Move, ...]]:
    pieces: dict[str, list[ProposedMember]] = {}
    for part in parts:
        for piece in part.members:
            pieces.setdefault(piece.member_id, []).append(piece)
    members = tuple(
        ProposedMember(member_id=name, **{list_: tuple(task for piece in of for task in getattr(piece, list_)) for list_ in _LISTS})
        for name, of in pieces.items()
    )
    return members, tuple(move for part in parts for move in part.moves)
