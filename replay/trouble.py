"""What is wrong with a group now, in sentences, the worst first. Groups are sorted by it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.events.tasks import TaskId, ranges
from equipoise.replay.restore_progress import RestoreRow, restores
from equipoise.replay.wording import counted, span_text
from equipoise.statemachine.rejections import REJECTIONS
from equipoise.statemachine.state import GroupPhase, GroupState

MOST_NAMED = 3
"""Members named in one sentence; the others are counted."""


UNCONFIGURED = (
    "the group has no configuration, so nobody decides: start a member, which brings one, or "
    "`equipoise configure --group GROUP --assignor high_availability`"
)
"""A group before its first configuration, or whose log has lost it."""
MOST_TASKS_CHARS = 40
"""Longest list of tasks in one sentence."""


class Severity(enum.IntEnum):
    """How bad a trouble is; the worst is the smallest."""

    HALTED = 0
    """Nothing is decided."""
    STANDS_STILL = 1
    """Records of some tasks are not processed."""
    THREATENS = 2
    """Tasks may stand still soon."""
    MOVES = 3
    """Work in progress, which ends by itself."""
    NONE = 4


@attrs.frozen
class Trouble:
    """One thing that is wrong, as a sentence without a full stop. `tasks`: how many it is about; 0:
    it is about members or the group.
    """

    severity: Severity
    text: str
    tasks: int = 0


def troubles(state: GroupState, halted: str | None = None) -> list[Trouble]:
    """Returns what is wrong, the worst first; empty: nothing is, and nothing moves. `halted`: why
    the group is halted.
    """
    if halted is not None:
        return [Trouble(Severity.HALTED, halted)]  # perhaps half-way through a step: its state says nothing
    if state.phase is GroupPhase.UNCONFIGURED:
        return [Trouble(Severity.HALTED, UNCONFIGURED)]
    if state.phase is GroupPhase.SHADOWING:
        return []
    found = [*standing_still(state), *of_topology(state), *_threats(state), *_moves(state)]
    return sorted(found, key=lambda each: each.severity)


def unread(state: GroupState, ends: Mapping[str, Iterable[int]]) -> Iterator[Trouble]:
    """Source topics with partitions that no task reads. `ends`: topic -> its partitions."""
    for topic, count in unread_partitions(state, ends).items():
        are = "is" if count == 1 else "are"
        text = f"{counted(count, 'partition')} of {topic} {are} read by nobody: deploy with a higher topology_epoch"
        yield Trouble(Severity.STANDS_STILL, text, count)


def unread_partitions(state: GroupState, ends: Mapping[str, Iterable[int]]) -> dict[str, int]:
    """Source topic of the newest topology -> how many of its partitions no task reads; topics
    without any are left out. `ends`: topic -> its partitions.
    """
    read: dict[str, int] = {}
    for part in () if state.topology is None else state.topology.subtopologies:
        for topic in part.source_topics:
            read[topic] = max(read.get(topic, 0), part.partitions)
    unread = {topic: sum(partition >= tasks for partition in ends.get(topic, ())) for topic, tasks in sorted(read.items())}
    return {topic: count for topic, count in unread.items() if count}


def of_topology(state: GroupState) -> Iterator[Trouble]:
    """Yields what is wrong because members, topics and the topology do not fit each other."""
    yield from unread(state, state.end_offsets)
    yield from misfits(state)


def misfits(state: GroupState) -> Iterator[Trouble]:
    """Members that may not join, or can run nothing, because of their topology."""
    for name, refused in sorted(state.recently_refused().items()):
        template = REJECTIONS.get(refused.code)
        why = refused.code if template is None else template.format(*refused.numbers)
        yield Trouble(Severity.THREATENS, f"{name} may not join, because it runs another topology: {why}")
    idle = sorted(name for name, member in state.members.items() if state.topology is not None and state.runnable(member) == {})
    if idle:
        text = f"{first_names_text(idle)} can run no task, because of an old topology_epoch: deploy the newest build there"
        yield Trouble(Severity.THREATENS, text)


def wrong(state: GroupState, halted: str | None = None) -> list[str]:
    """The sentences of `troubles` but those about work in progress."""
    return [each.text for each in troubles(state, halted) if each.severity < Severity.MOVES]


def parked_text(state: GroupState, task: TaskId) -> str:
    """Returns `` at orders/3 offset 17, 4,210 records behind: ValueError``, to follow the name of a
    task that is in `GroupState.parked`; without the record if it failed at none.
    """
    parked, behind = state.parked[task], state.behind.get(task, 0)
    place = f" at {parked.topic}/{parked.partition} offset {parked.offset}" if parked.topic else ""
    waits = f", {counted(behind, 'record')} behind" if behind else ""
    return f"{place}{waits}: {parked.error:.200}"


def failed_text(state: GroupState, tasks: Sequence[TaskId]) -> str:
    """Returns which tasks have failed, and how the first of them."""
    first = f"; {tasks[0]}" if len(tasks) > 1 else ""
    return f"{counted(len(tasks), 'task')} failed ({_tasks(tasks)}){first}{parked_text(state, tasks[0])}"


def parked_tasks(state: GroupState) -> list[TaskId]:
    """Returns the tasks whose owner handles nothing more in them."""
    return sorted(task for task, each in state.parked.items() if each.member_id == state.owner.get(task))


def held_up(state: GroupState) -> dict[str, list[str]]:
    """Returns what holds up members from outside -> those members."""
    found: dict[str, list[str]] = {}
    for name, member in sorted(state.members.items()):
        for text in member.troubles:
            found.setdefault(text, []).append(name)
    return found


def standing_still(state: GroupState) -> Iterable[Trouble]:
    """Yields tasks whose records are not processed, and why."""
    if not state.members:
        if tasks := state.tasks():
            yield Trouble(Severity.STANDS_STILL, f"no member; {counted(len(tasks), 'task')} without an owner", len(tasks))
        return
    lost = [task for task in state.tasks() if task not in state.owner]
    if lost:
        waits = [lost.until_ms - state.now_ms for lost in state.lost.values() if lost.until_ms is not None]
        until = f", on purpose, for {span_text(max(0, *waits, 0))} at most" if waits else ""
        yield Trouble(Severity.STANDS_STILL, f"{counted(len(lost), 'task')} without an owner ({_tasks(lost)}){until}", len(lost))
    parked = parked_tasks(state)
    if parked:
        yield Trouble(Severity.STANDS_STILL, failed_text(state, parked), len(parked))
    restoring = [row for row in restores(state) if row.stands_still]
    if restoring:
        yield Trouble(Severity.STANDS_STILL, _restoring_text("restores before it runs", "restore before they run", restoring), len(restoring))
    held = sorted(task for task in state.holds if task in state.owner)
    if held:
        yield Trouble(Severity.STANDS_STILL, f"{counted(len(held), 'task')} wait for a former owner that may still run ({_tasks(held)})", len(held))
    away = sorted(name for name in state.restarts if state.is_away(name))
    for name in away[:MOST_NAMED]:
        waiting = sum(owner == name for owner in state.owner.values())
        if waiting:
            until_ms = state.restarts[name].until_ms
            left = "" if until_ms is None else f", expected within {span_text(max(0, until_ms - state.now_ms))}"
            yield Trouble(Severity.STANDS_STILL, f"{name} restarts{left}; {counted(waiting, 'task')} wait for it", waiting)


def _threats(state: GroupState) -> Iterable[Trouble]:
    silent = [
        (state.now_ms - member.last_heard_ms, member.member_id)
        for member in state.members.values()
        if not state.is_away(member.member_id) and state.now_ms - member.last_heard_ms > member.session_timeout_ms - member.lease_margin_ms
    ]
    for silent_ms, name in sorted(silent, reverse=True)[:MOST_NAMED]:
        yield Trouble(Severity.THREATENS, f"{name} is silent for {span_text(silent_ms)}: its lease is over")
    looping = sorted(name for name in state.members if state.is_crash_looping(name))
    if looping:
        yield Trouble(Severity.THREATENS, f"{first_names_text(looping)} crashed repeatedly")
    for text, names in list(held_up(state).items())[:MOST_NAMED]:
        yield Trouble(Severity.THREATENS, f"{first_names_text(names)}: {text}")
    if state.verdict is not None and state.verdict[0] == "blocked" and not state.in_flight:
        yield Trouble(Severity.THREATENS, f"out of balance by {counted(state.verdict[3], 'task')}, and nothing may move now")


def _moves(state: GroupState) -> Iterable[Trouble]:
    warming = [row for row in restores(state) if not row.stands_still]
    if warming:
        yield Trouble(Severity.MOVES, _restoring_text("warms up", "warm up", warming), len(warming))
    revoking = sorted({task for member in state.members.values() for task in member.revoking})
    if revoking:
        yield Trouble(Severity.MOVES, f"{counted(len(revoking), 'task')} handed over ({_tasks(revoking)})", len(revoking))
    if state.waiting:
        yield Trouble(Severity.MOVES, f"{counted(state.waiting, 'movement')} wait for a warm-up slot", state.waiting)
    leaving = sorted(name for name, member in state.members.items() if member.leaving)
    if leaving:
        yield Trouble(Severity.MOVES, f"{first_names_text(leaving)} {'leaves' if len(leaving) == 1 else 'leave'}")


def _restoring_text(verb: str, verbs: str, rows: Sequence[RestoreRow]) -> str:
    tasks: list[TaskId] = sorted({row.task for row in rows})
    known = [row.expected_ms for row in rows if row.expected_ms is not None]
    about = f", about {span_text(max(known))} to go" if len(known) == len(rows) else ""
    return f"{counted(len(tasks), 'task')} {verb if len(tasks) == 1 else verbs} ({_tasks(tasks)}){about}"


def _tasks(tasks: Iterable[TaskId]) -> str:
    text = ranges(tasks)
    return text if len(text) <= MOST_TASKS_CHARS else f"{text[:MOST_TASKS_CHARS].rpartition(', ')[0]}, ..."


def first_names_text(names: Sequence[str]) -> str:
    """Returns the first members of a list, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
