"""`equipoise timeline LOG --changes`: what was changed, what that was expected to cost, and did."""

from __future__ import annotations

from equipoise.cli.params import groups_of, read
from equipoise.cli.screen import Part, Screen, Table
from equipoise.events.errors import InputError
from equipoise.log import Log
from equipoise.operations.planned_changes import NOT_PLANNED, UNDER_WAY, KnownChange, known_changes
from equipoise.replay.wording import METRIC_TEXTS, day_text, metric_text, span_text

VERDICTS = {
    "at_rest": "as expected",
    "late": "not over in time",
    "too_much": "too much",
    "replaced": "followed by another",
    "refused": "refused",
    UNDER_WAY: UNDER_WAY,
    NOT_PLANNED: NOT_PLANNED,
}


def answer_changes(screen: Screen, log: Log, group: str | None) -> None:
    """Answers with the changes in the log. `group` None: of all groups. Raises InputError for a
    group that the log does not have.
    """
    found = known_changes(read(screen, log, "reading", group), group)
    if group is not None and not found and group not in groups_of(screen, log):
        raise InputError(f"--group: the log has no group {group!r}")
    parts: list[Part] = [changes_table(found)] if found else ["no change is in the log"]
    screen.answer({"changes": [each.as_json() for each in found]}, *parts)


def changes_table(found: list[KnownChange]) -> Table:
    """One row for each change, in the order of the log."""
    rows = [
        (each.group, day_text(each.append_ms), each.change_id or "", each.what(), _expected(each), _cost(each), _verdict(each))
        for each in found
    ]
    return Table(columns=("group", "at", "change", "what", "expected, 95 %", "was", "verdict"), rows=rows)


def _expected(change: KnownChange) -> str:
    if change.planned is None:
        return ""
    shown = [f"{metric_text(each.metric, each.low_95)} to {metric_text(each.metric, each.high_95)}" for each in change.planned.expected]
    most_ms = change.planned.most_unavailable_task_ms
    return ", ".join(shown + ([] if most_ms is None else [f"at most {metric_text('unavailable_task_ms', most_ms)}"]))


def _cost(change: KnownChange) -> str:
    judged = change.judged
    if judged is None:
        return ""
    costs = (metric_text("unavailable_task_ms", judged.unavailable_task_ms), metric_text("moves", judged.moves))
    return f"{', '.join(costs)}, rest after {span_text(judged.rest_ms)}"


def _verdict(change: KnownChange) -> str:
    judged = change.judged
    if judged is None:
        return change.verdict
    outside = [f"{METRIC_TEXTS.get(name, 'limit')} {'above' if name in judged.above else 'below'}" for name in (*judged.above, *judged.below)]
    said = VERDICTS[judged.outcome] if judged.outcome != "at_rest" or not outside else "over"
    return f"{said}{': ' * bool(outside)}{', '.join(outside)}{'; undone' if judged.undone else ''}"
