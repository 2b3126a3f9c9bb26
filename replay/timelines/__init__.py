"""Timelines: the history of a group's owners as tables, as one self-contained HTML page, and as one
picture.
"""

from __future__ import annotations

from equipoise.replay.timelines.build import CopyInterval, Lifeline, Round, Timeline, Totals, build_timeline, changes_owner
from equipoise.replay.timelines.document import timeline_document
from equipoise.replay.timelines.page import render_page
from equipoise.replay.timelines.picture import render_picture

__all__ = [
    "CopyInterval",
    "Lifeline",
    "Round",
    "Timeline",
    "Totals",
    "build_timeline",
    "changes_owner",
    "render_page",
    "render_picture",
    "timeline_document",
]
