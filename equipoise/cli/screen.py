"""Prints a command's answer (text and tables, or one JSON document) on stdout, and remarks and
progress bars on stderr. Text for people goes through `equipoise.cli.visible`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import click
import rich.box
import rich.console
import rich.progress
import rich.table
from rich.cells import cell_len
from rich.text import Text

from equipoise.cli.visible import shortened, visible, visible_json

T = TypeVar("T")

_REDRAW_S = 0.1  # ten times a second looks smooth; updating rich for each record would cost more than reading it


@attrs.frozen
class Styled:
    """Text in a style. `colour`: a colour name of click."""

    text: str
    bold: bool = False
    colour: str | None = None

    def drawn(self) -> str:
        return click.style(visible(self.text), fg=self.colour, bold=self.bold or None)


@attrs.frozen(init=False)
class Line:
    """One line, with styled parts."""

    spans: tuple[str | Styled, ...]

    def __init__(self, *spans: str | Styled) -> None:
        self.__attrs_init__(spans)

    def drawn(self) -> str:
        return "".join(visible(span) if isinstance(span, str) else span.drawn() for span in self.spans)


def bold(text: str) -> Styled:
    """`text` in bold."""
    return Styled(text, bold=True)


@attrs.frozen(kw_only=True)
class Table:
    """Rows under named columns. A column of numbers is right-aligned. None is an empty cell."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | int | float | None]]
    title: str = ""

    def __attrs_post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row!r:.80}")

    def cells(self) -> list[list[str]]:
        return [[shortened(visible(_cell(value))) for value in row] for row in self.rows]

    def stands_right(self, column: int) -> bool:
        values = [row[column] for row in self.rows if row[column] is not None]
        return bool(values) and all(isinstance(value, int | float) for value in values)


Part = str | Line | Table
"""Of an answer: a line of text, a line with styles, a table."""


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and 0 < abs(value) < 0.05:
        return f"{value:.1g}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def plain(table: Table) -> str:
    """The table as text for files and pipes: one line a row, columns two spaces apart, no terminal
    codes.
    """
    lines = [list(table.columns), *table.cells()]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(table.columns))]
    right = [table.stands_right(i) for i in range(len(table.columns))]
    out = [visible(table.title)] if table.title else []
    for line in lines:
        padded = [" " * (w - cell_len(c)) + c if r else c + " " * (w - cell_len(c)) for c, w, r in zip(line, widths, right, strict=True)]
        out.append("  ".join(padded).rstrip())
    return "\n".join(out)


@attrs.frozen(kw_only=True)
class Screen:
    """`json`: the answer is a JSON document. `quiet`: no remarks and no progress bars."""

    json: bool = False
    quiet: bool = False

    def answer(self, document: Any, *parts: Part) -> None:
        """Prints the answer of a command: `document` with ``--json``, else `parts` in order.
        Raises ValueError when `document` holds NaN or infinity.
        """
        if self.json:
            click.echo(json.dumps(document, indent=2, allow_nan=False))
            return
        for part in parts:
            if isinstance(part, str | Line):
                self.line(part)
            elif sys.stdout.isatty():
                _draw(part)
            else:
                click.echo(plain(part))

    def line(self, part: str | Line, *, err: bool = False) -> None:
        """Prints one line on stdout, or on stderr."""
        click.echo(visible(part) if isinstance(part, str) else part.drawn(), err=err)

    def json_line(self, document: str, *, indent: int | None = None) -> None:
        """Prints one JSON document on a line of its own, on stdout. `indent`: spaces of indentation
        where stdout is a terminal.
        """
        if indent is not None and sys.stdout.isatty():
            document = json.dumps(json.loads(document), indent=indent, ensure_ascii=False)
            click.echo("\n".join(map(visible_json, document.splitlines())))
            return
        click.echo(visible_json(document).encode())  # UTF-8, as JSON is, whatever the locale

    def remark(self, text: str) -> None:
        """Prints one line on stderr, beside the answer; not with ``--json`` or ``--quiet``."""
        if not self.quiet and not self.json:
            self.line(text, err=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None = None, *, streams_output: bool = False) -> Iterator[Callable[[int], None]]:
        """Shows a progress bar on stderr during the block. The block gets a function, and calls it
        with the number of steps done since the last call.

        `total`: number of steps; None: not known. `streams_output`: the block writes to stdout
        meanwhile, so there is no bar if stdout is a terminal too. There is no bar with ``--json``
        or ``--quiet``, or when stderr is no terminal.
        """
        shown = sys.stderr.isatty() and not (self.json or self.quiet) and not (streams_output and sys.stdout.isatty())
        if not shown:
            yield lambda steps: None
            return
        columns = [
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.completed:,.0f}" + (f"/{total:,}" if total is not None else "")),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
        ]
        with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True, redirect_stdout=False) as bar:
            task = bar.add_task(visible(label), total=total)
            _bars.append(bar)
            waiting = 0
            drawn_s = time.monotonic()

            def advance(steps: int) -> None:
                nonlocal waiting, drawn_s
                waiting += steps
                now_s = time.monotonic()
                if now_s - drawn_s >= _REDRAW_S:
                    bar.advance(task, waiting)
                    waiting, drawn_s = 0, now_s

            try:
                yield advance
            finally:
                _bars.remove(bar)
            bar.advance(task, waiting)

    def track(self, items: Iterable[T], label: str, total: int | None = None, *, streams_output: bool = False) -> Iterator[T]:
        """Yields `items` with a progress bar, one step an item."""
        with self.progress(label, total, streams_output=streams_output) as advance:
            for item in items:
                yield item
                advance(1)


_bars: list[rich.progress.Progress] = []
"""Progress bars on the terminal now."""


def hide_bars() -> None:
    """Removes progress bars from the terminal, so that an error message does not mix with them."""
    for bar in _bars:
        bar.stop()


def _draw(table: Table) -> None:
    """Draws the table on a terminal. If the columns do not fit without breaking words, it prints
    each row as lines of ``name: value``.
    """
    console = rich.console.Console()
    widths = _widths(table, console.width)
    if widths is None:
        _draw_rows(console, table)
        return
    title = Text(visible(table.title)) if table.title else None
    drawn = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_style="bold"
    )
    for index, (name, width) in enumerate(zip(table.columns, widths, strict=True)):
        drawn.add_column(Text(name), justify="right" if table.stands_right(index) else "left", overflow="fold", width=width)
    for row in table.cells():
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def _widths(table: Table, width: int) -> list[int] | None:
    """Column widths for a terminal of `width` cells; None: the columns do not fit.

    Every column fits its longest word, and sentences get _LEAST_SENTENCE cells. The rest goes first
    to the columns that need the least to fit each cell on one line.
    """
    columns = [list(column) for column in zip(table.columns, *table.cells(), strict=True)]
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


def _draw_rows(console: rich.console.Console, table: Table) -> None:
    if table.title:
        console.print(Text(visible(table.title), style="bold"))
    for row in table.cells():
        parts = [f"{name}: {cell}" if name else cell for name, cell in zip(table.columns, row, strict=True) if cell]
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
