"""The canonical rule for what a solve leaves open: members in round-robin order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence

from equipoise.events.tasks import TaskId


def deal(tasks: Sequence[TaskId], places: Mapping[str, int], never: Callable[[TaskId], Container[str | None]] | None = None) -> dict[TaskId, str]:
    """The canonical rule for what a solve leaves open: tasks, in the order given, go to the members
    in round-robin order, rising, one to each that has a place left.

    So successive tasks spread over the members. A task skips members in `never` of it. Tasks
    without a member left come last: others change places for them, along a shortest augmenting
    path. Tasks for which there is none are absent.
    """
    if never is None:
        return dict(zip(tasks, _turns(places), strict=False))
    turn = deque((member, count) for member, count in sorted(places.items()) if count > 0)
    dealt: dict[TaskId, str] = {}
    stuck: list[TaskId] = []
    for task in tasks:
        shut = never(task)
        place = 0
        for member, count in turn:  # noqa: B007
            if member not in shut:
                break
            place += 1
        else:
            stuck.append(task)
            continue
        del turn[place]
        if count > 1:
            turn.append((member, count - 1))
        dealt[task] = member
    left = dict(turn)
    for task in stuck:
        _change_places(task, dealt, left, sorted(places), never)
    return dealt


def _turns(places: Mapping[str, int]) -> list[str]:
    """Members with places left, in round-robin order."""
    turns: list[str] = []
    left = [(member, count) for member, count in sorted(places.items()) if count > 0]
    rounds = 0
    while left:
        fewest = min([count for _, count in left])
        turns += [member for member, _ in left] * (fewest - rounds)
        rounds = fewest
        left = [(member, count) for member, count in left if count > rounds]
    return turns


def _change_places(
    task: TaskId, dealt: dict[TaskId, str], left: dict[str, int], members: Sequence[str], never: Callable[[TaskId], Container[str | None]]
) -> None:
    """Finds a place for `task` by moving others on, breadth first; changes nothing if there is
    none.
    """
    if not any(left.values()):
        return
    displaced: dict[str, list[TaskId]] = {}
    for dealt_task, member in dealt.items():
        displaced.setdefault(member, []).append(dealt_task)
    reached_by: dict[str, TaskId] = {}
    queue = deque([task])
    while queue:
        mover = queue.popleft()
        for member in members:
            if member in reached_by or member in never(mover):
                continue
            reached_by[member] = mover
            if left.get(member, 0) > 0:
                left[member] -= 1
                _move_on(task, member, dealt, reached_by)
                return
            queue.extend(displaced.get(member, ()))


def _move_on(task: TaskId, member: str, dealt: dict[TaskId, str], reached_by: Mapping[str, TaskId]) -> None:
    """Each task on the path takes the place it reached, the last one first."""
    mover = reached_by[member]
    while mover != task:
        before = dealt[mover]
        dealt[mover] = member
        member, mover = before, reached_by[before]
    dealt[task] = member
