"""One group as `equipoise status` shows it: what is wrong first, then what is restored and when it
is expected to be ready, then members, then tasks, those that stand still first. With `--watch` on a
terminal it fills that and no more; names are shown as text and cut to their column.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

import attrs
import rich.console
import rich.live
import rich.table
from rich.cells import cell_len
from rich.progress_bar import ProgressBar
from rich.text import Text

from equipoise.cli.group_tables import kept_text, member_state
from equipoise.cli.screen import Line, Part, Styled, Table, bold
from equipoise.cli.visible import shortened, visible
from equipoise.replay.all_clear import AllClear, Grounds, all_troubles
from equipoise.replay.restore_progress import RestoreRow, restores
from equipoise.replay.trouble import Severity, Trouble
from equipoise.replay.wording import counted, lag_text, span_text, under_way_text
from equipoise.statemachine.state import GroupPhase

if TYPE_CHECKING:
    from equipoise.replay.group_view import GroupMemberRow, GroupView, TaskRow
    from equipoise.statemachine.group_lead import GroupLead

_COLOURS = {Severity.HALTED: "bold red", Severity.STANDS_STILL: "red", Severity.THREATENS: "yellow", Severity.MOVES: "cyan"}
_BAR_CELLS = 20
_TABLE_LINES = 3
"""Of a table besides its rows: an empty line, the title, the names of the columns."""
_LEAST_ROWS = 3
"""Rows that a table gets however small the terminal is."""


@attrs.frozen(kw_only=True)
class Seen:
    """A group as it was at `at_s` (monotonic)."""

    view: GroupView
    troubles: Sequence[Trouble]
    restores: Sequence[RestoreRow]
    grounds: Grounds
    at_s: float


def seen(lead: GroupLead, view: GroupView, grounds: Grounds) -> Seen:
    """What the live view shows of this state."""
    found = all_troubles(lead, grounds)
    return Seen(view=view, troubles=found, restores=restores(lead.machine.state), grounds=grounds, at_s=time.monotonic())


class LiveView:
    """Draws a group on the whole terminal while entered, four times a second."""

    def __init__(self) -> None:
        self._console = rich.console.Console(highlight=False)
        self._seen: Seen | None = None
        self._remark = ""
        self._live = rich.live.Live(console=self._console, get_renderable=self._draw, screen=True, refresh_per_second=4)

    def see(self, lead: GroupLead, view: GroupView, grounds: Grounds) -> None:
        """The group is in this state now."""
        self._seen = seen(lead, view, grounds)

    def remark(self, text: str) -> None:
        """A line about the brokers; "": there is nothing to say any more."""
        self._remark = text

    def _draw(self) -> rich.console.RenderableType:
        if self._seen is None:
            return Text(visible(self._remark) or "reading the log ...")
        size = self._console.size
        return draw(self._seen, self._remark, width=size.width, height=size.height, now_s=time.monotonic())

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


_Cell = str | int | None | Text | ProgressBar


@attrs.frozen
class _Section:
    """A table of `count` rows, of which as many are drawn as fit. `columns`: names; one
    that begins with ``>`` is right-aligned, and that of bars has none. `rows`: cells; what is a
    Text may be cut.
    """

    title: str
    columns: tuple[str, ...]
    count: int
    rows: Iterator[Sequence[_Cell]]

    def table(self) -> Table:
        """All rows, without bars."""
        kept = [index for index, name in enumerate(self.columns) if name]
        rows = [[_plain(row[index]) for index in kept] for row in self.rows]
        return Table(columns=tuple(self.columns[index].lstrip(">") for index in kept), rows=rows, title=self.title)

    def draw(self, most: int, width: int) -> Iterator[rich.console.RenderableType]:
        table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        shown = self.count if self.count <= most else max(0, most - 1)
        rows = [[_drawn(cell) for cell in row] for row in itertools.islice(self.rows, shown)]
        for index, name in enumerate(self.columns):
            numbers = [cell_len(cell) for cell in (row[index] for row in rows) if isinstance(cell, str)]
            side: Literal["left", "right"] = "right" if name.startswith(">") else "left"
            least, most_cells = max(numbers, default=None), max(8, width // 3)
            table.add_column(Text(name.lstrip(">")), justify=side, no_wrap=True, overflow="ellipsis", min_width=least, max_width=most_cells)
        for row in rows:
            table.add_row(*row)
        yield from (Text(""), Text(self.title, style="bold"), table)
        if shown < self.count:
            yield Text(f"... and {self.count - shown:,} more", style="dim")


def _drawn(cell: _Cell) -> str | Text | ProgressBar:
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def _plain(cell: _Cell) -> str | int | None:
    assert not isinstance(cell, ProgressBar), "a column of bars has no name"
    return cell.plain if isinstance(cell, Text) else cell


def parts_of(group: Seen) -> list[Part]:
    """The same as lines and tables, with every row."""
    title, rest = _title(group.view)
    parts: list[Part] = [Line(bold(title), rest)]
    parts += [_trouble_line(trouble) for trouble in group.troubles] or [Line(_calm(group))]
    for section in (_restores(group, group.at_s), _members(group.view.members), _tasks(group)):
        parts += ["", section.table()] if section.count else []
    return parts


def _trouble_line(trouble: Trouble) -> Line:
    colour = _COLOURS[trouble.severity]
    return Line(Styled(shortened(trouble.text), bold=colour.startswith("bold"), colour=colour.removeprefix("bold ")))


def draw(group: Seen, remark: str, *, width: int, height: int, now_s: float) -> rich.console.Group:
    """The view at `now_s` (monotonic), of at most `width` cells and `height` lines. `remark`: a
    line about the brokers; "": none.
    """
    parts: list[rich.console.RenderableType] = list(itertools.islice(_head(group, remark), max(2, height // 3)))
    left = height - len(parts)
    sections = [each for each in (_restores(group, now_s), _members(group.view.members), _tasks(group)) if each.count]
    for index, section in enumerate(sections):
        if left <= _TABLE_LINES:
            break
        later = [_TABLE_LINES + min(each.count, _LEAST_ROWS) for each in sections[index + 1 :]]
        space = left - _TABLE_LINES
        most = min(space, max(_LEAST_ROWS, (space - sum(later)) // 2)) if later else space
        parts += section.draw(most, width)
        left -= _TABLE_LINES + min(section.count, most)
    return rich.console.Group(*parts)


def _calm(group: Seen) -> Styled:
    """Returns the line for a group in which equipoise sees no trouble, green where that is proven.
    It does not judge a group that something else leads, or that has nobody.
    """
    view = group.view
    owned = sum(task.owner is not None for task in view.tasks)
    if view.phase == GroupPhase.SHADOWING.value:
        of = f"{owned} of {counted(len(view.tasks), 'task')} have an owner"
        asked = f"equipoise decides, and the group carries it out; {of} by the last round"
        return Styled(f"its own leader decides; {of}" if view.verdict is None else asked)
    if not view.members:
        return Styled("no member is in this log; a seat that stands by writes none")
    return Styled(group.grounds.says(AllClear.RUNS), colour="green" if group.grounds.is_known else None)


def _title(view: GroupView) -> tuple[str, str]:
    """The group's name, and what is said behind it."""
    counts = f"{counted(len(view.tasks), 'task')}, {counted(len(view.members), 'member')}"
    state = under_way_text(view.verdict) if view.verdict else f", {view.phase}"
    return shortened(view.group), f"  round {view.generation}{state}; {counts}; offset {view.offset:,}"


def _head(group: Seen, remark: str) -> Iterator[Text]:
    title, rest = _title(group.view)
    line = Text(_safe(title), style="bold", no_wrap=True, overflow="ellipsis")
    line.append(rest, style="not bold")
    yield line
    if remark:
        yield Text(visible(remark), style="yellow", no_wrap=True, overflow="ellipsis")
    if not group.troubles:
        calm = _calm(group)
        yield Text(calm.text, style=calm.colour or "", no_wrap=True, overflow="ellipsis")
    for trouble in group.troubles:
        yield Text(_safe(trouble.text), style=_COLOURS[trouble.severity], no_wrap=True, overflow="ellipsis")


def _safe(text: str) -> str:
    """Text from a log as it may be printed, with long words cut."""
    return shortened(visible(text))


def _restores(group: Seen, now_s: float) -> _Section:
    def cells() -> Iterator[Sequence[_Cell]]:
        for row in group.restores:
            then = "runs again" if row.stands_still else f"taken from {_safe(row.source)}" if row.source else "runs"
            yield (
                str(row.task),
                Text(_safe(row.member_id)),
                ProgressBar(total=1.0, completed=row.done, width=_BAR_CELLS, complete_style="red" if row.stands_still else "cyan"),
                f"{100 * row.done:.0f} %",
                row.lag_records,
                row.records_per_s,
                _expected(row, now_s - group.at_s),
                Text(then),
            )

    columns = ("task", "at", "", ">done", ">records left", ">records/s", "expected", "then")
    return _Section(counted(len(group.restores), "restore"), columns, len(group.restores), cells())


def _expected(row: RestoreRow, age_s: float) -> str:
    if row.expected_ms is None:
        return "not known yet"
    left_s = row.expected_ms // 1_000 - int(age_s)
    return "any moment" if left_s <= 0 else f"in {left_s} s" if left_s < 60 else f"in {span_text(left_s * 1_000)}"


def _members(members: Sequence[GroupMemberRow]) -> _Section:
    def late(member: GroupMemberRow) -> bool:
        return member.back_ms is not None or 2 * member.silent_ms > member.session_timeout_ms

    def cells() -> Iterator[Sequence[_Cell]]:
        for member in sorted(members, key=lambda each: (not late(each), each.member_id)):
            style = "yellow" if late(member) else ""
            yield (
                Text(_safe(member.member_id)),
                Text(_safe(member_state(member))),
                len(member.active),
                len(member.standby),
                len(member.warmup),
                Text(span_text(member.silent_ms), style=style),
            )

    return _Section(counted(len(members), "member"), ("member", "state", ">runs", ">standbys", ">warm-ups", ">silent"), len(members), cells())


def _tasks(group: Seen) -> _Section:
    restoring = {(row.task, row.member_id) for row in group.restores if row.stands_still}
    away = {member.member_id for member in group.view.members if member.back_ms is not None}

    def state(task: TaskRow) -> tuple[int, str, str]:
        """Rank, text and style."""
        if task.owner is None:
            return 0, f"no owner{kept_text(task)}", "red"
        if task.parked is not None:
            return 0, f"failed: {task.parked.error}", "red"
        if (task.task, task.owner) in restoring:
            return 0, "restores", "red"
        if task.owner in away:
            return 0, "waits for its member", "red"
        if task.hold_ms:
            return 0, "waits for its former owner", "red"
        if task.destination is not None:
            return 1, f"{task.movement} -> {task.destination}", "cyan"
        return 2, "runs", ""

    def cells() -> Iterator[Sequence[_Cell]]:
        for (_, text, style), task in sorted(((state(task), task) for task in group.view.tasks), key=lambda pair: (pair[0][0], pair[1].task)):
            copies = (f"{copy.member_id} ({'no report' if copy.lag is None else lag_text(copy.lag)})" for copy in (*task.warmups, *task.standbys))
            yield str(task.task), Text(_safe(task.owner or "nobody")), Text(_safe(text), style=style), Text(_safe(", ".join(copies)))

    return _Section(counted(len(group.view.tasks), "task"), ("task", "member", "state", "copies"), len(group.view.tasks), cells())
