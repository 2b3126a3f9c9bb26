"""The timeline as one JSON document with every table in full."""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.replay.explanation import move_document
from equipoise.replay.timelines.values import Timeline


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Returns everything in `timeline`, with tasks in text form. Times are wall time of the log in
    milliseconds.
    """
    stopped = timeline.stopped(timeline.from_ms, timeline.to_ms)
    return {
        "group": timeline.group,
        "log_id": timeline.log_id,
        "led_by": timeline.led_by,
        "assignor": timeline.assignor,
        "from_ms": timeline.from_ms,
        "to_ms": timeline.to_ms,
        "facts": timeline.facts,
        "log_differs_at": timeline.first_divergence,
        "totals": timeline.totals().document(),
        "measured": None if timeline.measured is None else attrs.asdict(timeline.measured),
        "windows": [each.document() for each in timeline.window_totals()] if timeline.windows else [],
        "members": [attrs.asdict(life) for life in timeline.lifelines],
        "intervals": [
            {**attrs.asdict(each, recurse=False), "task": str(each.task), "condition": each.condition.value} for each in timeline.intervals
        ],
        "copies": [{**attrs.asdict(copy, recurse=False), "task": str(copy.task)} for copy in timeline.copies],
        "moves": [move_document(move, timeline.to_ms) for move in timeline.moves],
        "rounds": [attrs.asdict(each) for each in timeline.rounds],
        "not_running": [
            {"task": str(task), "stretches": [{"from_ms": since, "to_ms": to} for since, to in stretches]} for task, stretches in stopped.items()
        ],
        "lags": [
            {"task": str(task), "member_id": member_id, "points": [list(point) for point in points]}
            for (task, member_id), points in timeline.lags.items()
        ],
        "imbalance": [{"append_ms": at_ms, "tasks": imbalance} for at_ms, imbalance in timeline.imbalance],
        "verdicts": [{"append_ms": at_ms, "verdict": verdict} for at_ms, verdict in timeline.verdicts],
        "rejections": timeline.rejections,
    }
