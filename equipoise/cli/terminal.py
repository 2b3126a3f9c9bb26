"""Draws on terminals with `rich`: tables and progress bars."""

from __future__ import annotations

from collections.abc import Sequence

import rich.box
import rich.console
import rich.progress
import rich.table
from rich.cells import cell_len
from rich.text import Text

from equipoise.cli.visible import visible


def progress_bar(total: int | None) -> rich.progress.Progress:
    """A bar on stderr that is gone at the end of its block. `total`: steps; None: unknown."""
    columns = [
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:,.0f}" + (f"/{total:,}" if total is not None else "")),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
    ]
    return rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True, redirect_stdout=False)


def draw(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Draws a table on a terminal. If the columns do not fit without breaking words, it prints each
    row as lines of ``name: value``. `right`: whether a column stands at its right.
    """
    console = rich.console.Console()
    widths = _widths(names, rows, console.width)
    if widths is None:
        _draw_rows(console, title, names, rows)
        return
    heading = Text(visible(title)) if title else None
    drawn = rich.table.Table(title=heading, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_style="bold")
    for index, (name, width) in enumerate(zip(names, widths, strict=True)):
        drawn.add_column(Text(name), justify="right" if right[index] else "left", overflow="fold", width=width)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Column widths for a terminal of `width` cells; None: the columns do not fit.

    Every column fits its longest word, and sentences get _LEAST_SENTENCE cells. The rest goes first
    to the columns that need the least to fit each cell on one line.
    """
    columns = [list(column) for column in zip(names, *rows, strict=True)]
    full = [max(map(cell_len, column)) for column in columns]
    words = [max((cell_len(word) for cell in column for word in cell.split()), default=1) for column in columns]
    longest = [max(map(cell_len, column[1:]), default=0) for column in columns]
    least = [max(word, _LEAST_SENTENCE) if cell > _LEAST_SENTENCE else word for word, cell in zip(words, longest, strict=True)]
    left = width - sum(least) - _GAP * len(columns) - 1
    if left < 0:
        return None
    widths = list(least)
    for index in sorted(range(len(columns)), key=lambda index: (full[index] - least[index], index)):
        more = min(left, full[index] - least[index])
        widths[index] += more
        left -= more
    return widths


_LEAST_SENTENCE = 24
"""Least width of a column of sentences, in cells."""
_GAP = 2
"""Cells between two columns: padding and separator."""


def _draw_rows(console: rich.console.Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if title:
        console.print(Text(visible(title), style="bold"))
    for row in rows:
        parts = [f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=True) if cell]
        console.rule(style="dim")
        console.print(Text("\n").join(Text(line) for line in _filled(parts, console.width)))


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Joins parts into lines of at most `width` cells."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + len(_BETWEEN) + cell_len(part) <= width:
            lines[-1] += _BETWEEN + part
        else:
            lines.append(part)
    return lines


_BETWEEN = " · "
