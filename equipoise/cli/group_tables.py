"""The state of a group as tables with every column, for `equipoise status --all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from equipoise.cli.screen import Line, Part, Styled, Table, bold
from equipoise.cli.visible import shortened
from equipoise.events.tasks import TaskId
from equipoise.replay.wording import counted, day_text, lag_text, preparing_text, span_text, under_way_text

if TYPE_CHECKING:
    from equipoise.replay.group_view import CopyRow, GroupMemberRow, GroupView, ParkedRow, PreparingRow, TaskRow

_LEARNED = ", being learned"
_MOST_NAMED = 12
"""Tasks named in one cell; the rest is counted. `--json` has all."""


def view_parts(view: GroupView) -> list[Part]:
    """The state as text and tables."""
    parts: list[Part] = [*group_lines(view)]
    parts += ["", members_table(view), "", tasks_table(view.tasks, {each.member_id for each in view.members if each.back_ms is not None})]
    return parts


def group_lines(view: GroupView) -> Iterable[str | Line]:
    name = bold(shortened(view.group) or "(no group)")
    asked = "equipoise decides, and the group carries it out"
    leader = f"led by {view.led_by}" if view.led_by != "external" else "led by its own leader" if view.verdict is None else asked
    at = f"offset {view.offset}, {day_text(view.append_ms)}, generation {view.generation}"
    yield Line(name, f"  {at}, {counted(view.decisions, 'decision')}")
    deadline = "no timer runs" if view.next_deadline_ms is None else f"next deadline in {span_text(max(0, view.next_deadline_ms - view.now_ms))}"
    yield f"  {view.phase}, {leader}, assignor {view.assignor or 'none'}; group time {span_text(view.now_ms)}, {deadline}"
    if view.next_probing_ms is not None:
        before = "" if view.probed_ms is None else f"the balance was evaluated {span_text(view.now_ms - view.probed_ms)} ago, and is "
        again = f"{before or 'the balance is '}evaluated again in {span_text(max(0, view.next_probing_ms - view.now_ms))}"
        yield f"  {again}, and at each change"
    if view.verdict is not None:
        planned = f"{counted(view.planned_movements, 'movement')} planned, {view.available_movements} of them can begin now"
        yield (
            f"  the last round{under_way_text(view.verdict)}: {planned}, {view.waiting_movements} wait for a slot; "
            f"imbalance {view.imbalance_before} now, {view.imbalance_after} at the target"
        )
    if view.first_divergence is not None:
        yield differs_line(view.first_divergence)


def differs_line(offset: int) -> Line:
    """Tells the user that the log's decisions differ from the recomputed ones."""
    return Line(Styled(f"the log's own decisions differ from offset {offset} on: see `equipoise verify`", colour="yellow"))


def members_table(view: GroupView) -> Table:
    rows = [
        (
            member.member_id,
            str(member.incarnation),  # an id, not a count
            member_state(member),
            member.capacity,
            len(member.active),
            len(member.standby),
            len(member.warmup),
            len(member.revoking),
            _ready_at(member),
            f"{member.applied_epoch} of {member.assignment_epoch}",
            f"{span_text(member.silent_ms)} of {span_text(member.session_timeout_ms)}",
            _named(member.active),
        )
        for member in view.members
    ]
    numbers = ("capacity", "active", "standby", "warmup", "revoking", "ready at lag")
    columns = ("member", "incarnation", "state", *numbers, "epoch applied", "silent", "active tasks")
    return Table(columns=columns, rows=rows, title=counted(len(rows), "member"))


def member_state(member: GroupMemberRow) -> str:
    """What the member does, or is to do."""
    if member.restart is not None:
        return _restarting(member)
    if member.released:
        return "RELEASED"
    if member.leaving:
        return "LEAVING" if member.drain is None else f"LEAVING, {member.drain.text()}"
    if member.crash_backoff_ms is not None:
        return f"{member.phase}, crashed {counted(member.crashes, 'time')}, back-off {span_text(member.crash_backoff_ms)}"
    return member.phase


def _restarting(member: GroupMemberRow) -> str:
    if member.back_ms is not None:
        return f"AWAY, expected back within {span_text(member.back_ms)}"
    return "RESTARTS" if member.restart == "stops" else f"{member.phase}, waits for its turn to restart"


def _ready_at(member: GroupMemberRow) -> str:
    own = "" if member.ready_lag_records is None else ", its own"
    return f"{member.acceptable_lag_records:,}{own}"


def tasks_table(tasks: Iterable[TaskRow], away: Collection[str] = ()) -> Table:
    """`away`: members that restart. What one of them reported last is no longer so."""
    rows = [
        (
            str(task.task),
            f"{task.owner or 'nobody'}{kept_text(task)}{_LEARNED if task.is_learned else ''}{_preparing(task.preparing)}{_parked(task.parked)}",
            "away" if task.owner in away else _owner_lag(task),
            "" if task.destination is None else f"{task.movement} -> {task.destination}",
            _copies(task.warmups),
            _copies(task.standbys),
            task.token or None,
            span_text(task.hold_ms) if task.hold_ms else None,
        )
        for task in tasks
    ]
    columns = ("task", "owner", "its lag", "movement", "warm-ups (lag, best)", "standbys (lag)", "token", "hold")
    return Table(columns=columns, rows=rows, title=counted(len(rows), "task"))


def _owner_lag(task: TaskRow) -> str:
    if not task.stateful:
        return "no state"
    return "" if task.owner is None else lag_text(task.owner_lag)


def kept_text(task: TaskRow) -> str:
    """For how long a task without an owner waits, as ", kept for m1 for another 12 s"; "": it does
    not.
    """
    return "" if task.kept_ms is None else f", kept for {task.kept_for or 'its member'} for another {span_text(task.kept_ms)}"


def _preparing(row: PreparingRow | None) -> str:
    return "" if row is None else f", {preparing_text(row.thousandths, row.since_ms, has_failed=row.has_failed)}"


def _parked(row: ParkedRow | None) -> str:
    if row is None:
        return ""
    place = f" at {row.topic}/{row.partition} offset {row.offset}" if row.topic else ""
    return f", FAILED{place} since {span_text(row.since_ms)}: {row.error}"


def _copies(copies: Iterable[CopyRow]) -> str:
    texts = []
    for copy in copies:
        lag = "not reported" if copy.lag is None else lag_text(copy.lag)
        best = "" if copy.best_lag_records is None else f", {copy.best_lag_records:,}"
        words = (("learner", copy.is_learner), ("caught up", copy.caught_up), ("ready", copy.is_ready))
        marks = "".join(f", {word}" for word, holds in words if holds) + _preparing(copy.preparing)
        texts.append(f"{copy.member_id} ({lag}{best}{marks})")
    return " ".join(texts)


def _named(tasks: tuple[TaskId, ...]) -> str:
    text = " ".join(map(str, tasks[:_MOST_NAMED]))
    return text if len(tasks) <= _MOST_NAMED else f"{text} and {len(tasks) - _MOST_NAMED} more"
