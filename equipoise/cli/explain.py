"""`equipoise explain LOG --task 0_3`: why a task is on its member, how it moved, what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.group_tables import differs_line
from equipoise.cli.params import AT_HELP, OFFSET, TASK, Moment, log_argument, offset_of, read
from equipoise.cli.predicted import known_live
from equipoise.cli.screen import Line, Part, Screen, Styled, Table, bold
from equipoise.events.tasks import TaskId
from equipoise.log import Log
from equipoise.replay.wording import clock_text, counted, day_text, lag_text, reason_text, share_text, span_text

if TYPE_CHECKING:
    from equipoise.replay.explanation import Explanation
    from equipoise.replay.history import MoveStory


_MOST_MOVES = 20
"""The latest movements that tables show; `--json` has all."""


@command("explain", short_help="Explain why a task is where it is, and what it waits for.")
@log_argument
@click.option("--task", type=TASK, required=True, metavar="TASK", help="Task, as 0_3.")
@click.option("--at", "at_offset", type=OFFSET, metavar="OFFSET|TIME", help=f"Explain the state after this fact, {AT_HELP}")
@click.option("--group", metavar="GROUP", help="Group of the task; required if LOG holds several.")
def explain(screen: Screen, log: Log, task: TaskId, at_offset: int | Moment | None, group: str | None) -> None:
    """Answer three questions about one task from LOG alone, with the numbers behind each decision.
    Why is it on its member? How did it get there? Why has it not moved yet?

    \b
    Examples:
      equipoise explain group.db --task 0_3
      equipoise explain kafka://127.0.0.1:9092 --group orders --task 0_3
    """
    from equipoise.replay.explanation import explain_decided  # loads the solver

    at = offset_of(log, at_offset, group)
    live = known_live(log, group) if at is None else None
    known = None if live is None else live.grounds
    explanation = explain_decided(lambda: read(screen, log, "folding", group), task, group=group, at_offset=at, known=known)
    screen.answer(explanation.document(), *explanation_parts(explanation))


def explanation_parts(explanation: Explanation) -> list[Part]:
    """The explanation as text and tables."""
    from equipoise.replay.owners import joined_stretches  # loads the solver

    task = explanation.task
    reads = f", which reads {', '.join(explanation.sources)}" if explanation.sources else ""
    where = f"task {task} of group {explanation.group}{reads}, after offset {explanation.offset} ({day_text(explanation.append_ms)})"
    parts: list[Part] = [Line(bold(where))]
    parts += [Line(Styled(each.text, colour="red")) for each in explanation.grounds.missing]
    parts += _section(f"Why is {task} {'with nobody' if explanation.row.owner is None else f'on {explanation.row.owner}'}?", explanation.why_here)
    parts += ["", candidates_table(explanation)]
    parts += _section(f"How did {task} get there?", [] if explanation.moves else ["No member ever had it."])
    if explanation.moves:
        earlier = len(explanation.moves) - _MOST_MOVES
        parts += [f"  {counted(earlier, 'earlier movement')} not shown; --json has all"] if earlier > 0 else []
        parts.append(moves_table(explanation.moves[-_MOST_MOVES:], explanation.append_ms))
        stretches = joined_stretches(explanation.stopped).get(task, [])
        times = counted(len(stretches), "stretch", "stretches")
        lasted = span_text(sum(to_ms - from_ms for from_ms, to_ms in stretches))
        without = f"{explanation.without} for {lasted}, in {times}" if stretches else f"never {explanation.without}"
        parts.append(f"  Over the whole log it was {without}.")
    parts += _section("What is next?", explanation.what_next)
    if explanation.slots:
        parts.append(slots_table(explanation))
    if explanation.first_divergence is not None:
        parts += ["", differs_line(explanation.first_divergence)]
    return parts


def _section(question: str, sentences: tuple[str, ...] | list[str]) -> list[Part]:
    return ["", Line(bold(question)), *(f"  {sentence}" for sentence in sentences)]


def candidates_table(explanation: Explanation) -> Table:
    when = "now" if explanation.candidates_ms is None else f"at the decision, {clock_text(explanation.candidates_ms)}"
    rows: list[tuple[str | int | float | None, ...]] = []
    by_load = any(candidate.load_share is not None for candidate in explanation.candidates)
    by_racks = any(candidate.traffic_cost is not None for candidate in explanation.candidates)
    for candidate in explanation.candidates:
        lag = lag_text(candidate.lag) if explanation.row.stateful else "no state"
        verdict = candidate.obstacle or (
            "has it" if candidate.owns_it else "caught up" if candidate.caught_up or not explanation.row.stateful else "behind"
        )
        racks = (candidate.rack, candidate.traffic_cost) if by_racks else ()
        load = (share_text(candidate.load_share or 0),) if by_load else ()
        speed = candidate.restore_records_per_s or None
        rows.append((candidate.member_id, lag, verdict, candidate.active_tasks, candidate.capacity, speed, *racks, *load))
    columns: tuple[str, ...] = ("member", "lag of its copy", "may take it", "active tasks", "capacity", "restores records/s")
    if by_racks:
        columns = (*columns, "rack", "traffic")
    if by_load:
        columns = (*columns, "load per thread")
    return Table(columns=columns, rows=rows, title=f"  which member could run it, {when}")


def moves_table(moves: tuple[MoveStory, ...] | list[MoveStory], now_ms: int) -> Table:
    """One row for each movement. Durations are wall time of the log."""
    rows = []
    for move in moves:
        first, last = move.steps[0], move.steps[-1]
        rows.append(
            (
                clock_text(move.began_ms),
                first.offset if first.offset == last.offset else f"{first.offset}-{last.offset}",
                last.generation,
                f"{move.source or 'nobody'} -> {move.destination}",
                move.outcome,
                _duration(move.spent_ms("waiting", now_ms)),
                _duration(move.spent_ms("warming", now_ms)),
                None if move.declared_ready_ms is None else clock_text(move.declared_ready_ms),
                _duration(move.spent_ms("revoking", now_ms)),
                move.restored_records,
                first.lag_records,
                why(move),
            )
        )
    spent = ("waited", "warmed up", "declared ready", "handed over")
    columns = ("decided", "offset", "generation", "move", "outcome", *spent, "restored", "lag then", "why")
    return Table(columns=columns, rows=rows)


def why(move: MoveStory) -> str:
    """Why the movement began, and why it ended if it was cancelled."""
    from equipoise.replay.wording import cause_text

    first, last = move.steps[0], move.steps[-1]
    if first.state == "observed":
        return f"its leader's round: {cause_text(first.cause)}"
    text = reason_text(move.reason, source=move.source, destination=move.destination, lag_records=first.lag_records)
    if last.state == "cancelled" and last.reason != move.reason:
        text += f"; ended: {reason_text(last.reason, source=move.source, destination=move.destination, lag_records=last.lag_records)}"
    return text


def _duration(ms: int) -> str | None:
    return span_text(ms) if ms else None


def slots_table(explanation: Explanation) -> Table:
    rows = [
        (
            str(slot.task),
            slot.member_id,
            "not reported" if slot.lag_records is None else f"{slot.lag_records:,}",
            None if slot.best_lag_records is None else f"{slot.best_lag_records:,}",
            "caught up" if slot.caught_up else None if slot.expected_ms is None else span_text(slot.expected_ms),
        )
        for slot in explanation.slots
    ]
    title = f"  which copies hold the {counted(explanation.max_warmups, 'warm-up slot')}"
    return Table(columns=("task", "on", "lag now", "best lag", "expected in"), rows=rows, title=title)
