"""One set of colours for the timeline page and the pictures."""

from __future__ import annotations

import colorsys
from importlib import resources

_FIRST = ("#2f74d0", "#e69f00", "#009e73", "#b8a0d0", "#7028e8", "#a04088", "#88b870", "#107028", "#d07010", "#e828e8")
"""They, and the red of alarms, differ for the colour-blind, too: tests/unit/replay/test_colours.py
"""

CAUSE_COLOURS = {
    "join": "#3fa56b",
    "start": "#3fa56b",
    "expiry": "#d92d3a",
    "expelled": "#d92d3a",
    "leave": "#f0932b",
    "leave_intended": "#f0932b",
    "leave_requested": "#f0932b",
    "overdue": "#f0932b",
    "probing": "#4a86e8",
    "ready": "#9a6bd6",
}
"""Cause of a round -> colour. Other causes are drawn faint."""


def member_colour(number: int) -> str:
    """Returns the colour of a member by its number, as ``#rrggbb``. The first ten were chosen so
    that any two differ most; others follow golden sections around the colour wheel, without the
    reds of alarms.
    """
    if number < len(_FIRST):
        return _FIRST[number]
    hue = 30 + number * 114_590 // 1_000 % 300
    parts = colorsys.hls_to_rgb(hue / 360, (44 + number % 3 * 5) / 100, 0.52)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)


def colour_rules() -> str:
    """Returns the CSS rules that name the colours, in light and dark."""
    return drawing_file("colours.css")


SCRIPTS = ("basics.js", "chart.js", "detail.js")
"""Modules of the picture, each after those that it imports."""
SHARED_FILES = (*SCRIPTS, "marks.css")


def drawing_file(name: str) -> str:
    """Returns a file that the timeline page and the console share."""
    return resources.files("equipoise.replay.drawing").joinpath(name).read_text(encoding="utf-8")
