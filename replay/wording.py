"""Codes and numbers of the log as words, the same for every reader: `explain`, `status`,
`timeline`, the demo and the worker's log.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.assignors import REASONS
from equipoise.assignors.common.plan import records_text
from equipoise.events.decisions import REACHED, ChangeJudged, MemberWarned, RestartPlanned
from equipoise.events.facts import ChangePlanned, ChangeVerdict, ExpectedCost, GroupConfigured
from equipoise.events.tasks import Lag, LagSentinel

if TYPE_CHECKING:
    from equipoise.log.parquet.manifests import Extent

MOST_NAMED = 10
"""Most names in one message."""

MACHINE_REASONS: Mapping[str, str] = {
    "lent": "{source} restarts and lends it to {destination}, which is caught up ({records} behind)",
    "restarting": "it waits for {destination}, which restarts",
    "restarted": "{destination} is back from its restart",
    "destination_restarts": "{destination} restarts",
    "not_wanted": "the target changed: the move to {destination} is no longer wanted",
    "destination_gone": "{destination} is gone",
    "destination_leaving": "{destination} is leaving itself",
    "destination_wiped": "{destination} has lost its copy",
    "source_stays": "{source} stays after all",
    "source_gone": "{source} is gone, so who gets it is decided anew",
    "task_gone": "the new topology no longer has the task",
    "stalled": "the copy on {destination} got no nearer for too long; its slot goes to another",
    "not_prepared": "the application of {destination} has not prepared it in time; its slot goes to another",
    "outpaced": "{destination} restores it too slowly: the slot goes to a copy that will be ready far sooner",
    "reconfigured": "the new configuration has fewer warm-up slots",
}
"""Reason code of the machine -> text. The codes of assignors are in `equipoise.assignors.REASONS`.
"""

CAUSES: Mapping[str, str] = {
    "start": "the initial delay was over",
    "join": "a member joined",
    "leave": "a member left",
    "expiry": "a member was not heard of for its session timeout",
    "expelled": "a member did not give up a task in time and was expelled",
    "restart_intended": "a member is about to stop, and will be back",
    "restarting": "a member has stopped, and will be back",
    "restart_cancelled": "a member stays that was to restart",
    "not_back": "a member was not back from its restart in time",
    "leave_intended": "a member said that it wants to leave",
    "leave_requested": "members were asked to leave",
    "deal_requested": "an operator asked for a new deal",
    "leave_cancelled": "a member said that it stays",
    "leave_withdrawn": "members were asked to stay after all",
    "overdue": "a leaving member's drain timeout passed",
    "scheduled": "the time was over for which lost tasks, moves or new members were to wait",
    "topology": "a new topology was declared",
    "configured": "the configuration changed",
    "racks": "replicas were seen in other racks, or partitions with other traffic",
    "wiped": "a member lost a copy",
    "ready": "a copy was caught up",
    "handover": "a task was given up",
    "stalled": "a warm-up got no nearer for too long",
    "outpaced": "a warm-up gave its slot to a copy that will be ready far sooner",
    "unblocked": "the back-off of a warm-up was over",
    "recovered": "a member that had kept crashing ran for its back-off",
    "probing": "the probing interval was over",
    "hold_over": "a former owner was proven to have stopped, so nobody has to wait for it",
    "asked": "the application asked for it",
    "follow-up": "revoked tasks were to be handed out",
    "unknown": "the log does not say",
}
"""Cause of a round -> text, for causes of equipoise (`CAUSES` of
`equipoise.statemachine.step_context`) and of recorded groups (`AssignmentObserved.cause`).
"""

EXPIRIES: Mapping[str, str] = {
    "session_timeout": "it was not heard of for {silent}, and its session is over",
    "superseded": "a later process has joined with its id",
    "proven_dead": "its process is proven dead",
    "revocation_timeout": "it did not give up a task in time",
}
"""`MemberExpired.cause` -> text."""

NOBODY = "nobody"


def preparing_text(thousandths: int | None, since_ms: int | None, *, has_failed: bool) -> str:
    """Returns ``preparing 40 % (since 12.0 s)``, and whether it failed before."""
    if thousandths is None or since_ms is None:
        return "preparing failed, to be tried again"
    return f"preparing {thousandths // 10} % (since {span_text(since_ms)}{', failed before' if has_failed else ''})"


def reason_text(
    code: str,
    *,
    source: str | None = None,
    destination: str | None = None,
    lag_records: int | None = None,
) -> str:
    """Returns the reason as a clause without a full stop. Unknown codes are returned unchanged.
    What a move saves across racks is not stored, and not said.
    """
    template = REASONS.get(code) or MACHINE_REASONS.get(code)
    if template is None:
        return code
    return template.format(source=source or NOBODY, destination=destination or NOBODY, records=records_text(lag_records), traffic="")


WARNING_TEXTS: Mapping[str, str] = {
    "rack_tag_differs": "its rack is {said} and its tag rack says {tag}: the tag is taken",
    "rack_tag_missing": "it has no tag rack, which rack_aware_tags asks for: its rack {said} is taken",
    "rack_not_in_tags": "its rack {said} is not among rack_aware_tags: copies are spread by the tags, traffic is counted by the rack",
}


def warning_text(warning: MemberWarned) -> str:
    """Returns the warning as a clause without a full stop."""
    return WARNING_TEXTS[warning.code].format(said=warning.said, tag=warning.tag)


def expiry_text(cause: str, silent_ms: int) -> str:
    """Returns why a member was expired, as a clause without a full stop. `silent_ms`: since its
    last fact.
    """
    return EXPIRIES.get(cause, cause).format(silent=span_text(silent_ms))


def restart_text(planned: RestartPlanned) -> str:
    """Returns what the leader does for a member that will be back, as a clause without a full stop."""
    within = f"{span_text(planned.back_within_ms)}, {'as it stated' if planned.stated else 'by what restarts took before'}"
    if planned.choice == "turn":
        return f"the restarts before it come first; it will be back within {within}"
    restore = "an unknown time" if planned.restore_ms is None else span_text(planned.restore_ms)
    other = f"others would restore {counted(planned.restore_records, 'record')} in {restore}"
    if planned.choice == "drain":
        return f"its tasks move before it goes, because it will be away for {within}, and {other}"
    lent = f"{counted(len(planned.lent), 'task')} lent, " if planned.lent else ""
    return f"it will be back within {within}; {lent}{counted(len(planned.waiting), 'task')} waiting for it: {other}"


METRIC_TEXTS = {"unavailable_task_ms": "time without an owner", "moves": "moves", "rest_ms": "time until rest"}
OUTCOME_TEXTS = {
    "at_rest": "is over",
    "late": "was not over in time",
    "too_much": "costs too much",
    "replaced": "was followed by another one before it was over",
    "refused": "was refused",
}


def metric_text(metric: str, value: float) -> str:
    """Returns a cost by one of JUDGED_METRICS: ``12.0 task-s``, ``3 moves``, ``1 min 05 s``."""
    if metric == "unavailable_task_ms":
        return f"{value / 1_000:,.1f} task-s"
    return counted(round(value), "move") if metric == "moves" else span_text(round(value))


def interval_text(metric: str, low: float, high: float) -> str:
    """Returns an interval of a cost: ``0.0 task-s to 1.2 task-s``, ``3 moves``, ``rest after 12.0 s
    to 1 min 05 s``.
    """
    first, last = metric_text(metric, low), metric_text(metric, high)
    return f"{'rest after ' if metric == 'rest_ms' else ''}{first if first == last else f'{first} to {last}'}"


def costs_text(expected: Iterable[ExpectedCost]) -> str:
    """Returns the intervals of 95 %."""
    return ", ".join(interval_text(each.metric, each.low_95, each.high_95) for each in expected)


def planned_text(planned: ChangePlanned) -> str:
    """Returns what is going to be changed, why, and what that is expected to cost."""
    why = f", because {planned.why}" if planned.why else ""
    costs = [costs_text(planned.expected)] * bool(planned.expected)
    limit = [] if planned.most_unavailable_task_ms is None else [f"at most {metric_text('unavailable_task_ms', planned.most_unavailable_task_ms)}"]
    else_ = "; else the settings of before come back" if planned.or_undo else ""
    return f"{planned.what}{why}; expected: {', '.join([*costs, *limit]) or 'nothing was predicted'}{else_}"


def spent_text(judged: ChangeVerdict) -> str:
    """Returns what a change has cost: ``3.2 task-s, 4 moves, rest after 12.0 s``; "": nobody has
    counted it to its end.
    """
    if judged.outcome == "replaced" and not (judged.unavailable_task_ms or judged.moves or judged.rest_ms):
        return ""
    without = metric_text("unavailable_task_ms", judged.unavailable_task_ms)
    return f"{without}, {metric_text('moves', judged.moves)}, rest after {span_text(judged.rest_ms)}"


def judged_text(judged: ChangeJudged) -> str:
    """Returns the verdict on a change: ``is over: 3.2 task-s, 4 moves, rest after 12.0 s; as
    expected``.
    """
    costs = spent_text(judged)
    above, below = ([METRIC_TEXTS[each] for each in of if each in METRIC_TEXTS] for of in (judged.above, judged.below))
    said = ["more than the limit"] * ("limit" in judged.above)
    said += [f"more than expected: {', '.join(above)}"] * bool(above) + [f"less than expected: {', '.join(below)}"] * bool(below)
    undone = "; the settings of before come back" if judged.undone else ""
    return f"{OUTCOME_TEXTS[judged.outcome]}{': ' * bool(costs)}{costs}{'; ' * bool(said)}{'; '.join(said)}{undone}"


def under_way_text(verdict: str | None) -> str:
    """Returns ``, moving``, for a title; "": the last round found nothing to do. That alone says
    not that the group is well.
    """
    return f", {verdict}" if verdict and verdict != REACHED else ""


def cause_text(cause: str) -> str:
    return CAUSES.get(cause, cause)


def lag_text(lag: Lag | None) -> str:
    """Returns a number of records, ``runs it``, ``unknown``, or ``no copy``."""
    if lag is None:
        return "no copy"
    if isinstance(lag, LagSentinel):
        return "runs it" if lag is LagSentinel.ACTIVE else "unknown"
    return f"{lag:,}"


def lag_form(lag: Lag | None) -> int | str | None:
    """Returns a lag for a JSON document: a number of records, "active", "unknown", or None for no
    report.
    """
    return lag.value if isinstance(lag, LagSentinel) else lag


def clock_text(append_ms: int) -> str:
    """Returns the time of day in UTC with milliseconds, as in ``05:15:12.033``."""
    return _utc(append_ms).strftime("%H:%M:%S.") + f"{append_ms % 1_000:03}"


def day_text(append_ms: int) -> str:
    """Returns ``2026-11-20 05:15:12 UTC``."""
    return _utc(append_ms).strftime("%Y-%m-%d %H:%M:%S UTC")


def begins_text(begins_offset: int, append_ms: int) -> str:
    """Says that a log begins at a base."""
    return f"read from the base at offset {begins_offset}, {day_text(append_ms)}; before it: the archive"


def extent_text(extent: Extent) -> str:
    """Says up to where an archive was read, and whether that is all that it had."""
    read = extent.read
    shown = ", ".join(f"partition {each.partition} up to offset {each.next_offset:,}" for each in read[:MOST_NAMED])
    more = f" and {len(read) - MOST_NAMED:,} more" if len(read) > MOST_NAMED else ""
    unproven = [str(each.partition) for each in read if each.manifest is None]
    partitions = counted(extent.expected, "partition")
    text = f"read {len(read):,} of {partitions}: {shown}{more}"
    if not unproven:
        return f"{text}; a manifest proves each end"
    which = "each of them" if len(unproven) == len(read) else f"partition {', '.join(unproven[:MOST_NAMED])}"
    return f"{text}; nothing proves the end of {which}: an archive of an earlier build, or a damaged one"


def _utc(append_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(append_ms // 1_000, tz=dt.UTC)


def span_text(ms: int) -> str:
    """Returns a duration with its significant digits: ``0``, ``12 ms``, ``3.2 s``, ``5 min 03 s``,
    ``2 h 05 min``.
    """
    if ms < 0:
        return f"-{span_text(-ms)}"
    if ms < 1_000:
        return f"{ms} ms" if ms else "0"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    seconds = ms // 1_000
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3_600} h {seconds % 3_600 // 60:02} min"


def share_text(millionths: int) -> str:
    """Returns a part of a fair share of the load (`equipoise.assignors.load_balanced.weights`), as
    in ``131 %``.
    """
    return f"{millionths / 10_000:.0f} %"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Returns ``1 task``, ``2 tasks``, ``1,204 tasks``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def names_text(groups: Collection[str]) -> str:
    """Returns ``2 groups (clicks, orders)``, with the first ten names."""
    names = ", ".join([*sorted(groups)[:MOST_NAMED], *(["..."] if len(groups) > MOST_NAMED else [])])
    return counted(len(groups), "group") + (f" ({names})" if names else "")


def groups_text(groups: Iterable[str], what: str = "it") -> str:
    """Returns which groups `what`, a log or a recording, holds instead of the requested one."""
    names = sorted(groups)
    if not names:
        return f"{what} holds no group yet"
    return f"{what} holds {', '.join(map(repr, names[:MOST_NAMED]))}{' and more' if len(names) > MOST_NAMED else ''}"


def setting_values(config: GroupConfigured) -> dict[str, Any]:
    """Returns every setting of a configuration by name: ``assignor`` (``NAME@VERSION``),
    ``solver``, ``led_by``, the group's settings, and ``options.NAME`` for each option of the
    assignor.
    """
    settings = attrs.asdict(config.knobs)
    options = settings.pop("options")
    head = {"assignor": f"{config.assignor}@{config.behaviour_version}", "solver": config.solver, "led_by": config.led_by}
    return {**head, **settings, **{f"options.{name}": value for name, value in options.items()}}


def setting_text(value: Any) -> str:
    """Returns the value of a setting as `equipoise configure --set` accepts it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
