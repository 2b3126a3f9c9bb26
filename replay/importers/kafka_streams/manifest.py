"""The manifest of an imported log, in the log's first record: what was observed, what was inferred
and how, and what the user supplied.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

from equipoise.events.facts import TopologyDeclared
from equipoise.replay.importers.kafka_streams.import_options import ImportOptions
from equipoise.replay.importers.kafka_streams.scan import FORGOTTEN_AFTER, LEFT_WITHIN, Scan
from equipoise.replay.importers.kafka_streams.source import Action, MeasuredAction, StreamsSource
from equipoise.replay.importers.kafka_streams.topology import Matching

MOST_MANIFEST_CHARS = 100_000
_MARK = re.compile(r"[A-Z]+[0-9]+(_.*)?", re.ASCII)


class ObservedRestore(NamedTuple):
    """A task that a process was given with records to restore, and the first commit of its input
    afterwards, by which it had restored them.
    """

    member_id: str
    incarnation: int
    task: str
    records: int
    granted_ms: int
    committed_ms: int


@attrs.define
class ImportCounters:
    """Counters of the second pass."""

    samples: int = 0
    samples_kept: int = 0
    held: int = 0
    lags: int = 0
    unknown_lags: int = 0
    sums_past_end: int = 0
    reported_twice: int = 0
    owned_unknown: int = 0
    joins_with_state: int = 0
    standby_beside_active: int = 0
    empty_generations: int = 0
    last_generation: int = 0
    generation_shift: int = 0
    causes: Counter[str] = attrs.field(factory=Counter)
    ends: Counter[str] = attrs.field(factory=Counter)
    restores: list[ObservedRestore] = attrs.field(factory=list)


def windows(actions: list[Action], last_ms: int) -> list[dict[str, Any]]:
    """Returns marked windows: actions named like ``A1_kill_one``, each until the next one or the
    scenario's end.
    """
    marks = [each for each in actions if _MARK.fullmatch(each.action)]
    ends = [each.at_ms for each in marks[1:]] + [next((each.at_ms for each in actions if each.action == "scenario_end"), last_ms)]
    return [{"label": mark.action, "start_ms": mark.at_ms, "end_ms": end} for mark, end in zip(marks, ends[: len(marks)], strict=True)]


def build_manifest(
    *,
    source: StreamsSource,
    options: ImportOptions,
    inferred: Mapping[str, str],
    found: Scan,
    topology: TopologyDeclared,
    matching: Matching,
    counters: ImportCounters,
    files: Mapping[str, Mapping[str, str | int]],
    facts: Mapping[str, int],
) -> dict[str, Any]:
    """Returns the manifest, JSON-ready, of at most MOST_MANIFEST_CHARS characters. Lists left out
    for length are named in it.
    """
    counts = found.counts
    actions, measured = source.actions(), source.measured()
    manifest: dict[str, Any] = {
        "manifest": 1,
        "source": {"kind": "kafka-streams", "group": found.group, "first_ms": found.first_ms, "last_ms": found.last_ms, "files": dict(files)},
        "decoded": {
            "records": counts["records"],
            "offset_commits": counts["offset commits"],
            "generations": counts["group records"],
            "consumers": counts["subscriptions"],
            "of_other_groups_or_kinds": counts["other records"],
            "timestamps_that_went_back": counts["timestamps that went back"],
            "versions": dict(sorted(found.versions.items())),
        },
        "observed": _observed(found, counters, facts),
        "inferred": {**_inferred_settings(inferred), **_inferred(found, counters, topology, matching)},
        "supplied": {
            "settings": {
                "how": "not on the wire: from settings.json or the options of the import; else Kafka's defaults",
                "values": attrs.asdict(options, filter=lambda attribute, _: attribute.name != "group" and attribute.name not in inferred),
            },
            "actions": {
                "count": len(actions),
                "how": "actions.jsonl: the topic cannot tell an announced close from a crash" if actions else "no actions.jsonl: ends are inferred",
                "values": [_action(each) for each in actions],
                "windows": windows(actions, found.last_ms),
            },
            "measured": {
                "count": len(measured),
                "how": "unavailability.json: what the group's own leader cost, per action" if measured else "no unavailability.json",
                "values": [measured_json(each, with_tasks=True) for each in measured],
            },
        },
    }
    return _shortened(manifest, measured)


def _observed(found: Scan, counters: ImportCounters, facts: Mapping[str, int]) -> dict[str, Any]:
    counts = found.counts
    return {
        "assignments": {"count": facts.get("AssignmentObserved", 0), "how": "group metadata records: members, and what each was given"},
        "processes": {
            "count": len(found.lives),
            "how": "process id of the subscription; capacity = the most consumers it had at once; a new incarnation when all its member ids are new",
            "values": [
                {
                    "member_id": life.name,
                    "incarnation": life.incarnation,
                    "process_id": life.process_id,
                    "capacity": life.threads,
                    "first_ms": life.first_ms,
                    "last_ms": life.last_ms,
                }
                for life in found.lives
            ],
        },
        "reports": {
            "count": facts.get("LagReported", 0),
            "how": "subscriptions: offset sums and owned partitions of all threads of a process, together",
        },
        "offset_sums": {
            "count": counts["sums: active"] + counts["sums: unknown"] + counts["sums: records"],
            "active": counts["sums: active"],
            "unknown": counts["sums: unknown"],
            "records": counts["sums: records"],
            "reported_by_two_threads": counters.reported_twice,
            "how": "-2 is ACTIVE, -3 is UNKNOWN",
        },
        "restores": {
            "count": len(counters.restores),
            "how": "tasks given to a process that had over acceptable_recovery_lag records to restore, until the first commit of their input",
            "values": [each._asdict() for each in counters.restores],
        },
        "first_leader": {"process_id": found.first_leader, "how": "group metadata record of the first generation: who was the first to join"},
        "session_timeout_ms": {"values": sorted({life.session_timeout_ms for life in found.lives}), "how": "group metadata records"},
        "end_offsets": {
            "count": counters.samples,
            "kept": counters.samples_kept,
            "how": "end_offsets.jsonl; the first sample of every end_offsets_every_ms is kept as a fact",
        },
        "empty_generations_left_out": counters.empty_generations,
        "standby_beside_active_left_out": counters.standby_beside_active,
        "owned_partitions_of_unknown_topics": counters.owned_unknown,
    }


def _inferred_settings(inferred: Mapping[str, str]) -> dict[str, Any]:
    """Returns {} when every setting was supplied."""
    how = "; ".join(f"{name} {text}" for name, text in sorted(inferred.items()))
    return {"settings": {"count": len(inferred), "how": how}} if inferred else {}


def _inferred(found: Scan, counters: ImportCounters, topology: TopologyDeclared, matching: Matching) -> dict[str, Any]:
    part, whole = LEFT_WITHIN
    return {
        "topology": {
            "how": "input partitions are paired with tasks in every assignment; stateful: some task of it had an offset sum or a standby",
            "subtopologies": [
                {
                    "subtopology": each.subtopology,
                    "tasks": each.partitions,
                    "stateful": each.stateful,
                    "sources": list(each.source_topics),
                    "changelogs": list(each.changelog_topics),
                    "changelogs_how": matching.how.get(each.subtopology, "ambiguous: lags are told as unknown" if each.stateful else "no state"),
                }
                for each in topology.subtopologies
            ],
        },
        "lags": {
            "count": counters.lags,
            "told_as_unknown": counters.unknown_lags,
            "sums_past_the_interpolated_end": counters.sums_past_end,
            "how": "changelog end offset at the generation's time, linear between two samples, less the reported offset sum; at least 0",
        },
        "end_offsets_at_generations": {
            "held_outside_the_samples": counters.held,
            "how": "linear between the two samples around it; the changelog of a task that nobody runs stands still meanwhile",
        },
        "ends": {
            "count": sum(counters.ends.values()),
            "by_kind": dict(sorted(counters.ends.items())),
            "how": (
                f"last commit of its partitions; without one in the last {FORGOTTEN_AFTER} session timeouts, the removal less the session timeout; "
                f"'left' when it was removed within {part}/{whole} of the session timeout after that commit"
            ),
        },
        "causes": {
            "by_kind": dict(sorted(counters.causes.items())),
            "how": "processes new or gone; else next_rebalance_ms 0 in the assignment before: follow-up; else its time had come: probing",
        },
        "joins": {
            "with_state": counters.joins_with_state,
            "how": "told at the first generation that has the process; it began earlier (see supplied actions)",
        },
        "disks": {"how": "the process id lives in the state directory: another process id under the same name means that its state was lost"},
        "names": {
            "shared_by_several_processes": found.shared_names,
            "how": "client id without -StreamThread-<n>-consumer; the process id where two live ones share it",
        },
        "generations_renumbered_by": counters.generation_shift,
    }


def _action(action: Action) -> dict[str, Any]:
    return {"at_ms": action.at_ms, "action": action.action, **({"instance": action.instance} if action.instance else {}), **action.details}


def measured_json(measured: MeasuredAction, *, with_tasks: bool) -> dict[str, Any]:
    """Returns one measured action, JSON-ready; `StreamsSource.measured` reads it back."""
    document: dict[str, Any] = {
        "action": measured.action,
        "start_ms": measured.start_ms,
        "end_ms": measured.end_ms,
        "cut_off": measured.cut_off,
        "totals": measured.totals,
    }
    return {**document, "unavailable_ms_per_task": measured.unavailable_ms_per_task} if with_tasks else document


def _shortened(manifest: dict[str, Any], measured: list[MeasuredAction]) -> dict[str, Any]:
    """Leaves out the longest lists until the manifest fits, and names them."""
    cuts: list[tuple[str, dict[str, Any], str, Any]] = [
        ("supplied.measured: per task", manifest["supplied"]["measured"], "values", [measured_json(each, with_tasks=False) for each in measured]),
        ("observed.restores", manifest["observed"]["restores"], "values", []),
        ("observed.processes", manifest["observed"]["processes"], "values", []),
        ("supplied.actions", manifest["supplied"]["actions"], "values", []),
    ]
    left_out = []
    for name, section, key, shorter in cuts:
        if _chars(manifest) <= MOST_MANIFEST_CHARS:
            break
        section[key] = shorter
        left_out.append(name)
    if left_out:
        manifest["left_out_for_length"] = left_out
    return manifest


def _chars(manifest: dict[str, Any]) -> int:
    return len(json.dumps(manifest, ensure_ascii=False, separators=(",", ":")))
