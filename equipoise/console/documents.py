"""Groups as the console's pages show them, JSON-ready: all groups in brief, worst first; one group
with its members and tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from equipoise.console.paces import lag, rate
from equipoise.console.progress import waits
from equipoise.console.recent import GroupRecent
from equipoise.console.troubles import NOTE, WARNING, troubles
from equipoise.events.decisions import REACHED
from equipoise.events.tasks import TaskId
from equipoise.replay.all_clear import AllClear, Grounds
from equipoise.replay.drawing.colours import member_colour
from equipoise.replay.group_view import drains
from equipoise.replay.known_changes import KnownChange, compared, verdict_text
from equipoise.replay.timelines.page import MOST_ROWS
from equipoise.replay.wording import lag_form, setting_text, setting_values
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupState, MemberState

MOST_CHANGES = 10
"""Changes on a page."""


def brief(partition: int, lead: GroupLead, recent: GroupRecent | None, grounds: Grounds) -> dict[str, Any]:
    """A row of the list of groups. `recent`, `grounds`: as for `troubles`."""
    state = lead.machine.state
    found = troubles(lead, recent, grounds)
    return {
        "group": lead.name,
        "partition": partition,
        "phase": "halted" if lead.halted is not None else state.phase.value,
        "led_by": "" if state.config is None else state.config.led_by,
        "members": len(state.members),
        "tasks": len(state.tasks()),
        "moving": len(state.in_flight) + len(state.queued),
        "lag": lag(state),
        "rate": rate(state),
        "generation": state.generation,
        "offset": state.last_offset,
        "append_ms": state.last_append_ms or 0,
        "level": max((each.level for each in found), default=0),
        "troubles": [each.document() for each in found],
    }


def in_order_of_trouble(briefs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst first, then those in which something moves, then by name."""

    def key(each: dict[str, Any]) -> tuple[Any, ...]:
        wrong = [trouble for trouble in each["troubles"] if trouble["level"] >= WARNING]
        return -each["level"] if wrong else 0, -len(wrong), each["moving"] == 0, each["members"] == 0, each["group"]

    return sorted(briefs, key=key)


def changes_of(lead: GroupLead, recent: GroupRecent | None) -> list[dict[str, Any]]:
    """The last changes of a group, in order of time, each with what was expected beside what it
    was; of one that is under way, what it has cost so far.
    """
    return [] if recent is None else [_change(each, lead) for each in recent.changes.changes()]


def _change(change: KnownChange, lead: GroupLead) -> dict[str, Any]:
    state = lead.machine.state
    so_far = lead.observer.costs(state) if state.change is not None and state.change.offset == change.offset else None
    planned, judged = change.planned, change.judged
    return {
        "group": change.group,
        "offset": change.offset,
        "ms": change.append_ms,
        "judged_ms": change.judged_ms,
        "change": change.change_id or "",
        "what": change.what(),
        "why": "" if planned is None else planned.why,
        "or_undo": planned is not None and planned.or_undo,
        "verdict": verdict_text(change),
        "undone": judged is not None and judged.undone,
        "level": WARNING if change.is_bad else NOTE if judged is None or judged.outcome != "at_rest" else 0,
        "costs": compared(change, so_far),
    }


def last_changes(changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last MOST_CHANGES of these, the newest first."""
    return sorted(changes, key=lambda each: (-each["ms"], each["group"], -each["offset"]))[:MOST_CHANGES]


def group_now(partition: int, lead: GroupLead, recent: GroupRecent, grounds: Grounds) -> dict[str, Any]:
    """One group: members, tasks, what it waits for. Of more than MOST_ROWS tasks, those without a
    running owner, those that move and the first ones are in it; `tasks_left_out` counts the others.
    """
    state = lead.machine.state
    config = state.config
    drained = drains(state)
    not_running = recent.builder.not_running()
    shown = shown_tasks(state, not_running)
    index = {name: number for number, name in enumerate(state.members)}
    verdict = state.verdict
    return {
        **brief(partition, lead, recent, grounds),
        "assignor": "" if config is None else f"{config.assignor}@{config.behaviour_version}",
        "verdict": None if verdict is None or verdict[0] == REACHED else verdict[0],
        "planned": 0 if verdict is None else verdict[2],
        "imbalance": 0 if verdict is None else verdict[3],
        "settings": {} if config is None else {name: setting_text(value) for name, value in setting_values(config).items()},
        "member_rows": [
            {**_member(state, member, recent), "drain": drained[name].text() if name in drained else ""} for name, member in state.members.items()
        ],
        "task_rows": [_task(state, task, index, not_running) for task in shown],
        "copies": _copies(state, shown, index),
        "tasks_left_out": len(state.tasks()) - len(shown),
        "changes": last_changes(changes_of(lead, recent)),
        "grounds": grounds.document(),
        "calm": grounds.says(AllClear.NOTHING_WRONG),
        "still": grounds.says(AllClear.NOTHING_WAITS),
        "waits": [each.document() for each in waits(state, recent)[:MOST_ROWS]],
    }


def shown_tasks(state: GroupState, not_running: Iterable[TaskId]) -> list[TaskId]:
    """At most MOST_ROWS tasks: those in trouble or in motion first."""
    tasks = list(state.tasks())
    if len(tasks) <= MOST_ROWS:
        return tasks
    first = dict.fromkeys([*not_running, *state.in_flight, *state.queued, *tasks[:MOST_ROWS]])
    return sorted(list(first)[:MOST_ROWS])


def _member(state: GroupState, member: MemberState, recent: GroupRecent) -> dict[str, Any]:
    crashes = state.recent_crashes(member.member_id)
    restart = state.restarts.get(member.member_id)
    return {
        "member": member.member_id,
        "colour": member_colour(recent.builder.number_of(member.member_id)),
        "incarnation": member.incarnation,
        "capacity": member.capacity,
        "rack": member.rack,
        "tags": dict(member.tags),
        "state": "away"
        if state.is_away(member.member_id)
        else "restarts"
        if restart is not None and restart.begun
        else "released"
        if member.released
        else "leaving"
        if member.leaving
        else state.member_phase(member).value.lower(),
        "active": len(member.active),
        "standby": len(member.standby),
        "warmup": len(member.warmup),
        "revoking": len(member.revoking),
        "silent_ms": state.now_ms - member.last_heard_ms,
        "session_timeout_ms": member.session_timeout_ms,
        "restore_records_per_s": member.restore_records_per_s or None,
        "acceptable_lag_records": state.acceptable_lag(member),
        "assignment_epoch": member.issued_epoch,
        "applied_epoch": member.applied_epoch,
        "advertised": member.advertised,
        "crashes": 0 if crashes is None else crashes.times,
    }


def _task(state: GroupState, task: TaskId, index: dict[str, int], not_running: dict[TaskId, Any]) -> list[Any]:
    """[task, owner or -1, condition, destination or -1, movement or ""]."""
    owner = state.owner.get(task)
    movement = state.in_flight.get(task)
    destination = state.queued.get(task) if movement is None else movement.destination
    interval = not_running.get(task)
    return [
        str(task),
        -1 if owner is None else index[owner],
        "parked" if task in state.parked and state.parked[task].member_id == owner else "running" if interval is None else interval.condition.value,
        -1 if destination is None else index.get(destination, -1),
        ("waiting" if task in state.queued else "") if movement is None else movement.state.value,
    ]


def _copies(state: GroupState, shown: Iterable[TaskId], index: dict[str, int]) -> list[list[Any]]:
    """[task, member, 1 for a warm-up or 0 for a standby, lag] of every copy that somebody keeps."""
    wanted = set(shown)
    return [
        [str(task), index[name], int(task in member.warmup), lag_form(member.lags.get(task))]
        for name, member in state.members.items()
        for task in (*member.warmup, *sorted(member.standby))
        if task in wanted
    ]
