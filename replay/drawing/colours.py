"""One set of colours for the page and the picture."""

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
"""Cause of a round -> colour; others are faint."""


def member_colour(number: int) -> str:
    """Of the member at this place in the order people sort names in. The first ten are chosen; then
    by golden sections around the wheel, without its reds, which alarm."""
    if number < len(_FIRST):
        return _FIRST[number]
    hue = 30 + number * 114_590 // 1_000 % 300
    return f"hsl({hue} 52% {46 + number % 3 * 8}%)"


def colour_rules() -> str:
    """CSS: the colours by name, light, and dark for who prefers that."""
    return resources.files("equipoise.replay.drawing").joinpath("colours.css").read_text(encoding="utf-8")
