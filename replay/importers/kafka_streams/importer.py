"""`import kafka-streams`: the history of a real Kafka Streams group becomes facts in a log.

The import makes two passes over the dump. The first (`scan`) collects what the log needs in
advance: the topology, threads of each process, names, and how processes ended. The second appends
the facts in order of time: end offsets, joins, reports, and the leader's decisions. The log is a
function of the files and the options, byte for byte.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.fact_parts import observed_in_parts, report_in_parts, shortened_join
from equipoise.events.facts import AssignmentObserved, Fact, LagReported, LogOpened, MemberJoined, ObservedMember, PartitionsObserved
from equipoise.events.records import FactRecord
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.importers.kafka_streams import topology
from equipoise.replay.importers.kafka_streams.endoffsets import EndOffsetStream
from equipoise.replay.importers.kafka_streams.import_options import ImportOptions, configuration, infer, options_of
from equipoise.replay.importers.kafka_streams.manifest import ImportCounters, ObservedRestore, build_manifest
from equipoise.replay.importers.kafka_streams.offsets_records import NEVER_MS, RUNS_IT, UNKNOWN_SUM, GroupMetadata, OffsetCommit, WireMember
from equipoise.replay.importers.kafka_streams.scan import (
    PROGRESS_EVERY_RECORDS,
    ObservedRound,
    ProcessLife,
    Progress,
    Scan,
    group_records,
    processes,
    scan,
)
from equipoise.replay.importers.kafka_streams.source import EndOffsetSample, StreamsSource

TOPOLOGY_EPOCH = 1
MOST_PARTITIONS = 50_000
"""Most partitions in one PartitionsObserved."""
MOST_EVIDENCE = 500
"""Most reported offset sums that are used to match changelogs with sub-topologies."""


class FactSink(Protocol):
    """Receives facts: a log."""

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """Appends one fact and returns its record."""


@attrs.frozen(kw_only=True)
class ImportSummary:
    """Result of an import."""

    group: str
    log_id: str
    facts: dict[str, int]
    """Kind of fact -> number appended."""
    generations: int
    members: int
    processes: int
    first_ms: int
    last_ms: int
    manifest: dict[str, Any]

    @property
    def length_ms(self) -> int:
        """Returns the length as the timeline of its log has it."""
        ends_ms: list[int] = [window["end_ms"] for window in self.manifest["supplied"]["actions"]["windows"]]
        return max([self.last_ms, *ends_ms]) - self.first_ms

    @property
    def group_facts(self) -> int:
        """Returns the number of facts of the group: all but LogOpened."""
        return sum(self.facts.values()) - self.facts["LogOpened"]


def import_history(
    source: Path | StreamsSource, log: FactSink, progress: Progress | None = None, *, options: ImportOptions | None = None
) -> ImportSummary:
    """Appends the history in `source` to the empty `log` and returns a summary.

    `options` None: those of SOURCE/settings.json, else Kafka's defaults. `progress` is called with
    the records done and, in the second pass, their total. Call within `log.transaction()`, so that
    the log has all facts or none and is synced once.

    Raises WireError when a record of the dump is damaged or of an unknown version, with its offset
    and byte. Raises InputError when a file is missing or malformed, or the group cannot be
    imported.
    """
    files = StreamsSource(source) if isinstance(source, Path) else source
    settings = options_of(files, {}) if options is None else options
    found = scan(files, settings.group, progress)
    return _Import(files, settings, found).run(log, progress)


class _Import:
    """One import under way: the second pass."""

    def __init__(self, source: StreamsSource, options: ImportOptions, found: Scan) -> None:
        self.source = source
        self.found = found
        self.counters = ImportCounters()
        self.members: dict[tuple[str, int], ProcessLife] = {(life.process_id, life.first_offset): life for life in found.lives}
        self._forget()
        topics = self._topic_partitions()
        self.task_counts = found.topology.task_counts(topics)
        stateful_tasks = sum(self.task_counts.get(subtopology, 0) for subtopology in found.topology.stateful)
        self.options, self.inferred = infer(options, found.rounds, stateful_tasks)
        candidates = topology.changelog_candidates(found.group, topics)
        self.matching = topology.match_changelogs(self.task_counts, found.topology.stateful, candidates, topics, self._evidence(candidates, topics))
        self.topology = topology.declare(TOPOLOGY_EPOCH, found.topology, self.task_counts, self.matching)
        self.changelogs: dict[int, tuple[str, ...]] = {each.subtopology: each.changelog_topics for each in self.topology.subtopologies}
        self.sources: dict[int, tuple[str, ...]] = {each.subtopology: each.source_topics for each in self.topology.subtopologies}
        self.topics = sorted({topic for each in self.topology.subtopologies for topic in (*each.source_topics, *each.changelog_topics)})

    def _topic_partitions(self) -> dict[str, int]:
        """Returns topic -> partitions, from a first pass over the samples."""
        counts: dict[str, int] = {}
        self.first_sample_ms = -1
        for sample in self.source.end_offsets():
            if self.first_sample_ms < 0:
                self.first_sample_ms = sample.ms
            self.counters.samples += 1
            for topic, ends in sample.end.items():
                counts[topic] = max(counts.get(topic, 0), len(ends))
        return counts

    def _evidence(self, candidates: Sequence[str], topics: Mapping[str, int]) -> list[topology.TopologyEvidence]:
        """Collects offset sums with end offsets, when partition counts leave a choice."""
        counts = [self.task_counts.get(subtopology, 0) for subtopology in self.found.topology.stateful]
        if all(times == 1 for times in Counter(counts).values()) or not candidates:
            return []
        ends = EndOffsetStream(self.source.end_offsets(), self.options.end_offsets_every_ms)
        evidence: list[topology.TopologyEvidence] = []
        for raw, event in group_records(self.source, self.found.group):
            if isinstance(event, GroupMetadata) and len(evidence) < MOST_EVIDENCE:
                for _ in ends.upto(raw.timestamp_ms):
                    pass
                now = ends.at(raw.timestamp_ms)
                for member in event.members:
                    for task, amount in sorted(member.subscription.task_offset_sums.items()):
                        if amount > 0:
                            known = {topic: now[topic][task.partition] for topic in candidates if task.partition < len(now.get(topic, ()))}
                            evidence.append(topology.TopologyEvidence(task, amount, known))
        return evidence

    def run(self, log: FactSink, progress: Progress | None) -> ImportSummary:
        found = self.found
        log_id = f"kafka-streams/{found.group}/{self.source.digest():.16}"
        # The manifest comes first and counts the facts, so one pass only counts them.
        rehearsal = Counter(type(event).__name__ for _, event in self._story(None))
        manifest = build_manifest(
            source=self.source,
            options=self.options,
            inferred=self.inferred,
            found=found,
            topology=self.topology,
            matching=self.matching,
            counters=self.counters,
            files=self.source.files(),
            facts=rehearsal,
        )
        self._forget()
        group = found.group
        first_ms = min(each for each in (found.first_ms, self.first_sample_ms) if each >= 0)
        text = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"))
        log.append_fact("", first_ms, LogOpened(log_id=log_id, partitions=1, manifest=text))
        log.append_fact(group, first_ms, configuration(self.options))
        log.append_fact(group, first_ms, self.topology)
        facts: Counter[str] = Counter({"LogOpened": 1, "GroupConfigured": 1, "TopologyDeclared": 1})
        last_ms = first_ms
        for append_ms, event in self._story(progress):
            last_ms = max(last_ms, append_ms)
            log.append_fact(group, last_ms, event)
            facts[type(event).__name__] += 1
        return ImportSummary(
            group=group,
            log_id=log_id,
            facts=dict(sorted(facts.items())),
            generations=facts["AssignmentObserved"],
            members=len({life.name for life in found.lives}),
            processes=len(found.lives),
            first_ms=first_ms,
            last_ms=last_ms,
            manifest=manifest,
        )

    def _forget(self) -> None:
        """Resets to the state before the first fact."""
        self.counters = ImportCounters(samples=self.counters.samples)
        self.live: dict[str, ProcessLife] = {}
        self.reports: Counter[tuple[str, int]] = Counter()
        self.owners: dict[TaskId, ProcessLife] = {}
        self.still_since_ms: dict[TaskId, int] = {}
        self.last_round_ms = 0
        self.restoring: dict[tuple[str, int], tuple[ProcessLife, TaskId, int, int]] = {}

    def _story(self, progress: Progress | None) -> Iterator[tuple[int, Fact]]:
        """Appends all facts after the first three, in order of time."""
        ends = EndOffsetStream(self.source.end_offsets(), self.options.end_offsets_every_ms)
        rounds = iter(self.found.rounds)
        total = self.found.counts["records"]
        now_ms = 0
        for done, (raw, event) in enumerate(group_records(self.source, self.found.group), start=1):
            if progress is not None and (done % PROGRESS_EVERY_RECORDS == 0 or done == total):
                progress(done, total)
            if event is None:
                continue
            now_ms = max(now_ms, raw.timestamp_ms)
            if isinstance(event, OffsetCommit):
                if event.committed is not None:
                    self._committed(event.topic, event.partition, now_ms)
            else:
                for sample in ends.upto(now_ms):
                    yield from self._sampled(sample)
                try:
                    yield from ((now_ms, fact) for fact in self._round(event, next(rounds), ends))
                except FieldError as error:
                    raise InputError(f"record at offset {raw.offset}: {error}") from None
        for sample in ends.upto(NEVER_MS):
            yield from self._sampled(sample)
        self.counters.held += ends.held

    def _sampled(self, sample: EndOffsetSample) -> Iterator[tuple[int, Fact]]:
        known = {topic: dict(enumerate(sample.end[topic])) for topic in self.topics if topic in sample.end}
        self.counters.samples_kept += 1
        for part in _parts(known):
            for fitting in observed_in_parts(PartitionsObserved(end_offsets=part)):
                yield sample.ms, fitting

    def _round(self, event: GroupMetadata, step: ObservedRound, ends: EndOffsetStream) -> Iterator[Fact]:
        """Appends one generation: end offsets, joins, reports, and the leader's decision."""
        now = ends.at(step.at_ms, self._standing_still(event, step))
        changelogs = sorted({topic for topics in self.changelogs.values() for topic in topics})
        for part in _parts({topic: dict(enumerate(now[topic])) for topic in changelogs if topic in now}):
            yield from observed_in_parts(PartitionsObserved(end_offsets=part))
        present = processes(event)
        for process_id in present:
            self.live[process_id] = self.members.get((process_id, step.offset)) or self.live[process_id]
        ordered = sorted(present, key=lambda each: self.live[each].name)
        lags = {process_id: self._lags(present[process_id], now) for process_id in ordered}
        for process_id in ordered:
            life = self.live[process_id]
            if life.first_offset == step.offset:
                yield shortened_join(self._joined(life, lags[process_id]))
        for process_id in ordered:
            life = self.live[process_id]
            for report in report_in_parts(self._report(life, present[process_id], lags[process_id])):
                self.reports[life.name, life.incarnation] = report.number
                yield report
        if not present and not step.ends:
            self.counters.empty_generations += 1
            return
        lives = [(self.live[process_id], present[process_id]) for process_id in ordered]
        self._grants(step, lives, lags, now)
        yield self._observed(event, step, lives)

    def _standing_still(self, event: GroupMetadata, step: ObservedRound) -> dict[tuple[str, int], int]:
        """Returns changelog partitions that no process writes, and since when: tasks that the round
        before gave to no process (a task that changes its owner stops until the follow-up), and
        tasks that no process reports as running (its owner restores it, or has ended).
        """
        running = {task for member in event.members for task, amount in member.subscription.task_offset_sums.items() if amount == RUNS_IT}
        ended_ms = {(end.member_id, end.incarnation): end.ended_ms for end in step.ends}
        for subtopology, topics in self.changelogs.items():
            for partition in range(self.task_counts[subtopology] if topics else 0):
                task = TaskId(subtopology, partition)
                if task in running and task in self.owners:
                    self.still_since_ms.pop(task, None)
                elif task not in self.still_since_ms:
                    owner = self.owners.get(task)
                    stopped_ms = None if owner is None else ended_ms.get((owner.name, owner.incarnation))
                    self.still_since_ms[task] = self.last_round_ms if stopped_ms is None else stopped_ms
        self.last_round_ms = step.at_ms
        return {(topic, task.partition): since for task, since in self.still_since_ms.items() for topic in self.changelogs[task.subtopology]}

    def _grants(
        self,
        step: ObservedRound,
        present: Sequence[tuple[ProcessLife, Sequence[WireMember]]],
        lags: Mapping[str, dict[TaskId, Lag]],
        now: Mapping[str, list[int]],
    ) -> None:
        """Notes tasks that a process was given with many records to restore."""
        owners = {task: life for life, consumers in present for member in consumers for task in member.assignment.active}
        for task, life in owners.items():
            if self.owners.get(task) is life:
                continue
            end = sum(now[topic][task.partition] for topic in self.changelogs.get(task.subtopology, ()) if task.partition < len(now.get(topic, ())))
            lag = lags[life.process_id].get(task, end)
            for topic in self.sources.get(task.subtopology, ()):
                self.restoring.pop((topic, task.partition), None)
                if isinstance(lag, int) and lag > self.options.acceptable_recovery_lag:
                    self.restoring[topic, task.partition] = (life, task, lag, step.at_ms)
        self.owners = owners

    def _committed(self, topic: str, partition: int, now_ms: int) -> None:
        """Notes the first commit after such a grant: the task runs, so it has been restored."""
        if (topic, partition) in self.restoring:
            life, task, lag, granted_ms = self.restoring.pop((topic, partition))
            if self.owners.get(task) is life:
                self.counters.restores.append(ObservedRestore(life.name, life.incarnation, str(task), lag, granted_ms, now_ms))

    def _joined(self, life: ProcessLife, lags: dict[TaskId, Lag]) -> MemberJoined:
        if lags:
            self.counters.joins_with_state += 1
        return MemberJoined(
            member_id=life.name,
            incarnation=life.incarnation,
            capacity=life.threads,
            rack=life.rack,
            tags=life.tags,
            session_timeout_ms=life.session_timeout_ms,
            lease_margin_ms=min(self.options.lease_margin_ms, max(0, life.session_timeout_ms - 1)),
            topology_epoch=TOPOLOGY_EPOCH,
            join_nonce=join_nonce(life.process_id, life.first_offset),
            ended_incarnation=life.replaces,
            lags=lags,
        )

    def _lags(self, consumers: Sequence[WireMember], ends: Mapping[str, list[int]]) -> dict[TaskId, Lag]:
        """Returns the union of the reports of a process's threads. When two report one task, the
        one that runs it wins, then the one with the higher position.
        """
        sums: dict[TaskId, int] = {}
        for member in consumers:
            for task, amount in member.subscription.task_offset_sums.items():
                before = sums.get(task)
                if before is not None:
                    self.counters.reported_twice += 1
                    amount = RUNS_IT if RUNS_IT in (before, amount) else max(before, amount)
                sums[task] = amount
        return {task: self._lag(task, amount, ends) for task, amount in sorted(sums.items())}

    def _lag(self, task: TaskId, amount: int, ends: Mapping[str, list[int]]) -> Lag:
        if amount == RUNS_IT:
            return LagSentinel.ACTIVE
        topics = self.changelogs.get(task.subtopology, ())
        if amount == UNKNOWN_SUM or not topics:
            self.counters.unknown_lags += 1
            return LagSentinel.UNKNOWN
        end = sum(ends[topic][task.partition] for topic in topics if task.partition < len(ends.get(topic, ())))
        self.counters.lags += 1
        if amount > end:
            self.counters.sums_past_end += 1
        return max(0, end - amount)

    def _report(self, life: ProcessLife, consumers: Sequence[WireMember], lags: dict[TaskId, Lag]) -> LagReported:
        held: set[TaskId] = set()
        for member in consumers:
            for topic, partitions in member.subscription.owned_partitions.items():
                subtopology = self.found.topology.inputs.get(topic)
                if subtopology is None:
                    self.counters.owned_unknown += 1
                else:
                    held.update(TaskId(subtopology, partition) for partition in partitions)
        key = (life.name, life.incarnation)
        self.reports[key] += 1
        return LagReported(
            member_id=life.name, incarnation=life.incarnation, number=self.reports[key], assignment_epoch=0, held=tuple(sorted(held)), lags=lags
        )

    def _observed(self, event: GroupMetadata, step: ObservedRound, present: Sequence[tuple[ProcessLife, Sequence[WireMember]]]) -> AssignmentObserved:
        members = []
        for life, consumers in present:
            active = {task for member in consumers for task in member.assignment.active}
            standby = {task for member in consumers for task in member.assignment.standby}
            self.counters.standby_beside_active += len(active & standby)
            members.append(
                ObservedMember(
                    member_id=life.name, incarnation=life.incarnation, active=tuple(sorted(active)), standby=tuple(sorted(standby - active))
                )
            )
        generation = event.generation + self.counters.generation_shift
        if generation <= self.counters.last_generation:  # the group was deleted and created again, or a static member was replaced in place
            self.counters.generation_shift += self.counters.last_generation + 1 - generation
            generation = self.counters.last_generation + 1
        self.counters.last_generation = generation
        self.counters.causes[step.cause] += 1
        self.counters.ends.update(each.how for each in step.ends)
        for life, _ in step.ended:
            if self.live.get(life.process_id) is life:
                del self.live[life.process_id]
        scheduled = [each for each in step.next_rebalance_ms if each > 0]
        return AssignmentObserved(
            generation=generation, members=tuple(members), ended=step.ends, cause=step.cause, next_probing_ms=min(scheduled) if scheduled else None
        )


def join_nonce(process_id: str, offset: int) -> str:
    """Returns ``<process id>@<offset of its first record>``: unique, and names the owner of the
    state directory.
    """
    return f"{process_id}@{offset}"


def _parts(known: Mapping[str, dict[int, int]]) -> Iterator[dict[str, dict[int, int]]]:
    """Splits end offsets into parts of at most MOST_PARTITIONS partitions."""
    part: dict[str, dict[int, int]] = {}
    left = MOST_PARTITIONS
    for topic, ends in sorted(known.items()):
        items = sorted(ends.items())
        while items:
            part[topic] = dict(items[:left])
            items = items[left:]
            left -= len(part[topic])
            if left == 0:
                yield part
                part, left = {}, MOST_PARTITIONS
    if part:
        yield part
