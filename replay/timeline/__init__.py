"""Who owned what when: the history of a group as tables, as one self-contained HTML page, and as one picture."""

from __future__ import annotations

from replay.timeline.build import Copy, Lifeline, Round, Timeline, Totals, build_timeline, changes_owner
from replay.timeline.document import timeline_document
from replay.timeline.page import render_page
from replay.timeline.picture import render_picture

__all__ = ["Copy", "Lifeline", "Round", "Timeline", "Totals", "build_timeline", "changes_owner", "render_page", "render_picture", "timeline_document"]
