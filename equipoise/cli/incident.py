"""`equipoise incident RECORDING --group G`: what happened to a group, why, and what it cost."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import TIME, check_recording
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.output import Kind, check_files, write_file
from equipoise.replay.wording import counted, day_text, groups_text, span_text

if TYPE_CHECKING:
    from equipoise.replay.importers.groups.dump import Dump
    from equipoise.replay.importers.groups.recording import Recording
    from equipoise.replay.incident import AtOnce, Counterfactual, GroupHistory, Incident, Rebalance
    from equipoise.replay.incident.restores import Restore

_MOST_STEPS = 12
_MOST_RESTORES = 5
"""Of one incident, the longest."""
_MOST_SIMULATED = 20
"""Of one group's incidents, those that cost most."""
_END_MS = 2**62
_FILE = click.Path(dir_okay=False, path_type=Path)


@command("incident", short_help="Explain what happened to the groups of a recorded cluster.")
@click.argument("recording", metavar="RECORDING")
@click.option("--group", metavar="GROUP", help="Group to explain.")
@click.option("--all", "every", is_flag=True, help="Explain all groups of the recording, those that stood still longest first.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a ticket.")
@click.option("--html", "html_path", type=_FILE, metavar="FILE", help="Also write an HTML page with a picture to FILE; needs --group.")
@click.option("--from", "from_", metavar="TIME", type=TIME, help="Leave out what was over before, as 2026-11-23T09:30 (UTC).")
@click.option("--to", "to", metavar="TIME", type=TIME, help="Leave out what began later.")
def incident(
    screen: Screen, recording: str, group: str | None, html_path: Path | None, from_: int | None, to: int | None, *, every: bool, markdown: bool
) -> None:
    """Read RECORDING (from `equipoise record`, or a recorded run: its folder or name) and show for
    each incident of a group what began it, the rebalances that followed, how long partitions with
    records stood still, and what would have avoided it.

    An incident begins with a member that joins, leaves, restarts or is lost, with other topics,
    partitions or another topology, or with work that stands still without any rebalance. Rebalances
    that it made necessary belong to it. Times are the coordinator's.

    \b
    Examples:
      equipoise incident cluster.db --group orders
      equipoise incident cluster.db --group orders --from 2026-11-23T09:00 --to 2026-11-23T10:00
      equipoise incident cluster.db --group orders --html incident.html
      equipoise incident cluster.db --all --json | jq '.groups[].incidents[].cause'
      equipoise incident scale-out --all
    """
    from equipoise.replay.incident import at_once, history_of, incidents
    from equipoise.replay.incident.page import render_incidents

    if every and group is not None:
        raise InputError("--group: name one group, or give --all, and not both")
    if from_ is not None and to is not None and to <= from_:
        raise InputError(f"--to: {day_text(to)} is not after --from, {day_text(from_)}; exchange them")
    if html_path is not None and every:
        raise InputError("--html: a page is of one group; name it with --group")
    check_files(("--html", html_path, Kind.PAGE))
    with _opened(recording) as opened:
        names = opened.groups()
        if group is None and not every:
            raise InputError(f"--group: name the group to explain, or give --all; {groups_text(names, recording)}")
        if group is not None and group not in names:
            raise InputError(f"--group: {recording} has no group {group!r}; {groups_text(names, recording)}")
        found = []
        for name in names if group is None else [group]:
            history = history_of(opened, name)
            if history.states:
                found.append((history, incidents(history, from_ or 0, _END_MS if to is None else to)))
    otherwise: dict[Incident, Counterfactual | None] = {}
    if group is not None:
        for history, mine in found:
            otherwise |= _simulate(screen, opened, history, mine)
    if html_path is not None:
        for history, mine in found:
            write_file("--html", html_path, Kind.PAGE, render_incidents(history, mine, {each: _story(each, otherwise.get(each)) for each in mine}))
            screen.remark(f"wrote {html_path}")
    if every:
        found.sort(key=lambda pair: (-sum(each.unavailable_ms for each in pair[1]), pair[0].group))
    together = at_once({history.group: mine for history, mine in found})
    parts: list[Part] = [_together(each) for each in together]
    documents: list[dict[str, Any]] = []
    for history, mine in found:
        kind = history.states[-1].group.kind.value
        shown = [_document(each, otherwise.get(each)) for each in mine]
        documents.append({"group": history.group, "kind": kind, "incidents": shown, "unread": history.unread})
        what = "adopted by members of equipoise, who commit elsewhere" if history.states[-1].group.is_adopted else kind
        parts += [*([""] if parts else []), *_parts(history.group, what, mine, otherwise), *(f"not read: {each}" for each in history.unread)]
    parts = parts or ["no group yet"]
    document = {"recording": recording, "at_once": [_at_once_document(each) for each in together], "groups": documents}
    screen.answer(document, *(_markdown(parts) if markdown else parts))


def _opened(place: str) -> Recording | Dump:
    from equipoise.replay.importers.groups.dump import Dump
    from equipoise.replay.importers.groups.recording import open_recording
    from equipoise.replay.importers.kafka_streams import Source, shipped_runs

    check_recording(place, *shipped_runs())
    folder = Path(place)
    if folder.is_dir() or (not folder.exists() and place in shipped_runs()):
        return Dump(Source(folder if folder.exists() else shipped_runs()[place]))
    return open_recording(place)


def _simulate(screen: Screen, recording: Recording | Dump, history: GroupHistory, found: list[Incident]) -> dict[Incident, Counterfactual | None]:
    from equipoise.replay.importers.groups.observed import GroupKind
    from equipoise.replay.importers.groups.source import source_of
    from equipoise.replay.incident.counterfactuals import counterfactual

    costly = sorted(found, key=lambda one: -one.unavailable_ms)[:_MOST_SIMULATED]
    if not history.states or history.states[-1].group.kind is not GroupKind.CLASSIC_STREAMS:
        return {each: counterfactual(history, each, found) for each in screen.track(costly, "simulating incidents", len(costly))}
    from equipoise.replay.incident.streams_counterfactuals import streams_counterfactuals  # loads the solver

    try:
        return {**streams_counterfactuals(source_of(recording, history.group), history, found)}
    except EquipoiseError as error:
        screen.remark(f"{history.group}: not simulated: {error}")
        return {}


def _at_once_document(each: AtOnce) -> dict[str, Any]:
    causes = {cause.name.lower(): count for cause, count in each.causes}
    return {"begin_ms": each.begin_ms, "end_ms": each.end_ms, "groups": list(each.groups), "causes": causes}


def _together(each: AtOnce) -> Line:
    causes = ", ".join(f"{cause.value} ({count})" for cause, count in each.causes)
    text = f"  {len(each.groups)} groups at once ({', '.join(each.groups)}): {causes}; look for a broker, the network, or one deployment"
    return Line(bold(day_text(each.begin_ms)), text)


def _document(incident: Incident, simulated: Counterfactual | None) -> dict[str, Any]:
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
        "moved": incident.moved,
        "rebalances": [{**attrs.asdict(each), "cause": each.cause.name.lower()} for each in incident.chain],
        "gaps": [attrs.asdict(each) for each in incident.gaps],
        "restores": [{**attrs.asdict(each), "is_stuck": each.is_stuck} for each in incident.restores],
        "advice": list(incident.advice),
        "simulated": None if simulated is None else {**attrs.asdict(simulated), "error": round(simulated.error, 3)},
    }


def _parts(group: str, kind: str, found: list[Incident], otherwise: Mapping[Incident, Counterfactual | None]) -> list[Part]:
    unavailable = sum(each.unavailable_ms for each in found)
    head = Line(bold(group), f"  {kind}: {counted(len(found), 'incident')}, {span_text(unavailable)} unavailable, summed over partitions")
    if not found:
        return [head]
    columns = ("when", "what began it", "members", "rebalances", "moved", "partitions", "longest", "unavailable")
    rows = [
        (
            day_text(each.begin_ms), each.cause.value, ", ".join(each.members), len(each.chain), each.moved,
            len({gap.partition for gap in each.gaps}), span_text(max((gap.unavailable_ms for gap in each.gaps), default=0)),
            span_text(each.unavailable_ms),
        )
        for each in found
    ]  # fmt: skip
    parts: list[Part] = [head, "", Table(columns=columns, rows=rows)]
    for each in found:
        parts += ["", Line(bold(day_text(each.begin_ms)), f"  {_what(each)}"), *(f"  {text}" for text in _story(each, otherwise.get(each)))]
    return parts


def _story(incident: Incident, simulated: Counterfactual | None) -> list[str]:
    """An incident in lines: its rebalances, advice, and what would have been."""
    lines = [_step(rebalance) for rebalance in incident.chain[:_MOST_STEPS]]
    if len(incident.chain) > _MOST_STEPS:
        lines.append(f"and {counted(len(incident.chain) - _MOST_STEPS, 'more rebalance')}")
    lines += [_restore(each) for each in sorted(incident.restores, key=lambda each: -each.took_ms)[:_MOST_RESTORES]]
    if len(incident.restores) > _MOST_RESTORES:
        lines.append(f"and {counted(len(incident.restores) - _MOST_RESTORES, 'shorter restore')}")
    lines += [f"to avoid it: {text}" for text in incident.advice]
    return lines if simulated is None else lines + _simulated(simulated)


def _restore(each: Restore) -> str:
    if each.is_over:
        return f"task {each.task}: {span_text(each.took_ms)} from its assignment to {each.member} to its first commit: its state was restored"
    what = "the restore is stuck, or the task hangs" if each.is_stuck else "its state is being restored"
    return f"task {each.task}: assigned to {each.member} {span_text(each.took_ms)} ago, and nothing committed since: {what}"


def _simulated(found: Counterfactual) -> list[str]:
    was = f"simulated as it was: {span_text(found.as_it_was_ms)} unavailable, {span_text(found.measured_ms)} measured ({found.error:+.0%})"
    return [was, *(f"simulated with {each.change}: {span_text(each.unavailable_ms)} unavailable" for each in found.otherwise)]


def _markdown(parts: Sequence[Part]) -> list[Part]:
    """The same parts, as Markdown. What members and groups are called is shown as text."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Table):
            cells = [[_escaped(str(cell)) for cell in row] for row in (part.columns, *part.rows)]
            lines = [f"| {' | '.join(row)} |" for row in cells]
            found += [lines[0], f"|{'---|' * len(part.columns)}", *lines[1:]]
        elif isinstance(part, Line):
            found.append(f"**{_escaped(''.join(span if isinstance(span, str) else span.text for span in part.spans))}**")
        else:
            found += [f"- {_escaped(part.strip())}"] if part.startswith("  ") else [_escaped(part)]
    return found


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def _what(incident: Incident) -> str:
    who = f" ({', '.join(incident.members)})" if incident.members else ""
    rolling = "; one of several restarts, one after the other" if incident.is_rolling else ""
    unusual = ""
    if incident.is_unusual:
        unusual = f"; unusual: {len(incident.before)} before cost {span_text(round(statistics.median(incident.before)))} at the median"
    return f"{incident.cause.value}{who}, over after {span_text(incident.end_ms - incident.begin_ms)}{rolling}{unusual}"


def _step(rebalance: Rebalance) -> str:
    stopped = f", {span_text(rebalance.stopped_ms)} after its last commit" if rebalance.stopped_ms >= 0 else ""
    changes = [f"{len(rebalance.moved)} moved"] if rebalance.moved else []
    changes += [f"{len(rebalance.unowned)} given up"] if rebalance.unowned else []
    changes += [f"joined: {', '.join(rebalance.joined)}"] if rebalance.joined else []
    changes += [f"gone: {', '.join(rebalance.gone)}"] if rebalance.gone else []
    changes += [f"state lost: {', '.join(rebalance.lost_state)}"] if rebalance.lost_state else []
    return f"{day_text(rebalance.end_ms)} generation {rebalance.number}: {rebalance.cause.value}{stopped}; {', '.join(changes) or 'nothing moved'}"
