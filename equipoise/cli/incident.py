"""`equipoise incident FILE...`: what happened to groups, why, and what it cost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.output import Kind, check_files, write_file
from equipoise.cli.params import TIME, check_recording
from equipoise.cli.screen import Part, Screen
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.log import is_log
from equipoise.replay.wording import counted, day_text, groups_text

if TYPE_CHECKING:
    from equipoise.replay.importers.evidence.files import Evidence
    from equipoise.replay.importers.groups.cluster_recording import ClusterRecording
    from equipoise.replay.importers.groups.dump import Dump
    from equipoise.replay.incident import Counterfactual, GroupHistory, Incident
    from equipoise.replay.known_changes import KnownChange

_MOST_SIMULATED = 20
"""Of one group's incidents, those that cost most."""
_END_MS = 2**62
_BESIDE_A_PAGE = 3
_MOST_AT_ONCE = 12
_FEW_GROUPS, _MOST_TOLD, _MOST_LISTED = 20, 3, 30
"""Of more groups, so many are told; of others up to the next there is a line."""
_FILE = click.Path(dir_okay=False, path_type=Path)


@command("incident", short_help="Explain what happened to groups, from logs or a recording.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--group", metavar="GROUP", help="Group to explain.")
@click.option("--all", "every", is_flag=True, help="Explain all groups, those that stood still longest first.")
@click.option("--markdown", "is_markdown", is_flag=True, help="Print Markdown, for a ticket.")
@click.option("--html", "html_path", type=_FILE, metavar="FILE", help="Also write an HTML page with a picture to FILE; of one group.")
@click.option("--from", "from_", metavar="TIME", type=TIME, help="Leave out what was over before, as 2026-11-23T09:30 (UTC).")
@click.option("--until", "to", metavar="TIME", type=TIME, help="Leave out what began later.")
@click.option("--redact", is_flag=True, help="Replace names of groups, topics, members and hosts, to show it to others.")
def incident(
    screen: Screen,
    files: tuple[str, ...],
    group: str | None,
    html_path: Path | None,
    from_: int | None,
    to: int | None,
    *,
    every: bool,
    is_markdown: bool,
    redact: bool,
) -> None:
    """Read FILES, in any mix, and show what happened to a group. Of each incident: what began it,
    who, the rebalances that followed, how long nobody could read, and what would have avoided it.

    A FILE is a log of a broker or a client (Java, Kafka Streams, Kafka Connect, librdkafka,
    aiokafka, kafka-python, Faust, franz-go, sarama). Or kafka-consumer-groups --describe printed
    it, or Kafka Connect's REST or Burrow answered it. Or it is a recording (`equipoise record`), or
    a recorded run (its folder or name). `-` is standard input. Kinds are recognised; gzip is
    unpacked. Each statement names the lines that it rests on. A log of equipoise beside them (a
    file, or kafka://host:port) adds what was changed meanwhile, its expected cost, and the verdict.

    An incident begins with a member that joins, leaves, restarts or is lost, or with other topics,
    partitions or another topology. Or work stands still without any rebalance. Rebalances that it
    made necessary belong to it. Times are the coordinator's.

    \b
    Examples:
      equipoise incident server.log
      equipoise incident server.log consumer-1.log consumer-2.log.gz --group orders
      equipoise incident cluster.db --group orders --from 2026-11-23T09:00 --until 2026-11-23T10:00
      equipoise incident cluster.db server.log --group orders --html incident.html
      equipoise incident cluster.db kafka://127.0.0.1:9092 --group orders
      equipoise incident cluster.db --all --json | jq '.groups[].incidents[].cause'
    """
    from equipoise.cli.incident_text import (
        at_once_document,
        document,
        file_document,
        file_parts,
        group_parts,
        markdown,
        story,
        together,
    )
    from equipoise.cli.redaction import Redactor
    from equipoise.replay.incident import at_once, incidents
    from equipoise.replay.incident.page import render_incidents

    if every and group is not None:
        raise InputError("--group: name one group, or give --all, and not both")
    if from_ is not None and to is not None and to <= from_:
        raise InputError(f"--until: {day_text(to)} is not after --from, {day_text(from_)}; exchange them")
    if html_path is not None and every:
        raise InputError("--html: a page is of one group; name it with --group")
    check_files(("--html", html_path, Kind.PAGE))
    changes = _changes(screen, files, group, redact=redact)
    places, logs = _sorted_out([each for each in files if not is_log(each)])
    if not places and not logs:
        raise InputError(f"{files[0]}: a log of equipoise tells what was changed; name a recording, or logs of brokers and clients, beside it")
    with contextlib.ExitStack() as stack:
        recordings: list[ClusterRecording | Dump] = []
        for place in places:
            opened = _opened(place)
            stack.enter_context(opened)
            recordings.append(opened)
        histories, evidence, hidden = _histories(screen, recordings, logs, files, group, every=every, redact=redact)
        changes = {hidden.get(name, name): mine for name, mine in changes.items()}
        until_ms = _END_MS if to is None else to
        found = [(each, incidents(each, from_ or 0, until_ms, changes.get(each.group, ()))) for each in histories if each.states]
        otherwise: dict[Incident, Counterfactual | None] = {}
        if group is not None:
            for history, mine in found:
                recording = next((each for each in recordings if group in each.groups()), None)
                if recording is not None:
                    otherwise |= _simulate(screen, recording, history, mine)
    for name in sorted(changes.keys() - {history.group for history, _ in found}):
        screen.remark(f"{name}: {counted(len(changes[name]), 'change')} in its log, and no group of that name in the other files")
    redactor = (
        Redactor([history for history, _ in found], {history.group: mine for history, mine in found}, evidence, hidden, files) if redact else None
    )
    if html_path is not None:
        if len(found) > 1:
            raise InputError("--html: a page is of one group; name it with --group")
        for history, mine in found:
            told = {each: story(each, otherwise.get(each)) for each in mine}
            if redactor is None:
                page = render_incidents(history, mine, told)
            else:
                told = {each: redactor.document(lines) for each, lines in told.items()}
                page = render_incidents(history, mine, told, lambda drawn: redactor.document(drawn, redactor.names))
            write_file("--html", html_path, Kind.PAGE, page)
            screen.remark(f"wrote {html_path}")
    if len(found) > 1:
        found.sort(key=lambda pair: (-sum(each.unavailable_ms + each.rebalancing_ms for each in pair[1]), -len(pair[1]), pair[0].group))
    all_at_once = at_once({history.group: mine for history, mine in found})
    parts: list[Part] = [together(each) for each in all_at_once[:_MOST_AT_ONCE]]
    if len(all_at_once) > _MOST_AT_ONCE:
        parts.append(f"and {counted(len(all_at_once) - _MOST_AT_ONCE, 'time')} more several groups at once (--json has all)")
    documents: list[dict[str, Any]] = []
    shared = [each for each in found[0][0].missing if all(each in history.missing for history, _ in found)] if len(found) > 1 else []
    """What the files cannot tell of any group: said once."""
    for number, (history, mine) in enumerate(found):
        kind = history.states[-1].group.kind.value
        shown = [document(each, otherwise.get(each)) for each in mine] if screen.json else []
        documents.append(
            {
                "group": history.group,
                "kind": kind,
                "has_records": history.has_records,
                "incidents": shown,
                "unread": list(history.unread),
                "notes": list(history.notes),
                "missing": list(history.missing),
            }
        )
        what = "adopted by members of equipoise, who commit elsewhere" if history.states[-1].group.is_adopted else kind
        is_told = number < _MOST_TOLD or len(found) <= _FEW_GROUPS
        if not is_told and number >= _MOST_LISTED:
            continue
        own = attrs.evolve(history, missing=[each for each in history.missing if each not in shared])
        shown_parts = group_parts(own, what, mine, otherwise, is_told=is_told)
        parts += [*([""] if parts and is_told else []), *shown_parts, *(f"not read: {each}" for each in history.unread)]
    if _MOST_LISTED < len(found) > _FEW_GROUPS:
        parts.append(f"and {counted(len(found) - _MOST_LISTED, 'more group')} (--group has one, --json all)")
    parts += ["", *(f"these files cannot tell {each}" for each in shared)] if shared else []
    parts = parts or ["no group yet" if evidence is None else "nothing was found about a group"]
    read = [] if evidence is None else evidence.files
    if redactor is not None:
        for each in read:
            each.shapes = [(redactor.form(shape), times, line) for shape, times, line in each.shapes]
    parts += ["", *file_parts(read)] if read else []
    answer: Any = {
        "recording": places[0] if places else None,
        "files": [file_document(each) for each in read],
        "at_once": [at_once_document(each) for each in all_at_once],
        "groups": documents,
    }
    if redactor is not None:
        answer, parts = redactor.document(answer), [redactor.document(part) for part in parts]
    if html_path is not None and not is_markdown:
        parts = parts[:_BESIDE_A_PAGE]
    screen.answer(answer, *(markdown(parts) if is_markdown else parts))


def _changes(screen: Screen, files: Sequence[str], group: str | None, *, redact: bool) -> dict[str, list[KnownChange]]:
    """Group -> its changes, of the logs of equipoise among the files."""
    from equipoise.log import open_log
    from equipoise.replay.incident.planned_causes import without_names
    from equipoise.replay.known_changes import known_changes

    found: dict[str, list[KnownChange]] = {}
    for place in dict.fromkeys(each for each in files if is_log(each)):
        with open_log(place) as log:
            for change in known_changes(screen.track(log.read(), f"reading {place}", log.count()), group):
                found.setdefault(change.group, []).append(change)
    return {name: without_names(mine) if redact else mine for name, mine in found.items()}


def _sorted_out(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Recordings, and all else. Raises InputError for what does not exist."""
    from equipoise.replay.importers.groups.cluster_recording import is_database
    from equipoise.replay.importers.kafka_streams import shipped_runs

    recordings: list[str] = []
    logs: list[str] = []
    for each in dict.fromkeys(files):
        if each == "-":
            logs.append(each)
            continue
        check_recording(each, *shipped_runs())
        is_recorded = Path(each).is_dir() or not Path(each).exists() or is_database(Path(each))
        (recordings if is_recorded else logs).append(each)
    return recordings, logs


def _histories(
    screen: Screen,
    recordings: Sequence[ClusterRecording | Dump],
    logs: Sequence[str],
    files: Sequence[str],
    group: str | None,
    *,
    every: bool,
    redact: bool,
) -> tuple[list[GroupHistory], Evidence | None, dict[str, str]]:
    """Histories of the chosen groups, what logs say, and the names that are hidden in both. Raises
    InputError where no group is chosen or known.
    """
    from equipoise.cli.redaction import hide_words
    from equipoise.replay.importers.evidence.files import read_evidence
    from equipoise.replay.incident.from_logs import histories_of

    names = sorted({name for recording in recordings for name in recording.groups()})
    if not logs:
        place = files[0]
        if group is None and not every:
            raise InputError(f"--group: name the group to explain, or give --all; {groups_text(names, place)}")
        if group is not None and group not in names:
            raise InputError(f"--group: {place} has no group {group!r}; {groups_text(names, place)}")
        return list(_recorded(recordings, group).values()), None, {}
    evidence = read_evidence(list(screen.track(logs, "reading", len(logs))))
    if not recordings and not any(each.lines for each in evidence.files):
        raise InputError(f"{logs[0]}: there is no line in it; name a log of a broker or a client, or what a tool printed")
    hidden = hide_words(evidence) if redact and not recordings else {}
    chosen = hidden.get(group or "", group)
    found = histories_of(evidence, _recorded(recordings, chosen), chosen)
    if chosen is not None and chosen not in found:
        known = {new: name for name, new in hidden.items()}
        there = groups_text([known.get(name, name) for name in found], files[0])
        raise InputError(f"--group: these files say nothing about a group {group!r}; {there}")
    return list(found.values()) if chosen is None else [found[chosen]], evidence, hidden


def _recorded(recordings: Sequence[ClusterRecording | Dump], group: str | None) -> dict[str, GroupHistory]:
    """Group -> its history, by name; of a group in several recordings, by the first."""
    from equipoise.replay.importers.groups.cluster_recording import ClusterRecording
    from equipoise.replay.importers.groups.divided_recording import histories_apart
    from equipoise.replay.incident import history_of

    found: dict[str, GroupHistory] = {}
    for recording in reversed(recordings):
        if group is None and isinstance(recording, ClusterRecording):
            found |= {name: history_of(mine, name) for mine, name in histories_apart(recording)}
        else:
            found |= {name: history_of(recording, name) for name in recording.groups() if group in (None, name)}
    return dict(sorted(found.items()))


def _opened(place: str) -> ClusterRecording | Dump:
    from equipoise.replay.importers.groups.cluster_recording import open_recording
    from equipoise.replay.importers.groups.dump import Dump
    from equipoise.replay.importers.kafka_streams import StreamsSource, shipped_runs

    folder = Path(place)
    if folder.is_dir() or (not folder.exists() and place in shipped_runs()):
        return Dump(StreamsSource(folder if folder.exists() else shipped_runs()[place]))
    return open_recording(place)


def _simulate(
    screen: Screen, recording: ClusterRecording | Dump, history: GroupHistory, found: list[Incident]
) -> dict[Incident, Counterfactual | None]:
    from equipoise.replay.importers.groups.observed import GroupKind
    from equipoise.replay.importers.groups.recorded_group import source_of
    from equipoise.replay.incident.counterfactuals import counterfactual

    costly = sorted((each for each in found if each.loop is None), key=lambda one: -one.unavailable_ms)[:_MOST_SIMULATED]
    if not history.states or history.states[-1].group.kind is not GroupKind.CLASSIC_STREAMS:
        return {each: counterfactual(history, each, found) for each in screen.track(costly, "simulating incidents", len(costly))}
    from equipoise.replay.incident.streams_counterfactuals import streams_counterfactuals  # loads the solver

    try:
        return {**streams_counterfactuals(source_of(recording, history.group), history, found)}
    except EquipoiseError as error:
        screen.remark(f"{history.group}: not simulated: {error}")
        return {}
