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

from equipoise.cli.visible import shortened, visible, visible_json

try:
    from rich.cells import cell_len
except ImportError:  # members come without it, and with plain text
    cell_len = len  # type: ignore[assignment]

T = TypeVar("T")
HAS_RICH = cell_len is not len
"""Whether tables are drawn on terminals, and progress is."""
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
            elif HAS_RICH and sys.stdout.isatty():
                from equipoise.cli.terminal import draw

                draw(part.title, part.columns, part.cells(), [part.stands_right(column) for column in range(len(part.columns))])
            else:
                click.echo(plain(part))

    def line(self, part: str | Line, *, err: bool = False) -> None:
        """Prints one line on stdout, or on stderr."""
        click.echo(visible(part) if isinstance(part, str) else part.drawn(), err=err)

    def json_line(self, document: str) -> None:
        """Prints one JSON document on a line of its own, on stdout."""
        click.echo(visible_json(document).encode())  # UTF-8, as JSON is, whatever the locale

    def remark(self, text: str) -> None:
        """Prints one line on stderr, beside the answer; not with ``--json`` or ``--quiet``."""
        if not self.quiet and not self.json:
            self.line(text, err=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Shows a progress bar on stderr during the block. The block gets a function, and calls it
        with the number of steps done since the last call.

        `total`: number of steps; None: not known. There is no bar with ``--json`` or ``--quiet``,
        or when stderr is no terminal.
        """
        shown = HAS_RICH and sys.stderr.isatty() and not (self.json or self.quiet)
        if not shown:
            yield lambda steps: None
            return
        from equipoise.cli.terminal import progress_bar

        with progress_bar(total) as bar:
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

    def track(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yields `items` with a progress bar, one step an item."""
        with self.progress(label, total) as advance:
            for item in items:
                yield item
                advance(1)


_bars: list[Any] = []
"""Progress bars on the terminal now."""


def hide_bars() -> None:
    """Removes progress bars from the terminal, so that an error message does not mix with them."""
    for bar in _bars:
        bar.stop()
