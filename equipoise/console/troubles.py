"""What is wrong with a group, worst first, in sentences: what an operator who is called at night
should look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from equipoise.console.recent import GroupRecent
from equipoise.events.tasks import TaskId, ranges
from equipoise.replay.all_clear import Grounds
from equipoise.replay.group_view import drains
from equipoise.replay.restore_progress import restores
from equipoise.replay.trouble import UNCONFIGURED, Severity, failed_text, held_up, of_topology, parked_tasks
from equipoise.replay.wording import counted, span_text
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupPhase, GroupState

ALARM, WARNING, NOTE = 3, 2, 1
_MOST_NAMED = 8
_LATE_PART = 2
"""A member is late when it was not heard of for half of its session timeout."""
_STALL_PART = 2
"""A warm-up is stuck when it got no nearer for half of the time after which it loses its slot."""
_REVOKE_PART = 4
"""A hand-over is slow after a quarter of the revocation timeout."""


@attrs.frozen
class ConsoleTrouble:
    """`level`: ALARM work stands still or the group is not led; WARNING it may soon; NOTE worth
    knowing. `task`, `member`: the first that it concerns.
    """

    level: int
    text: str
    task: TaskId | None = None
    member: str | None = None

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"level": self.level, "text": self.text, "task": None if self.task is None else str(self.task), "member": self.member}


def troubles(lead: GroupLead, recent: GroupRecent | None, grounds: Grounds) -> list[ConsoleTrouble]:
    """Returns what is wrong with a group, and what is missing to know it, worst first. `recent`
    None: what happened to it lately is not known, only its state.
    """
    if lead.halted is not None:
        return [ConsoleTrouble(ALARM, f"halted: {lead.halted}")]
    state = lead.machine.state
    found = [ConsoleTrouble(ALARM, each.text) for each in grounds.missing]
    found += [*_of_tasks(state, recent), *_of_movements(state), *_of_members(state), *_of_group(state, recent)]
    return sorted(found, key=lambda each: -each.level)


def _starting(state: GroupState, recent: GroupRecent | None) -> list[TaskId]:
    """Tasks that were granted and do not run yet."""
    if recent is not None:
        return [task for task, interval in recent.builder.not_running().items() if interval.member_id is not None]
    return sorted({task for task in state.holds if task in state.owner} | {row.task for row in restores(state) if row.stands_still})


def _of_tasks(state: GroupState, recent: GroupRecent | None) -> Iterator[ConsoleTrouble]:
    if state.phase in (GroupPhase.LEADING, GroupPhase.SHADOWING):
        nobody = [task for task in state.tasks() if task not in state.owner or state.is_away(state.owner[task])]
        if nobody:
            yield ConsoleTrouble(ALARM, f"{counted(len(nobody), 'task')} without an owner: {_named(nobody)}", nobody[0])
    starting = _starting(state, recent)
    if starting and state.phase is GroupPhase.LEADING:
        text = f"{counted(len(starting), 'task')} granted and not running yet, because the owner restores or waits: {_named(starting)}"
        yield ConsoleTrouble(ALARM, text, starting[0])
    parked = parked_tasks(state)
    if parked:
        text = failed_text(state, parked)
        yield ConsoleTrouble(ALARM, text, parked[0])
    failed = [(task, name) for name, member in sorted(state.members.items()) for task in sorted(member.failed)]
    if failed:
        task, name = failed[0]
        yield ConsoleTrouble(WARNING, f"{counted(len(failed), 'preparation')} failed, to be tried again: {task} on {name}", task, name)


def _of_movements(state: GroupState) -> Iterator[ConsoleTrouble]:
    settings = state.settings
    for name, member in sorted(state.members.items()):
        stuck = [
            task
            for task, warmup in sorted(member.warmup.items())
            if not warmup.caught_up and (state.now_ms - warmup.improved_ms) * _STALL_PART > settings.warmup_stall_ms
        ]
        if stuck:
            since_ms = state.now_ms - member.warmup[stuck[0]].improved_ms
            text = f"{counted(len(stuck), 'warm-up')} on {name} got no nearer for {span_text(since_ms)}: {_named(stuck)}"
            yield ConsoleTrouble(WARNING, text, stuck[0], name)
        slow = [
            task
            for task, (_, since_ms) in sorted(member.revoking.items())
            if (state.now_ms - since_ms) * _REVOKE_PART > settings.revocation_timeout_ms
        ]
        if slow:
            since_ms = state.now_ms - member.revoking[slow[0]][1]
            yield ConsoleTrouble(WARNING, f"{name} was told {span_text(since_ms)} ago to give up {_named(slow)}, and still holds it", slow[0], name)
    backoffs = sorted(task for (task, _), backoff in state.backoffs.items() if not backoff.over)
    if backoffs:
        yield ConsoleTrouble(WARNING, f"{counted(len(backoffs), 'warm-up')} stalled, and waits to be tried again: {_named(backoffs)}", backoffs[0])


def _of_members(state: GroupState) -> Iterator[ConsoleTrouble]:
    for name, member in sorted(state.members.items()):
        silent_ms = state.now_ms - member.last_heard_ms
        if silent_ms * _LATE_PART > member.session_timeout_ms and not state.is_away(name):
            session = span_text(member.session_timeout_ms)
            yield ConsoleTrouble(WARNING, f"{name} was not heard of for {span_text(silent_ms)}; its session ends at {session}", None, name)
        crashes = state.recent_crashes(name)
        if crashes is not None and crashes.times > 1:
            text = f"{name} crashed {counted(crashes.times, 'time')} in {span_text(state.now_ms - crashes.first_ms)}"
            yield ConsoleTrouble(WARNING, text, None, name)
        if state.is_away(name):
            left_ms = max(0, (state.restarts[name].until_ms or state.now_ms) - state.now_ms)
            yield ConsoleTrouble(NOTE, f"{name} restarts, and is expected back within {span_text(left_ms)}", None, name)
    for text, names in held_up(state).items():
        yield ConsoleTrouble(WARNING, f"{counted(len(names), 'member')} held up: {text}", None, names[0])
    for name, drain in sorted(drains(state).items()):
        late = drain.expected_ms is not None and drain.expected_ms > drain.left_ms
        yield ConsoleTrouble(WARNING if late else NOTE, f"{name} is drained: {drain.text()}", None, name)


def _of_group(state: GroupState, recent: GroupRecent | None) -> Iterator[ConsoleTrouble]:
    if state.phase not in (GroupPhase.UNCONFIGURED, GroupPhase.SHADOWING):
        for each in of_topology(state):
            yield ConsoleTrouble(ALARM if each.severity is Severity.STANDS_STILL else WARNING, each.text)
    if state.phase is GroupPhase.UNCONFIGURED:
        yield ConsoleTrouble(ALARM, UNCONFIGURED)
    elif state.phase is GroupPhase.GATHERING:
        yield ConsoleTrouble(NOTE, "it is new, and waits for more members")
    elif state.phase is GroupPhase.EMPTY and state.topologies:
        yield ConsoleTrouble(NOTE, "it has no members")
    if state.verdict is not None and state.verdict[0] == "blocked":
        yield ConsoleTrouble(WARNING, f"blocked: {counted(state.verdict[2], 'movement')} planned, none of which may begin")
    if recent is not None and recent.rejections:
        yield ConsoleTrouble(NOTE, f"{counted(recent.rejections, 'fact')} rejected, as far as this worker remembers; the decisions below say why")


def _named(tasks: Iterable[TaskId]) -> str:
    every = list(tasks)
    return ranges(every) if len(every) <= _MOST_NAMED else f"{ranges(every[:_MOST_NAMED])} and {len(every) - _MOST_NAMED:,} more"
