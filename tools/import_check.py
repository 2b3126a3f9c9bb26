"""``python -m tools.import_check DIR...``: checks the importer's reading of recorded runs.

Each folder holds, beside the dump, another decoder's reading (``history.jsonl``) and the leader's
log (``leader_view.jsonl``). Every field of every generation is compared with the first, the
imported facts (assignments, offset sums, lags) with the second. Prints one line for each folder;
the exit code is 1 when something differs. Lags may differ a little: the leader requested end
offsets from the brokers, the importer reads them between two samples.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import AssignmentObserved, Fact, LagReported, MemberJoined, PartitionsObserved, TopologyDeclared
from equipoise.events.records import FactRecord
from equipoise.events.tasks import LagSentinel, TaskId, parse_task
from equipoise.replay.importers.kafka_streams.import_options import options_of
from equipoise.replay.importers.kafka_streams.importer import import_history
from tools.decoder_agreement import Agreement, ReferenceSource, compare_history

_PROCESS_OF = "@"


class MemoryLog:
    """A log in memory with the facts of one import."""

    def __init__(self) -> None:
        self.records: list[FactRecord] = []

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """See `importer.FactSink`."""
        record = FactRecord(group, len(self.records), append_ms, event)
        self.records.append(record)
        return record


@attrs.define
class ImportCheck:
    """Result of one folder. `assignments`, `sums`: generations that agree with the leader's log, of
    `generations`.
    """

    history: Agreement
    generations: int = 0
    assignments: int = 0
    sums: int = 0
    lag_errors: list[int] = attrs.field(factory=list)
    """Imported less the leader's lag, wherever both are numbers."""
    verdicts: int = 0
    """Number of lags on the same side of acceptable_recovery_lag."""
    causes: Counter[str] = attrs.field(factory=Counter)
    first_difference: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether everything that must be equal is equal."""
        return self.history.complete and self.generations == self.assignments == self.sums

    def line(self, name: str) -> str:
        """Returns one line for a person."""
        errors = [abs(each) for each in self.lag_errors]
        lags = "none"
        if errors:
            lags = f"{statistics.median(errors):.0f} records off in the median, {max(errors)} at most, {self.verdicts} caught up or not as there"
        wrong = self.history.first_difference or self.first_difference
        return (
            f"{name}: {self.history.agreed} of {self.history.compared} generations equal in every field; with the leader's log: assignments "
            f"{self.assignments} of {self.generations}, offset sums {self.sums} of {self.generations}, lags {len(errors)} ({lags}); "
            f"{'agrees' if self.agrees else 'DIFFERS'}{f': {wrong}' if wrong and not self.agrees else ''}"
        )


def check(folder: Path, **settings: Any) -> ImportCheck:
    """Imports `folder` and compares. Raises InputError when it cannot be imported or has nothing to
    compare with.
    """
    source = ReferenceSource(folder)
    options = options_of(source, {"solver": "", **settings})
    log = MemoryLog()
    summary = import_history(folder, log, options=options)
    checked = ImportCheck(history=compare_history(source, summary.group))
    leader = {line["generation"]: line for line in source.leader_view()}
    stateful: set[int] = set()
    process_of: dict[tuple[str, int], str] = {}
    ends: dict[str, dict[int, int]] = {}
    changelogs: dict[int, tuple[str, ...]] = {}
    reports: dict[str, LagReported] = {}
    for record in log.records:
        event = record.event
        if isinstance(event, TopologyDeclared):
            stateful = {each.subtopology for each in event.subtopologies if each.stateful}
            changelogs = {each.subtopology: each.changelog_topics for each in event.subtopologies}
        elif isinstance(event, PartitionsObserved):
            for topic, each in event.end_offsets.items():
                ends.setdefault(topic, {}).update(each)
        elif isinstance(event, MemberJoined):
            process_of[event.member_id, event.incarnation] = event.join_nonce.split(_PROCESS_OF)[0]
        elif isinstance(event, LagReported):
            reports[process_of[event.member_id, event.incarnation]] = event
        elif isinstance(event, AssignmentObserved):
            checked.causes[event.cause] += 1
            if event.generation in leader:
                checked.generations += 1
                given = {process_of[each.member_id, each.incarnation]: (set(each.active), set(each.standby)) for each in event.members}
                found = _assignment_difference(leader[event.generation], given, reports, stateful)
                checked.assignments += found is None
                end_of = {
                    task: sum(ends.get(topic, {}).get(task.partition, 0) for topic in changelogs.get(task.subtopology, ()))
                    for each in reports.values()
                    for task in each.lags
                }
                wrong = _sums_difference(leader[event.generation], reports, end_of, checked, options.acceptable_recovery_lag)
                checked.sums += wrong is None
                if checked.first_difference is None and (found or wrong):
                    checked.first_difference = f"generation {event.generation}: {found or wrong}"
            reports = {}
    return checked


def _assignment_difference(
    view: dict[str, Any], given: dict[str, tuple[set[TaskId], set[TaskId]]], reports: dict[str, LagReported], stateful: set[int]
) -> str | None:
    """Compares the leader's logged target, less the withheld tasks, with the facts.

    A withheld task with state is a copy meanwhile, unless it only moves between two threads of its
    process.
    """
    withheld = {parse_task(each) for each in view["withheld"]}
    for client in view["clients"]:
        target, standby = ({parse_task(each) for each in client[field]} for field in ("target_active", "target_standby"))
        active, copies = given.pop(client["process_id"], (set(), set()))
        if active != target - withheld:
            return f"{client['instance']}: active differs by {sorted(active ^ (target - withheld))}"
        own = set(reports[client["process_id"]].held)
        wanted = standby | {task for task in target & withheld if task.subtopology in stateful and task not in own}
        if copies != wanted:
            return f"{client['instance']}: standby differs by {sorted(copies ^ wanted)}"
    return f"processes {sorted(given)} are only in the topic" if given else None


def _sums_difference(
    view: dict[str, Any], reports: dict[str, LagReported], ends: dict[TaskId, int], checked: ImportCheck, acceptable: int
) -> str | None:
    """Compares the leader's offset sums and lags with the reports."""
    wrong: str | None = None
    for client in view["clients"]:
        report = reports[client["process_id"]]
        theirs = {parse_task(task): amount for task, amount in client["offset_sums"].items()}
        if set(theirs) != set(report.lags) or any((amount == -2) != (report.lags[task] is LagSentinel.ACTIVE) for task, amount in theirs.items()):
            wrong = wrong or f"{client['instance']}: reported copies differ by {sorted(set(theirs) ^ set(report.lags))}"
            continue
        for task, lag in report.lags.items():
            leaders = client["lags"].get(str(task))
            if isinstance(lag, int) and isinstance(leaders, int) and leaders >= 0:
                if lag and ends[task] - lag != theirs[task]:
                    wrong = wrong or f"{client['instance']}: offset sum of {task} is {theirs[task]}, the fact says {ends[task] - lag}"
                checked.lag_errors.append(lag - leaders)
                checked.verdicts += (lag <= acceptable) == (leaders <= acceptable)
    return wrong


def main(arguments: list[str]) -> int:
    """Prints one line for each folder. Returns 0: all agree; 1: one differs; 2: one cannot be read."""
    if not arguments:
        print("usage: python -m tools.import_check DIR...", file=sys.stderr)
        return 2
    worst = 0
    for argument in arguments:
        try:
            checked = check(Path(argument))
        except EquipoiseError as error:
            print(f"{argument}: {error}", file=sys.stderr)
            return 2
        print(checked.line(argument))
        worst = max(worst, 0 if checked.agrees else 1)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
