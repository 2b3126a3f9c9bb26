"""What a group waits for now, and how long: warm-ups, hand-overs, tasks in the queue for a warm-up
slot, standbys, and tasks whose owner restores before it runs them.

Times follow from what the members measured: all copies that a member restores share its speed.
Where a member has measured none, they follow from its last reports of each copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from equipoise.assignors import MovementState
from equipoise.console.recent import GroupRecent
from equipoise.events.tasks import TaskId
from equipoise.replay.wording import reason_text
from equipoise.statemachine.state import GroupState, MemberState, known_lag


@attrs.frozen(kw_only=True)
class Wait:
    """Something that is under way. Times in ms, lags in records; None: unknown."""

    kind: str
    """warming, revoking, waiting (for a warm-up slot), standby, or starting."""
    task: TaskId
    source: str | None
    destination: str | None
    lag_records: int | None = None
    first_lag_records: int | None = None
    """With which it began."""
    expected_ms: int | None = None
    since_ms: int | None = None
    """Wall time at which it was decided."""
    left_ms: int | None = None
    """Until it is given up: a warm-up that gets no nearer, an owner that does not let go."""
    why: str = ""

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**attrs.asdict(self, recurse=False), "task": str(self.task)}


def waits(state: GroupState, recent: GroupRecent) -> list[Wait]:
    """Everything that is under way, what is over soonest first."""
    restoring = _restoring(state, recent)
    expected = {name: _expected(member, restoring.get(name, {}), recent) for name, member in state.members.items()}
    found = [*_movements(state, recent, expected), *_queued(state), *_others(state, recent, restoring, expected)]
    order = {"starting": 0, "revoking": 1, "warming": 2, "waiting": 3, "standby": 4}
    return sorted(found, key=lambda each: (order[each.kind], each.expected_ms is None, each.expected_ms or 0, each.task))


def _expected(member: MemberState, copies: Mapping[TaskId, int], recent: GroupRecent) -> dict[TaskId, int]:
    """By the member's own measurement, or else by what was seen of each copy."""
    found = expected_of(member, copies)
    for task, records in copies.items() if not found else ():
        speed = recent.builder.restored_records_per_s(task, member.member_id)
        if speed:
            found[task] = records * 1_000 // speed
    return found


def expected_of(member: MemberState, copies: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Task -> ms until its copy is restored. `copies`: records that each lacks. Those that a member
    restores at once share its speed; empty where that was not measured.
    """
    speed = member.restore_records_per_s
    if not speed:
        return {}
    found: dict[TaskId, int] = {}
    passed_ms = before = 0
    left = len(copies)
    for task, records in sorted(copies.items(), key=lambda pair: (pair[1], pair[0])):
        passed_ms += (records - before) * left * 1_000 // speed
        found[task] = passed_ms
        before, left = records, left - 1
    return found


def _restoring(state: GroupState, recent: GroupRecent) -> dict[str, dict[TaskId, int]]:
    """Member -> task -> records that its copy lacks until it is caught up."""
    found: dict[str, dict[TaskId, int]] = {}
    for name, member in state.members.items():
        acceptable = None
        for task in (*member.warmup, *member.standby):
            lag = known_lag(member.lags.get(task))
            if task in member.warmup or lag:
                acceptable = state.acceptable_lag(member) if acceptable is None else acceptable
                records = state.records(task) if lag is None else lag
                if records > acceptable:
                    found.setdefault(name, {})[task] = records - acceptable
    for task, interval in recent.builder.not_running().items():
        if interval.member_id in state.members:
            found.setdefault(interval.member_id, {})[task] = known_lag(state.members[interval.member_id].lags.get(task)) or 0
    return found


def _movements(state: GroupState, recent: GroupRecent, expected: Mapping[str, Mapping[TaskId, int]]) -> Iterator[Wait]:
    for task, movement in state.in_flight.items():
        source = None if movement.source is None else state.members.get(movement.source)
        destination = state.members.get(movement.destination)
        story = recent.builder.under_way(task)
        known = None if story is None else story.began_ms
        text = (
            ""
            if story is None
            else reason_text(story.reason, source=story.source, destination=story.destination, lag_records=story.steps[0].lag_records)
        )
        if movement.state is MovementState.REVOKING and source is not None and task in source.revoking:
            left_ms = max(0, source.revoking[task][1] + state.settings.revocation_timeout_ms - state.now_ms)
            yield Wait(
                kind="revoking", task=task, source=movement.source, destination=movement.destination, since_ms=known, left_ms=left_ms, why=text
            )
        elif movement.state is MovementState.WARMING and destination is not None:
            warmup = destination.warmup.get(task)
            stall_ms = None if warmup is None else max(0, warmup.improved_ms + state.settings.warmup_stall_ms - state.now_ms)
            yield Wait(
                kind="warming",
                task=task,
                source=movement.source,
                destination=movement.destination,
                lag_records=known_lag(destination.lags.get(task)),
                first_lag_records=recent.builder.first_lag(task, movement.destination),
                expected_ms=expected[movement.destination].get(task),
                since_ms=known,
                left_ms=stall_ms,
                why=text,
            )


def _queued(state: GroupState) -> Iterable[Wait]:
    return [
        Wait(kind="waiting", task=task, source=state.owner.get(task), destination=destination, why=reason_text("slot_full", destination=destination))
        for task, destination in state.queued.items()
    ]


def _others(
    state: GroupState, recent: GroupRecent, restoring: Mapping[str, Mapping[TaskId, int]], expected: Mapping[str, Mapping[TaskId, int]]
) -> Iterator[Wait]:
    moving = {(movement.destination, task) for task, movement in state.in_flight.items()}
    not_running = recent.builder.not_running()
    for name, copies in restoring.items():
        member = state.members[name]
        for task in copies:
            starting = task in not_running
            if starting or (task in member.standby and (name, task) not in moving):
                yield Wait(
                    kind="starting" if starting else "standby",
                    task=task,
                    source=None,
                    destination=name,
                    lag_records=known_lag(member.lags.get(task)),
                    first_lag_records=recent.builder.first_lag(task, name),
                    expected_ms=expected[name].get(task),
                    since_ms=not_running[task].from_ms if starting else None,
                )
