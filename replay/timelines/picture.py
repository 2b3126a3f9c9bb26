"""The timeline as one SVG picture for a document, drawn without a browser.

From the top: the marked windows and every round, tasks as rows coloured by owner, the number of
tasks without a running owner, the time.
"""

from __future__ import annotations

import html
import math
import re
from collections import defaultdict
from typing import Any

from equipoise.replay.drawing.colours import CAUSE_COLOURS, colour_rules, is_light
from equipoise.replay.timelines.page import page_data
from equipoise.replay.timelines.values import Timeline
from equipoise.replay.wording import clock_text, counted

WIDTH = 920
"""Pixels: about the width at which a README is shown."""
_LEFT, _RIGHT = 88, 908
"""Left and right end of the time axis, in pixels."""
_TOP = 34
_CURVE = 30
_MOST_NAMES = 12
"""Members named in the legend."""

_TEXT_WIDE, _HEAD_WIDE, _TITLE_WIDE = 6.6, 7.2, 9.7
"""Pixels of one character of a name, a heading and the title, in the widest of the usual fonts."""
_NAME_HIGH = 12
"""Least distance of two names' baselines, in pixels."""

_RUNNING, _STARTING, _SILENT, _NOBODY = range(4)

_RULES = """
text { font: 10.5px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
text.title { font-size: 14px; font-weight: 600; fill: var(--ink); }
text.head { font-weight: 600; }
text.name { font-size: 10px; fill: var(--ink); }
text.in { font-size: 8.5px; font-weight: 600; fill: #fff; }
text.dark { fill: #10151c; }
.end { text-anchor: end; }
.line { stroke: var(--line); }
.band { fill: var(--band); }
.silent { fill: var(--silent); }
.nobody { fill: var(--alarm); }
.curve { fill: var(--alarm-soft); stroke: var(--alarm); }
"""

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400)
"""Distances between two labels of the time axis, in seconds."""


def render_picture(timeline: Timeline, *, title: str | None = None, to_ms: int | None = None) -> str:
    """Returns the SVG as text. Equal timelines give equal pictures.

    `title` None: the group and its leader. `to_ms`: wall time at the right edge, so that two
    pictures can have one scale; None, or before the log's end: that end.
    """
    leader = timeline.leader if timeline.led_by == "external" else f"{timeline.leader} ({timeline.assignor})"
    totals = timeline.totals()
    summary = f"{counted(totals.moves, 'change')} of owner"
    until_ms = max(timeline.to_ms, to_ms or 0) - timeline.from_ms
    return _Picture(page_data(timeline), title or f"{timeline.group}, {leader}", summary, until_ms).svg()


class _Picture:
    """One picture under way, drawn from the top down. `data`: result of `page_data`."""

    def __init__(self, data: dict[str, Any], title: str, summary: str, until_ms: int) -> None:
        self.data = data
        self.colours: list[str] = data["colours"]
        self.title = title
        self.summary = summary
        self.until_ms = max(1, until_ms)
        self.parts: list[str] = []

    def svg(self) -> str:
        tasks = self.data["tasks"]
        high = 12 if len(tasks) <= 60 else 5 if len(tasks) <= 200 else 2
        rows, below = self._rows(_TOP + 34, high)
        bottom = below + 10 + _CURVE
        self._backdrop(bottom)
        self._rounds()
        self.parts += rows
        self._curve(below + 10)
        height = self._legend(bottom + 36) + 8
        summary = markup(self.summary)
        title = markup(cut(self.title, _RIGHT - 24 - _TEXT_WIDE * len(self.summary), _TITLE_WIDE))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
                MARK,
                f"<title>{title}: {summary}</title>",
                f"<style>\n{colour_rules()}{_RULES.lstrip()}</style>",
                "<defs>",
                *(_hatch(number, colour) for number, colour in enumerate(self.colours)),
                "</defs>",
                '<rect width="100%" height="100%" rx="8" fill="var(--card)"/>',
                label(12, 21, title, "title"),
                label(_RIGHT, 21, summary, "name end"),
                *self.parts,
                "</svg>",
                "",
            ]
        )

    def x(self, ms: int) -> float:
        return _LEFT + min(max(ms, 0), self.until_ms) * (_RIGHT - _LEFT) / self.until_ms

    def extent(self, since_ms: int, until_ms: int) -> tuple[float, float]:
        """(left, width); what is too short to see is drawn as 0.7 wide."""
        left = self.x(since_ms)
        return left, max(0.7, self.x(until_ms) - left)

    def _paint(self, member: int, condition: int) -> str:
        """The attributes of a bar."""
        if condition == _RUNNING:
            return f'fill="{self.colours[member]}"'
        if condition == _STARTING:
            return f'fill="url(#h{member})"'
        return 'class="silent"' if condition == _SILENT else 'class="nobody"'

    def _backdrop(self, bottom: int) -> None:
        """Draws windows, every second one shaded, and the time axis."""
        for number, window in enumerate(self.data["windows"]):
            left, width = self.extent(window["from"], window["to"])
            if number % 2 == 0:
                self.parts.append(f'<rect x="{short(left)}" y="{_TOP}" width="{short(width)}" height="{bottom - _TOP}" class="band"/>')
            self.parts.append(label(left + 4, _TOP + 12, markup(cut(window["label"].replace("_", " "), width - 6, _HEAD_WIDE)), "head"))
        for ms in self._ticks():
            self.parts.append(f'<path d="M{short(self.x(ms))} {_TOP + 16}V{bottom}" class="line"/>')
            if self.x(ms) < _RIGHT - 44:
                self.parts.append(label(self.x(ms) + 3, bottom + 13, clock_text(self.data["from"] + ms)[:8]))

    def _ticks(self) -> list[int]:
        most = (_RIGHT - _LEFT) // 80
        least_s = math.ceil(self.until_ms / most / 1_000)
        step_s = next((step for step in _STEPS_S if step >= least_s), math.ceil(least_s / 86_400) * 86_400)
        return list(range(-self.data["from"] % (step_s * 1_000), self.until_ms + 1, step_s * 1_000))

    def _rounds(self) -> None:
        self.parts.append(label(_LEFT - 8, _TOP + 27, "rounds", "head end"))
        marks: dict[str, list[str]] = defaultdict(list)
        for each in self.data["rounds"]:
            marks[CAUSE_COLOURS.get(each["cause"], "var(--faint)")].append(f"M{short(self.x(each['ms']))} {_TOP + 27}l-3-8h6z")
        self.parts += [f'<path d="{"".join(shapes)}" fill="{colour}"/>' for colour, shapes in marks.items()]

    def _rows(self, top: int, high: int) -> tuple[list[str], int]:
        """Returns the drawn rows of the tasks and their bottom. One path for each colour, because
        thousands of rectangles make a picture slow and large.
        """
        bar = max(1, high - 3)
        places: list[int] = []
        texts: list[str] = []
        before = ""
        labelled = top - _NAME_HIGH
        y = top
        for name in self.data["tasks"]:
            part = name.split("_")[0]
            y += 5 if before not in ("", part) else 0
            if (high > 8 or before != part) and y - labelled >= _NAME_HIGH:
                texts.append(label(_LEFT - 8, y + 8.5, markup(name), "name end"))
                labelled = y
            before = part
            places.append(y)
            y += high
        shapes: dict[str, list[str]] = defaultdict(list)
        for task, member, condition, since_ms, until_ms, *_ in self.data["intervals"]:
            left, width = self.extent(since_ms, until_ms)
            shapes[self._paint(member, condition)].append(f"M{short(left)} {places[task]}h{short(width)}v{bar}h-{short(width)}z")
            name = "" if member < 0 else self.data["members"][member]
            if high > 8 and condition == _RUNNING and width > 8 + 6 * len(name):
                texts.append(label(left + 4, places[task] + 7.5, markup(name), "in dark" if is_light(self.colours[member]) else "in"))
        for task, member, is_warmup, since_ms, until_ms, *_ in self.data["copies"]:
            if is_warmup and high > 8:
                left, width = self.extent(since_ms, until_ms)
                shapes[f'fill="{self.colours[member]}"'].append(f"M{short(left)} {places[task] + bar + 0.6}h{short(width)}v1.4h-{short(width)}z")
        return [*(f'<path d="{"".join(drawn)}" {paint}/>' for paint, drawn in sorted(shapes.items())), *texts], y

    def _curve(self, top: int) -> None:
        """Draws the number of tasks without a running owner."""
        changes: dict[int, int] = defaultdict(int)
        for _, _, condition, since_ms, until_ms, *_ in self.data["intervals"]:
            if condition != _RUNNING:
                changes[since_ms] += 1
                changes[until_ms] -= 1
        points: list[tuple[int, int]] = []
        level = 0
        for ms, change in sorted(changes.items()):
            level += change
            points.append((ms, level))
        most = max((level for _, level in points), default=0)
        bottom = top + _CURVE
        self.parts.append(label(_LEFT - 8, top + 14, "not running", "head end"))
        self.parts.append(label(_LEFT - 8, top + 27, f"most {most:,}", "end"))
        drawn = "".join(f"H{short(self.x(ms))}V{short(bottom - level * _CURVE / max(1, most))}" for ms, level in points)
        self.parts.append(f'<path d="M{_LEFT} {bottom}{drawn}H{short(self.x(self.data["to"]))}V{bottom}z" class="curve"/>')

    def _legend(self, y: int) -> int:
        """Draws the keys, in as many lines as they need. Returns the baseline of the last line."""
        members = self.data["members"]
        keys = [(cut(name, _RIGHT - _LEFT - 26, _TEXT_WIDE), f'fill="{self.colours[number]}"') for number, name in enumerate(members[:_MOST_NAMES])]
        if len(members) > _MOST_NAMES:
            keys.append((f"and {len(members) - _MOST_NAMES:,} more", 'fill="none"'))
        if any(copy[2] for copy in self.data["copies"]):
            keys.append(("warm-up (thin)", 'fill="var(--faint)"'))
        conditions = {each[2] for each in self.data["intervals"]}
        for condition, text in ((_STARTING, "granted, starting"), (_SILENT, "owner silent"), (_NOBODY, "nobody")):
            if condition in conditions:
                keys.append((text, self._paint(0, condition)))
        x = float(_LEFT)
        for text, paint in keys:
            wide = 14 + _TEXT_WIDE * len(text)
            if x > _LEFT and x + wide > _RIGHT:
                x, y = float(_LEFT), y + 15
            high = 2 if text.endswith("(thin)") else 8
            self.parts.append(f'<rect x="{short(x)}" y="{y - 4 - high / 2:g}" width="10" height="{high}" {paint}/>')
            self.parts.append(label(x + 14, y, markup(text), "name"))
            x += wide + 12
        return y


def _hatch(member: int, colour: str) -> str:
    return (
        f'<pattern id="h{member}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="{colour}" fill-opacity=".22"/><rect width="2.4" height="5" fill="{colour}"/></pattern>'
    )


MARK = "<!-- made by equipoise -->"
"""Second line of every picture: a file that has it may be replaced by another picture."""


def markup(text: str) -> str:
    """Returns `text` escaped for XML; control characters become U+FFFD."""
    return html.escape(re.sub(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def label(x: float, y: float, content: str, css: str = "") -> str:
    """Returns a text element. `content` is already markup."""
    styled = f' class="{css}"' if css else ""
    return f'<text x="{short(x)}" y="{short(y)}"{styled}>{content}</text>'


def short(number: float) -> str:
    """Returns `number` to a tenth of a pixel: ``12``, ``12.5``."""
    return f"{number:.1f}".removesuffix(".0")


def cut(text: str, width: float, char_width: float) -> str:
    """Returns the beginning of `text` that fits into `width` pixels when each character takes
    `char_width`; an ellipsis marks what is missing. Returns "" when less than three characters fit.
    """
    most = int(width / char_width)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…" if most > 3 else ""
