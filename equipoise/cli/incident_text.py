"""An incident in words, and as a document: what `equipoise incident` prints."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.cli.screen import Line, Part, Table, bold
from equipoise.replay.all_clear import nothing_seen
from equipoise.replay.numbers import MOVES, NEVER_COMMITTED, UNAVAILABLE, WITHOUT_COMMITS
from equipoise.replay.wording import counted, day_text, span_text

if TYPE_CHECKING:
    from equipoise.replay.importers.evidence.files import ReadFile
    from equipoise.replay.incident import AtOnce, Counterfactual, GroupHistory, Incident, Rebalance
    from equipoise.replay.incident.long_restores import Restore

_MOST_STEPS = 12
_STEPS_OF_MANY, _STEPS_OF_LOOP = 4, 3
_MOST_RESTORES = 5
"""Of one incident, the longest."""
_MOST_ROWS, _MOST_TOLD = 30, 12
"""Incidents of a group in the table, and below it, those that cost most."""
_FEW = 40
"""So many are all shown and told."""
_MOST_PLACES = 4
_DAY_MS = 86_400_000


def group_parts(
    history: GroupHistory, what: str, found: list[Incident], otherwise: Mapping[Incident, Counterfactual | None], *, is_told: bool = True
) -> list[Part]:
    """Returns what happened to one group, in lines and a table; in one line unless `is_told`."""
    unavailable = sum(each.unavailable_ms for each in found)
    cost = f"{span_text(unavailable)} {WITHOUT_COMMITS}, summed over partitions"
    if not history.has_records:
        rebalancing = sum(each.rebalancing_ms for each in found)
        cost = f"{span_text(rebalancing)} rebalancing"
    times = [state.at_ms for state in history.states] or [0]
    seen = f"{counted(len(found), 'incident')}, {cost}" if found else nothing_seen(times[0], times[-1], history.missing)
    head = Line(bold(history.group), f"  {what}: {seen}")
    parts: list[Part] = [head]
    if not is_told:
        return parts
    if found:
        rows = found if len(found) <= _FEW else sorted(sorted(found, key=_cost, reverse=True)[:_MOST_ROWS], key=lambda each: each.begin_ms)
        parts += ["", _table(history, rows)]
        if len(rows) < len(found):
            parts.append(f"and {counted(len(found) - len(rows), 'more incident')} that cost less (--json has all)")
        told = rows if len(found) <= _FEW else sorted(sorted(rows, key=_cost, reverse=True)[:_MOST_TOLD], key=lambda each: each.begin_ms)
        for each in told:
            lines = story(each, otherwise.get(each), most_steps=_MOST_STEPS if len(found) <= _FEW else _STEPS_OF_MANY)
            parts += ["", Line(bold(_when(each.begin_ms)), f"  {headline(each)}"), *(f"  {text}" for text in lines)]
    if history.notes:
        parts += ["", *(f"also: {each}" for each in history.notes)]
    if history.missing:
        parts += ["", *(f"these files cannot tell {each}" for each in history.missing)]
    return parts


def _cost(each: Incident) -> tuple[int, int, int]:
    return each.unavailable_ms + each.rebalancing_ms, len(each.chain), -each.begin_ms


def _table(history: GroupHistory, rows: Sequence[Incident]) -> Table:
    if not history.has_records:
        columns: tuple[str, ...] = ("when", "what began it", "members", "rebalances", "rebalancing", "line")
        return Table(
            columns=columns,
            rows=[
                (
                    _when(each.begin_ms),
                    each.cause.value,
                    _few(each.members),
                    len(each.chain),
                    span_text(each.rebalancing_ms),
                    each.places[0] if each.places else "",
                )
                for each in rows
            ],
        )
    columns = ("when", "what began it", "members", "rebalances", MOVES, "partitions", "longest", WITHOUT_COMMITS)
    return Table(
        columns=columns,
        rows=[
            (
                _when(each.begin_ms),
                each.cause.value,
                _few(each.members),
                len(each.chain),
                each.moves,
                len({gap.partition for gap in each.gaps}),
                span_text(max((gap.unavailable_ms for gap in each.gaps), default=0)),
                span_text(each.unavailable_ms),
            )
            for each in rows
        ],
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _when(at_ms: int) -> str:
    """A day and time; of files without dates only the time."""
    return day_text(at_ms) if at_ms >= 30 * _DAY_MS else span_text(at_ms) if at_ms else "no time"


def story(incident: Incident, simulated: Counterfactual | None, *, most_steps: int = _MOST_STEPS) -> list[str]:
    """An incident in lines: its rebalances, advice, and what would have been."""
    most = min(most_steps, _STEPS_OF_LOOP) if incident.loop is not None else most_steps
    lines = [each.line() for each in incident.changes] + [_step(rebalance) for rebalance in incident.chain[:most]]
    if len(incident.chain) > most:
        lines.append(f"and {counted(len(incident.chain) - most, 'more rebalance')}")
    if incident.chain and incident.cause.name == "NOTHING":
        lines.append(_standing(incident))
    if not incident.chain and incident.gaps:
        lines.append(_standing(incident))
    lines += [_restore(each) for each in sorted(incident.restores, key=lambda each: -each.took_ms)[:_MOST_RESTORES]]
    if len(incident.restores) > _MOST_RESTORES:
        lines.append(f"and {counted(len(incident.restores) - _MOST_RESTORES, 'shorter restore')}")
    lines += dict.fromkeys(each.untold for each in incident.chain[:most] if each.untold)
    lines += [f"to avoid it: {text}" for text in incident.advice]
    return lines if simulated is None else lines + _simulated(simulated)


def _standing(incident: Incident) -> str:
    """Which partitions stood still, and whose they are."""
    worst: dict[str, int] = {}
    for gap in incident.gaps:
        worst[gap.partition] = max(worst.get(gap.partition, 0), gap.unavailable_ms)
    named = sorted(worst.items(), key=lambda pair: (-pair[1], pair[0]))
    text = ", ".join(f"{partition} {span_text(ms)}" for partition, ms in named[:6])
    more = f" and {counted(len(named) - 6, 'more partition')}" if len(named) > 6 else ""
    whose = f", of {', '.join(incident.whose)}" if incident.whose else ""
    if incident.cause.name == "UNCOMMITTED":
        came = counted(sum(gap.came for gap in incident.gaps), "record")
        return f"{NEVER_COMMITTED}: {text}{more}{whose}; {came} came meanwhile. Whether they were processed is not known"
    return f"stood still: {text}{more}{whose}"


def _restore(each: Restore) -> str:
    if each.is_over:
        return f"task {each.task}: {span_text(each.took_ms)} from its assignment to {each.member} to its first commit: its state was restored"
    what = "the restore is stuck, or the task hangs" if each.is_stuck else "its state is being restored"
    return f"task {each.task}: assigned to {each.member} {span_text(each.took_ms)} ago, and nothing committed since: {what}"


def _simulated(found: Counterfactual) -> list[str]:
    was = f"simulated as it was: {span_text(found.as_it_was_ms)} {UNAVAILABLE}; {span_text(found.measured_ms)} {WITHOUT_COMMITS} ({found.error:+.0%})"
    return [was, *(f"simulated with {each.change}: {span_text(each.unavailable_ms)} {UNAVAILABLE}" for each in found.otherwise)]


def headline(incident: Incident) -> str:
    """Returns what began an incident, who, and when it was over."""
    who = f" ({_few(incident.members)})" if incident.members else ""
    rolling = "; one of several restarts, one after the other" if incident.is_rolling else ""
    unusual = ""
    if incident.is_unusual:
        unusual = f"; unusual: {len(incident.before)} before cost {span_text(round(statistics.median(incident.before)))} at the median"
    lasted = span_text(incident.end_ms - incident.begin_ms)
    planned = "" if incident.planned is None else f"; planned: {incident.planned.what()}"
    if incident.loop is not None:
        loop = incident.loop
        often = counted(loop.times, "time") + (f", each {span_text(loop.period_ms)}" if loop.period_ms else "")
        others = ", ".join(f"{cause.value} ({count})" for cause, count in loop.causes[:4])
        return f"{counted(len(incident.chain), 'rebalance')} in {lasted}: {incident.cause.value}{who}, {often}; {others}{planned}"
    return f"{incident.cause.value}{who}, over after {lasted}{planned}{rolling}{unusual}"


def _step(rebalance: Rebalance) -> str:
    stopped = f", {span_text(rebalance.stopped_ms)} after its last commit" if rebalance.stopped_ms >= 0 else ""
    if rebalance.places:
        took = f", {span_text(rebalance.took_ms)}" if rebalance.took_ms else ""
        who = f" ({_few(rebalance.members)})" if rebalance.members else ""
        detail = f": {rebalance.detail}" if rebalance.detail else ""
        more = [f"joined: {_few(rebalance.joined)}"] if set(rebalance.joined) - set(rebalance.members) else []
        more += [f"gone: {_few(rebalance.gone)}"] if set(rebalance.gone) - set(rebalance.members) else []
        also = f"; {', '.join(more)}" if more else ""
        places = ", ".join(rebalance.places[:_MOST_PLACES])
        return f"{_when(rebalance.begin_ms)} generation {rebalance.number}{took}: {rebalance.cause.value}{who}{stopped}{detail}{also} [{places}]"
    changes = [f"{len(rebalance.moved)} moved"] if rebalance.moved else []
    changes += [f"{len(rebalance.unowned)} given up"] if rebalance.unowned else []
    changes += [f"{len(rebalance.given)} given out"] if rebalance.given else []
    changes += [f"joined: {', '.join(rebalance.joined)}"] if rebalance.joined else []
    changes += [f"gone: {', '.join(rebalance.gone)}"] if rebalance.gone else []
    changes += [f"state lost: {', '.join(rebalance.lost_state)}"] if rebalance.lost_state else []
    changes += [rebalance.detail] if rebalance.detail else []
    return f"{day_text(rebalance.end_ms)} generation {rebalance.number}: {rebalance.cause.value}{stopped}; {', '.join(changes) or 'nothing moved'}"


def together(each: AtOnce) -> Line:
    """Returns what came over several groups at once."""
    causes = ", ".join(f"{cause.value} ({count})" for cause, count in each.causes)
    text = f"  {len(each.groups)} groups at once ({_few(each.groups)}): {causes}; look for a broker, the network, or one deployment"
    return Line(bold(day_text(each.begin_ms)), text)


def file_parts(files: Sequence[ReadFile]) -> list[Part]:
    """Returns what each file was, and what of it was not understood."""
    found: list[Part] = []
    for each in files:
        is_log = each.understood and each.lines and "status" not in each.kind and "dump" not in each.kind
        times = "; it has no times, so nothing is said of how long" if is_log and not each.has_time else ""
        zone = "; its times name no zone, and are taken as UTC" if each.has_time and not each.has_zone and each.understood else ""
        found.append(
            f"read {each.name}: {each.kind or 'nothing about a group'}; {counted(each.lines, 'line')}, {each.understood:,} understood{times}{zone}"
        )
        if each.problem:
            found.append(f"  {each.name}: {each.problem}")
        if each.unknown:
            found.append(f"  not understood: {counted(each.unknown, 'line')} that may be about groups" + (", as" if each.shapes else ""))
            found += [f"  {count} as {each.name}:{line}: {shape:.110}" for shape, count, line in each.shapes]
    return found


def at_once_document(each: AtOnce) -> dict[str, Any]:
    """Returns what came over several groups at once, as JSON."""
    causes = {cause.name.lower(): count for cause, count in each.causes}
    return {"begin_ms": each.begin_ms, "end_ms": each.end_ms, "groups": list(each.groups), "causes": causes}


def _is_shown(attribute: attrs.Attribute[Any], _: object) -> bool:
    """Returns whether a document has a part of a rebalance; who tells it is in its text."""
    return attribute.name != "told_by"


def document(incident: Incident, simulated: Counterfactual | None) -> dict[str, Any]:
    """An incident as JSON."""
    loop = incident.loop
    return {
        "begin_ms": incident.begin_ms,
        "end_ms": incident.end_ms,
        "cause": incident.cause.name.lower(),
        "cause_text": incident.cause.value,
        "members": list(incident.members),
        "is_rolling": incident.is_rolling,
        "is_unusual": incident.is_unusual,
        "before_ms": list(incident.before),
        "unavailable_ms": incident.unavailable_ms,
        "rebalancing_ms": incident.rebalancing_ms,
        "moved": incident.moves,
        "places": list(incident.places),
        "loop": None
        if loop is None
        else {
            "times": loop.times,
            "period_ms": loop.period_ms,
            "causes": {cause.name.lower(): count for cause, count in loop.causes},
        },
        "rebalances": [
            {**attrs.asdict(each, filter=_is_shown), "cause": each.cause.name.lower(), "may_be": [cause.name.lower() for cause in each.may_be]}
            for each in incident.chain
        ],
        "gaps": [attrs.asdict(each) for each in incident.gaps],
        "restores": [{**attrs.asdict(each), "is_stuck": each.is_stuck} for each in incident.restores],
        "changes": [{"change": each.change.as_json(), "is_cause": each.is_cause} for each in incident.changes],
        "advice": list(incident.advice),
        "simulated": None if simulated is None else {**attrs.asdict(simulated), "error": round(simulated.error, 3)},
    }


def file_document(each: ReadFile) -> dict[str, Any]:
    """A file that was read, as JSON."""
    return {
        "file": each.name,
        "kind": each.kind,
        "lines": each.lines,
        "understood": each.understood,
        "not_understood": each.unknown,
        "examples": [{"line": line, "times": times, "form": shape} for shape, times, line in each.shapes],
        "clock_ahead_ms": each.shift_ms,
        "problem": each.problem,
    }


def markdown(parts: Sequence[Part]) -> list[Part]:
    """The same parts, as Markdown. What members and groups are called is shown as text."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Table):
            cells = [[escaped(str(cell)) for cell in row] for row in (part.columns, *part.rows)]
            lines = [f"| {' | '.join(row)} |" for row in cells]
            found += [lines[0], f"|{'---|' * len(part.columns)}", *lines[1:]]
        elif isinstance(part, Line):
            found.append(f"**{escaped(''.join(span if isinstance(span, str) else span.text for span in part.spans))}**")
        else:
            found += [f"- {escaped(part.strip())}"] if part.startswith("  ") else [escaped(part)]
    return found


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)
