"""An answer as one HTML page that loads nothing and has no script: its lines and its tables, with a
bar behind each number.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from equipoise.cli.screen import Line, Part, Styled, Table
from equipoise.cli.visible import visible
from equipoise.replay.drawing.colours import colour_rules

_RULES = """
body { margin: 0 auto; padding: 22px 26px 40px; max-width: 1760px; background: var(--page); color: var(--ink); font: 13.5px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 19px; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 9px; padding: 10px 16px; margin: 14px 0; overflow-x: auto; box-shadow: var(--shadow); }
h2 { font-size: 14px; margin: 0 0 6px; }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 8px; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: min(320px, 60vw); }
"""  # noqa: E501 - rules of CSS
_LONG_CHARS = 60


def render_parts(title: str, parts: Sequence[Part]) -> str:
    """Returns the page. Equal arguments give equal pages."""
    body = "\n".join(_table(part) if isinstance(part, Table) else f"<p>{html.escape(_text(part))}</p>" for part in parts)
    heading = html.escape(visible(title))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="equipoise">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{heading}</title>
<style>
{colour_rules()}{_RULES}</style>
</head>
<body>
<h1>{heading}</h1>
{body}
</body>
</html>
"""


def _table(table: Table) -> str:
    numbers = [[value if isinstance(value, int | float) else None for value in row] for row in table.rows]
    most: list[float | None] = [
        max((abs(row[at] or 0) for row in numbers), default=0) if table.stands_right(at) else None for at in range(len(table.columns))
    ]
    head = "".join(
        f"<th{'' if of is None else ' class=number'}>{html.escape(visible(name))}</th>" for name, of in zip(table.columns, most, strict=True)
    )
    rows = ["".join(map(_cell, texts, values, most)) for texts, values in zip(table.cells(), numbers, strict=True)]
    title = f"<h2>{html.escape(visible(table.title))}</h2>" if table.title else ""
    lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<section>{title}<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></section>"


def _cell(text: str, value: float | None, most: float | None) -> str:
    """`most`: the longest bar of a column of numbers; None: a column of texts."""
    if most is None:
        return f"<td{' class=long' if len(text) > _LONG_CHARS else ''}>{html.escape(text)}</td>"
    if value is None or not most:
        return f"<td class=number>{html.escape(text)}</td>"
    colour, part = "--alarm-soft" if value < 0 else "--new", round(100 * abs(value) / most)
    return f'<td class=number style="background: linear-gradient(to left, var({colour}) {part}%, transparent {part}%)">{html.escape(text)}</td>'


def _text(part: str | Line) -> str:
    return visible(part if isinstance(part, str) else "".join(span.text if isinstance(span, Styled) else span for span in part.spans))
