"""Timelines: the history of a group's owners as tables, as one self-contained HTML page, and as one
picture.
"""

from __future__ import annotations

from equipoise.replay.timelines.build import TimelineBuilder, build_timeline
from equipoise.replay.timelines.document import timeline_document
from equipoise.replay.timelines.history_costs import Cost, costs_of
from equipoise.replay.timelines.page import page_data, render_page
from equipoise.replay.timelines.picture import render_picture
from equipoise.replay.timelines.values import CopyInterval, Lifeline, Round, Timeline, Totals, changes_owner

__all__ = [
    "CopyInterval",
    "Cost",
    "Lifeline",
    "Round",
    "Timeline",
    "TimelineBuilder",
    "Totals",
    "build_timeline",
    "changes_owner",
    "costs_of",
    "page_data",
    "render_page",
    "render_picture",
    "timeline_document",
]
