"""One set of colours for the timeline page and the pictures."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Collection, Iterable
from importlib import resources
from itertools import chain, count

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


def colour_number(name: str, taken: Collection[int]) -> int:
    """Returns the number of a member's colour. It comes from the name, so that a member looks the
    same on every page and after its worker was replaced; another member may have taken it.
    """
    own = zlib.crc32(name.encode()) % len(_FIRST)
    return next(each for each in chain(range(own, len(_FIRST)), range(own), count(len(_FIRST))) if each not in taken)


def colour_numbers(names: Iterable[str]) -> dict[str, int]:
    """Returns the numbers of the colours of members, in their order: sort them, so that who joined
    first makes no difference.
    """
    found: dict[str, int] = {}
    taken: set[int] = set()
    for name in names:
        found[name] = colour_number(name, taken)
        taken.add(found[name])
    return found


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


def is_light(colour: str) -> bool:
    """Returns whether dark text is easier to read on ``#rrggbb`` than white, as `inkOn` of
    basics.js.
    """
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) > 0.18


def colour_rules() -> str:
    """Returns the CSS rules that name the colours, in light and dark."""
    return drawing_file("colours.css")


SCRIPTS = ("basics.js", "chart.js", "detail.js")
"""Modules of the picture, each after those that it imports."""
SHARED_FILES = (*SCRIPTS, "marks.css")


def drawing_file(name: str) -> str:
    """Returns a file that the timeline page and the console share."""
    return resources.files("equipoise.replay.drawing").joinpath(name).read_text(encoding="utf-8")
