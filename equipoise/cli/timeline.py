"""`equipoise timeline LOG`: which member ran what when, as tables, an HTML page or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.cli.changes import answer_changes
from equipoise.cli.command import command
from equipoise.cli.explain import moves_table
from equipoise.cli.group_tables import differs_line
from equipoise.cli.output import Kind, check_files, write_file
from equipoise.cli.params import AT_HELP, OFFSET, Moment, log_argument, offset_of, read
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.log import Log
from equipoise.replay.numbers import LONGEST_GAP, UNAVAILABLE
from equipoise.replay.wording import cause_text, clock_text, counted, day_text, span_text

if TYPE_CHECKING:
    from equipoise.replay.timelines import Timeline, Totals

_MOST_ROWS = 40
"""Rows of a table; `--all` and `--json` show all."""
_FILE = click.Path(dir_okay=False, path_type=Path)


@command("timeline", short_help="Show which member ran what when, as tables, page or picture.")
@log_argument
@click.option("--html", "html_path", type=_FILE, metavar="FILE", help="Write an HTML page to FILE instead of tables; an earlier page is replaced.")
@click.option("--svg", "svg_path", type=_FILE, metavar="FILE", help="Write an SVG picture to FILE instead of tables; an earlier picture is replaced.")
@click.option("--changes", "shows_changes", is_flag=True, help="Instead: what was changed, with what that was expected to cost, and did.")
@click.option("--at", "until_offset", type=OFFSET, metavar="OFFSET|TIME", help=f"Stop after this fact, {AT_HELP}")
@click.option("--group", metavar="GROUP", help="Group to show; required if LOG holds several, but for --changes.")
@click.option("--all", "everything", is_flag=True, help="Show every row of every table.")
def timeline(
    screen: Screen,
    log: Log,
    html_path: Path | None,
    svg_path: Path | None,
    shows_changes: bool,
    until_offset: int | Moment | None,
    group: str | None,
    everything: bool,
) -> None:
    """Show the history of LOG: the cost of each marked window, every move with how long it took,
    every round with its cause. Then come each task's time without a running owner, and when each
    member was in the group.

    --html writes one self-contained page: tasks as rows coloured by owner, warm-ups hatched, gaps
    where no member ran a task. --svg writes one still picture. --changes lists changes: those that
    were planned (`configure --judge`, docs/change.md), with their verdicts, and other settings.

    \b
    Examples:
      equipoise timeline group.db
      equipoise timeline group.db --html group.html
      equipoise timeline --json group.db | jq '.moves | length'
    """
    if shows_changes:
        if html_path or svg_path or until_offset is not None or everything:
            raise click.UsageError("--changes: lists changes, and goes with --group alone")
        answer_changes(screen, log, group)
        return
    from equipoise.replay.timelines import build_timeline, changes_owner, render_page, render_picture, timeline_document

    check_files(("--html", html_path, Kind.PAGE), ("--svg", svg_path, Kind.PICTURE))
    built = build_timeline(read(screen, log, "folding", group), group=group, until_offset=offset_of(log, until_offset, group))
    wanted = (("--html", html_path, Kind.PAGE, render_page), ("--svg", svg_path, Kind.PICTURE, render_picture))
    written: list[str] = []
    for option, path, kind, render in wanted:
        if path is not None:
            with screen.progress(f"drawing {path.name}"):
                write_file(option, path, kind, render(built))
            written.append(f"{kind.words} -> {path}")
    if written:
        moves = sum(changes_owner(move) for move in built.moves)
        screen.answer(timeline_document(built), head_line(built), f"{counted(moves, 'move')} in {counted(len(built.rounds), 'round')}", *written)
    else:
        screen.answer(timeline_document(built), *timeline_parts(built, None if everything else _MOST_ROWS))


def head_line(built: Timeline) -> Line:
    span = f"{day_text(built.from_ms)}, {span_text(built.length_ms)}"
    return Line(bold(built.group), f"  {span}, {built.leader}, {counted(len(built.tasks), 'task')}, {counted(built.facts, 'fact')}")


def timeline_parts(built: Timeline, most_rows: int | None) -> list[Part]:
    """The history as text and tables, each with at most `most_rows` rows (None: all)."""
    parts: list[Part] = [head_line(built), "", totals_table(built.window_totals(), built.without), built.caption]
    if built.measured is not None:
        longest = span_text(built.measured.longest_ms)
        parts.append(f"{UNAVAILABLE}, {built.measured.source}: {built.measured.task_s:,.1f} task-s; {LONGEST_GAP} {longest}")
    parts += ["", lifelines_table(built)]
    parts += ["", *_cut(unavailability_table(built), most_rows)]
    parts += ["", *_cut(moves_with_tasks(built), most_rows)]
    parts += ["", *_cut(rounds_table(built), most_rows)]
    if built.first_divergence is not None:
        parts += ["", differs_line(built.first_divergence)]
    return parts


def _cut(table: Table, most_rows: int | None) -> list[Part]:
    if most_rows is None or len(table.rows) <= most_rows:
        return [table]
    more = f"... and {len(table.rows) - most_rows:,} more: --all shows them"
    return [Table(columns=table.columns, rows=table.rows[:most_rows], title=table.title), more]


def totals_table(totals: list[Totals], without: str) -> Table:
    """The cost of each window. `without`: what the time without a running owner is called."""
    rows = [
        (
            each.label,
            span_text(each.to_ms - each.from_ms),
            each.rounds,
            each.moves,
            each.stopped_ms / 1_000,
            each.tasks_stopped,
            each.longest_ms / 1_000,
        )
        for each in totals
    ]
    columns = ("window", "length", "rounds", "moves", f"task-s {without}", "tasks", "longest s")
    return Table(columns=columns, rows=rows, title="what it cost")


def lifelines_table(built: Timeline) -> Table:
    rows = [
        (
            life.member_id,
            str(life.incarnation),  # an id, not a count
            life.capacity,
            clock_text(life.joined_ms),
            None if life.ended_ms is None else clock_text(life.ended_ms),
            life.how or "lives",
            None if life.silent_ms is None or life.ended_ms is None else span_text(life.ended_ms - life.silent_ms),
        )
        for life in built.lifelines
    ]
    return Table(columns=("member", "incarnation", "capacity", "joined", "ended", "how", "silent before"), rows=rows, title="members")


def unavailability_table(built: Timeline) -> Table:
    """Tasks without a running owner, longest first."""
    stopped = built.stopped(built.from_ms, built.to_ms)
    rows = []
    for task, stretches in stopped.items():
        total_ms = sum(to - since for since, to in stretches)
        longest_ms = max(to - since for since, to in stretches)
        rows.append((str(task), len(stretches), total_ms / 1_000, longest_ms / 1_000, clock_text(stretches[0][0])))
    rows.sort(key=lambda row: (-row[2], row[0]))
    title = f"{built.without}: {len(stopped)} of {counted(len(built.tasks), 'task')}"
    return Table(columns=("task", "stretches", "s in all", "longest s", "first at"), rows=rows, title=title)


def moves_with_tasks(built: Timeline) -> Table:
    moves = [move for move in built.moves if move.source is not None]
    table = moves_table(moves, built.to_ms)
    rows = [(str(move.task), *row) for move, row in zip(moves, table.rows, strict=True)]
    return Table(columns=("task", *table.columns), rows=rows, title=counted(len(moves), "move"))


def rounds_table(built: Timeline) -> Table:
    rows = [(clock_text(each.append_ms), each.offset, each.generation, each.moves, each.members, cause_text(each.cause)) for each in built.rounds]
    return Table(columns=("at", "offset", "generation", "moves", "members", "because"), rows=rows, title=counted(len(rows), "round"))
