"""One set of colours for the timeline page and the pictures."""

from __future__ import annotations

from importlib import resources

_FIRST = ("#4a86e8", "#f0932b", "#3fa56b", "#9a6bd6", "#1fb0b5", "#c9a50a", "#a8734d", "#e06bb0", "#74849b", "#86b01e")

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
    """Returns the colour of the member at this place in the sorted names. The first ten are chosen
    by hand; others follow golden sections around the colour wheel, without the reds of alarms.
    """
    if number < len(_FIRST):
        return _FIRST[number]
    hue = 30 + number * 114_590 // 1_000 % 300
    return f"hsl({hue} 52% {46 + number % 3 * 8}%)"


def colour_rules() -> str:
    """Returns the CSS rules that name the colours, in light and dark."""
    return resources.files("equipoise.replay.drawing").joinpath("colours.css").read_text(encoding="utf-8")
