"""The timeline as one self-contained HTML page: it holds its style, script and data, and loads
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import string
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from equipoise.replay.drawing.colours import CAUSE_COLOURS, SCRIPTS, colour_numbers, colour_rules, drawing_file, member_colour
from equipoise.replay.history import MoveStory
from equipoise.replay.numbers import LONGEST_GAP, MOVES, UNAVAILABLE_TASK_S, Unavailable
from equipoise.replay.owners import Condition
from equipoise.replay.timelines.build import as_people_sort
from equipoise.replay.timelines.values import Timeline, changes_owner
from equipoise.replay.wording import cause_text, counted, day_text, reason_text, span_text

MOST_ROWS = 2_000
"""Most tasks drawn. Of a larger group, those that changed most are drawn, and the page states the
number of the others.
"""

_CONDITIONS = {Condition.RUNNING: 0, Condition.STARTING: 1, Condition.SILENT: 2, Condition.NOBODY: 3}


def render_page(timeline: Timeline, simulated: Unavailable | None = None) -> str:
    """Returns the page as HTML. `simulated`: for how long tasks were unavailable in a simulation of
    the run, which its log does not show. Equal arguments give equal pages.
    """
    return render_data(page_data(timeline, simulated), f"{timeline.group} · equipoise timeline")


def render_data(drawn: Mapping[str, Any], title: str) -> str:
    """Returns the page that draws `drawn`, as `page_data` gives it. ``stories`` in it: headings
    with lines, below the picture.
    """
    assets = resources.files("equipoise.replay.timelines")
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False)
    script = _in_one_script([*map(drawing_file, SCRIPTS), assets.joinpath("page.js").read_text(encoding="utf-8")])
    return string.Template(assets.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        style=colour_rules() + drawing_file("marks.css") + assets.joinpath("page.css").read_text(encoding="utf-8"),
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=data.replace("<", "\\u003c"),  # so that no text in it can end the script element
    )


_NOT_IN_PAGES = re.compile(r"^export |^import .*\n|^ */\*\*(?:(?!\*/)[\s\S])*\*/\n|/\*\*.*?\*/ ?", re.MULTILINE)
"""Imports and exports, and the types in comments."""


def _in_one_script(modules: Iterable[str]) -> str:
    """Returns modules that import only those before them as one, for a page that loads nothing."""
    return "".join(_NOT_IN_PAGES.sub("", module) for module in modules)


def page_data(timeline: Timeline, simulated: Unavailable | None = None) -> dict[str, Any]:
    """Returns what the page's script draws, JSON-ready: times in milliseconds since `from`, members
    and tasks as indices, no member as -1. `simulated`: see `render_page`.
    """
    tasks = _drawn_tasks(timeline)
    index = {task: number for number, task in enumerate(tasks)}
    start_ms = timeline.from_ms
    owners = {each.member_id for each in timeline.intervals if each.member_id is not None}
    members = sorted({life.member_id for life in timeline.lifelines} | owners, key=as_people_sort)
    who = {member_id: number for number, member_id in enumerate(members)}
    numbers = timeline.numbers if timeline.numbers.keys() >= set(members) else colour_numbers(members)
    totals = timeline.totals()
    marked = timeline.window_totals()
    left_out = len(timeline.tasks) - len(tasks)
    leader = timeline.leader if timeline.led_by == "external" else f"{timeline.leader} ({timeline.assignor})"
    return {
        "title": f"{timeline.group}: who owned what when",
        "subtitle": f"{day_text(start_ms)}, {span_text(timeline.length_ms)}, {leader}; "
        f"{counted(len(timeline.tasks), 'task')}, {counted(len(members), 'member')}, {counted(timeline.facts, 'fact')}",
        "note": _note(left_out),
        "from": start_ms,
        "to": timeline.to_ms - start_ms,
        "cards": [
            *(
                [f"{each.task_s:,.1f}", f"{UNAVAILABLE_TASK_S}, {each.source}; {LONGEST_GAP} {span_text(each.longest_ms)}"]
                for each in (timeline.measured, simulated)
                if each is not None
            ),
            [f"{totals.moves:,}", f"{MOVES}: changes of owner"],
            [f"{totals.rounds:,}", "rounds"],
            [f"{totals.stopped_ms / 1_000:,.1f}", f"task-s {timeline.without}; {LONGEST_GAP} {span_text(totals.longest_ms)}"],
            [f"{totals.tasks_stopped:,} of {len(timeline.tasks):,}", "tasks ever without one"],
        ],
        "columns": ["window", "length", "rounds", MOVES, f"task-s {timeline.without}", "tasks", "longest"],
        "totals": [
            [
                each.label.replace("_", " "),
                span_text(each.to_ms - each.from_ms),
                each.rounds,
                each.moves,
                f"{each.stopped_ms / 1_000:,.1f}",
                each.tasks_stopped,
                span_text(each.longest_ms),
            ]
            for each in marked
        ],
        "caption": timeline.caption,
        "windows": [{"label": each.label, "from": each.start_ms - start_ms, "to": each.end_ms - start_ms} for each in timeline.windows],
        "members": members,
        "colours": [member_colour(numbers[member_id]) for member_id in members],
        "cause_colours": CAUSE_COLOURS,
        "tasks": [str(task) for task in tasks],
        "lives": [
            {
                "member": who[life.member_id],
                "incarnation": life.incarnation,
                "capacity": life.capacity,
                "from": life.joined_ms - start_ms,
                "to": None if life.ended_ms is None else life.ended_ms - start_ms,
                "silent": None if life.silent_ms is None or life.ended_ms is None else life.silent_ms - start_ms,
                "how": life.how.replace("_", " "),
            }
            for life in timeline.lifelines
        ],
        "intervals": [
            [
                index[each.task],
                -1 if each.member_id is None else who[each.member_id],
                _CONDITIONS[each.condition],
                each.from_ms - start_ms,
                each.to_ms - start_ms,
                each.offset,
                each.generation,
            ]
            for each in timeline.intervals
            if each.task in index
        ],
        "copies": [
            [
                index[copy.task],
                who[copy.member_id],
                int(copy.kind == "warmup"),
                copy.from_ms - start_ms,
                copy.to_ms - start_ms,
                None if copy.ready_ms is None else copy.ready_ms - start_ms,
            ]
            for copy in timeline.copies
            if copy.task in index and copy.member_id in who
        ],
        "moves": [_move(move, index[move.task], who, start_ms) for move in timeline.moves if move.task in index and move.destination in who],
        "rounds": [
            {
                "ms": each.append_ms - start_ms,
                "offset": each.offset,
                "generation": each.generation,
                "cause": each.cause,
                "text": cause_text(each.cause),
                "moves": each.moves,
                "members": each.members,
            }
            for each in timeline.rounds
        ],
        "lags": [
            [index[task], who[member_id], [[at_ms - start_ms, lag] for at_ms, lag in points]]
            for (task, member_id), points in timeline.lags.items()
            if task in index and member_id in who
        ],
        "imbalance": [[at_ms - start_ms, imbalance] for at_ms, imbalance in timeline.imbalance],
    }


def _drawn_tasks(timeline: Timeline) -> list[Any]:
    """Returns all tasks, or of too many those with the most intervals, in rising order."""
    tasks = list(timeline.tasks)
    if len(tasks) <= MOST_ROWS:
        return tasks
    changes = dict.fromkeys(tasks, 0)
    for interval in timeline.intervals:
        changes[interval.task] += 1
    return sorted(sorted(tasks, key=lambda task: (-changes[task], task))[:MOST_ROWS])


def _note(left_out: int) -> str:
    how = "Drag over the picture to look closer, double-click for the whole time; click a task for its moves and lags, a member to see it alone."
    return how if not left_out else f"{how} {counted(left_out, 'task')} that changed least are not drawn."


def _move(move: MoveStory, task: int, who: dict[str, int], start_ms: int) -> dict[str, Any]:
    first, last = move.steps[0], move.steps[-1]
    why = reason_text(move.reason, source=move.source, destination=move.destination, lag_records=first.lag_records)
    if first.state == "observed":
        why = f"its leader's round: {cause_text(first.cause)}"
    elif last.state == "cancelled" and last.reason != move.reason:
        why += f"; ended: {reason_text(last.reason, source=move.source, destination=move.destination, lag_records=last.lag_records)}"
    return {
        "task": task,
        "source": who.get(move.source, -1) if move.source is not None else -1,
        "destination": who[move.destination],
        "changes": changes_owner(move),
        "outcome": "moved" if changes_owner(move) else "placed" if move.outcome == "granted" else move.outcome,
        "offset": first.offset,
        "number": last.number,
        "steps": [[step.append_ms - start_ms, step.state, step.offset] for step in move.steps],
        "began": move.began_ms - start_ms,
        "ended": None if move.ended_ms is None else move.ended_ms - start_ms,
        "restored": move.restored_records,
        "why": why,
    }
