"""One group's past: every state that its coordinator stored, commits, and end offsets."""

from __future__ import annotations

import functools
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit
from equipoise.replay.importers.groups.divided_recording import SINKS
from equipoise.replay.importers.groups.dump import ReadableRecording
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup, ObservedGroups
from equipoise.replay.incident.causes import Rebalance

_LONGEST_RESTORE_MS = 3_600_000


@attrs.frozen(kw_only=True)
class ObservedState:
    """A group from `at_ms` on."""

    at_ms: int
    group: ObservedGroup


@attrs.frozen
class Stop:
    """A span in which no client whose log is there had a partition."""

    partition: str
    from_ms: int
    until_ms: int


@attrs.frozen(kw_only=True)
class GroupHistory:
    """`states`: in order of time, each different from the one before. `commits`: partition
    (``orders-3``; of a sink of Kafka Connect ``connect-sink:orders-3``) -> time (ms) and offset of
    its commits, in order; deleted ones are left out. `end_times_ms`, `ends`: times of the samples,
    and for each topic -> end of each partition. `unread`: why records were passed over.
    `has_every_commit`: at least one of each second; a recorded run that ships with equipoise has
    fewer. `repeats`: partition -> times of commits of the offset that was committed before, which
    say that a client lives, and not that it works. `sinks`: of a group of Kafka Connect, connector
    -> the group in which it reads.
    `has_records`: the states were stored by the coordinator; else they are what logs and tables
    tell. `told`: rebalances that logs tell. `notes`: what else files say, with its place.
    `missing`: what these files cannot tell, and which would. `language`: the client whose logs they
    are, as ``librdkafka``; "": they are none.
    """

    group: str
    states: list[ObservedState]
    commits: dict[str, list[tuple[int, int]]]
    end_times_ms: list[int]
    ends: list[dict[str, list[int]]]
    unread: list[str]
    has_every_commit: bool = True
    sinks: Mapping[str, GroupHistory] = attrs.field(factory=dict)
    repeats: Mapping[str, Sequence[int]] = attrs.field(factory=dict)
    has_records: bool = True
    told: Sequence[Rebalance] = ()
    stops: Sequence[Stop] = ()
    notes: Sequence[str] = ()
    missing: Sequence[str] = ()
    language: str = ""

    def state_at(self, at_ms: int) -> ObservedGroup | None:
        """The group at a time; None: before its first record."""
        place = bisect_right(self.states, at_ms, key=lambda state: state.at_ms)
        return self.states[place - 1].group if place else None

    @functools.cached_property
    def joined_ms(self) -> dict[str, int]:
        """Member id -> when it was first seen."""
        found: dict[str, int] = {}
        for state in self.states:
            for member in state.group.members.keys() - found.keys():
                found[member] = state.at_ms
        return found

    @functools.cached_property
    def gone_ms(self) -> dict[str, int]:
        """Member id -> when it was first seen no more."""
        found: dict[str, int] = {}
        for before, after in pairwise(self.states):
            for member in before.group.members.keys() - after.group.members.keys() - found.keys():
                found[member] = after.at_ms
        return found

    @functools.cached_property
    def stateful(self) -> frozenset[str]:
        """Sub-topologies with state. Kafka Streams of the classic protocol does not say which, so
        those of which there ever was a copy.
        """
        found: set[str] = set()
        for state in self.states:
            if state.group.kind is GroupKind.STREAMS:
                found |= state.group.stateful
            elif state.group.kind is GroupKind.CLASSIC_STREAMS:
                found.update(task.rpartition("_")[0] for member in state.group.members.values() for task in member.standby)
        return frozenset(found)

    def end_of(self, partition: str, at_ms: int) -> int | None:
        """End offset of a partition in the last sample by `at_ms`; None: it is in none."""
        topic, _, number = partition.rpartition(":")[2].rpartition("-")
        place = bisect_right(self.end_times_ms, at_ms)
        ends = self.ends[place - 1].get(topic, []) if place else []
        return ends[int(number)] if int(number) < len(ends) else None

    def first_end(self, partition: str) -> int:
        """End offset of a partition in the first sample that has it; 0: none has."""
        found = (self.end_of(partition, at_ms) for at_ms in self.end_times_ms)
        return next((end for end in found if end is not None), 0)

    def last_commit(self, partition: str, by_ms: int) -> tuple[int, int] | None:
        """Time (ms) and offset of the last commit of a partition by `by_ms`; None: there is none."""
        found = self.commits.get(partition, [])
        place = bisect_right(found, by_ms, key=lambda commit: commit[0])
        return found[place - 1] if place else None

    def last_sign_ms(self, partition: str, by_ms: int) -> int | None:
        """Time (ms) of the last commit of a partition by `by_ms`, of the same offset as before or
        not; None: there is none.
        """
        last = self.last_commit(partition, by_ms)
        again = self.repeats.get(partition, ())
        place = bisect_right(again, by_ms)
        times = ([last[0]] if last is not None else []) + ([again[place - 1]] if place else [])
        return max(times, default=None)

    @functools.cached_property
    def times_to_begin_ms(self) -> tuple[int, dict[str, int]]:
        """Returns, of a group of KIP-1071: how long a task takes from its assignment to its first
        commit, less the usual time between two commits, if it has no state or a copy of it; and
        sub-topology -> how much longer without a copy. Medians over the group's past; of what never
        happened the least that any task took, and nothing.
        """
        ready: list[float] = []
        cold: dict[str, list[float]] = {}
        for before, after in pairwise(self.states):
            for name, member in after.group.members.items():
                former = before.group.members.get(name)
                for task in member.active - member.revoking - (former.active if former is not None else frozenset()):
                    took_ms = self._began_after_ms(after.group.partitions_of(task), after.at_ms)
                    if took_ms is None:
                        continue
                    has_copy = former is not None and task in former.standby | former.warmup
                    subtopology = task.rpartition("_")[0]
                    (ready if has_copy or subtopology not in after.group.stateful else cold.setdefault(subtopology, [])).append(took_ms)
        begin_ms = statistics.median(ready) if ready else min((took for each in cold.values() for took in each), default=0.0)
        return round(begin_ms), {each: max(0, round(statistics.median(took) - begin_ms)) for each, took in sorted(cold.items())}

    def _began_after_ms(self, partitions: Iterable[str], at_ms: int) -> float | None:
        """Returns how long after `at_ms` the first of these partitions with unread records was
        committed, less the usual time between two commits; None: none of them.
        """
        found = []
        for partition in partitions:
            last, end = self.last_commit(partition, at_ms), self.end_of(partition, at_ms)
            commits = self.commits.get(partition, [])
            place = bisect_right(commits, at_ms, key=lambda commit: commit[0])
            if last is not None and end is not None and end > last[1] and place < len(commits):
                found.append(max(0.0, commits[place][0] - at_ms - self.usual_ms(partition)))
        return min((each for each in found if each < _LONGEST_RESTORE_MS), default=None)

    def usual_ms(self, partition: str) -> float:
        """The usual time between two commits of a partition, ms; 0: it has no two."""
        found = self.commits.get(partition, [])
        return statistics.median(after - before for (before, _), (after, _) in pairwise(found)) if len(found) > 1 else 0.0


def history_of(recording: ReadableRecording, group: str) -> GroupHistory:
    """Reads one group's past from a recording; of a group of Kafka Connect, also that of the groups
    in which its sinks read.
    """
    records, commits = recording.records(group), recording.commits(group)
    found = read_history(group, records, commits, recording.ends(), recording.topics(), has_every_commit=recording.has_every_commit)
    if not found.states or found.states[-1].group.kind is not GroupKind.CONNECT:
        return found
    connectors = {work.rpartition("-")[0] for state in found.states for work in state.group.owners}
    groups = set(recording.groups())
    return with_sinks(found, {name: history_of(recording, sink_group(name)) for name in sorted(connectors) if sink_group(name) in groups})


def sink_group(connector: str) -> str:
    """The group in which a sink of Kafka Connect reads, unless its configuration names another."""
    return f"{SINKS}{connector}"


def with_sinks(history: GroupHistory, sinks: Mapping[str, GroupHistory]) -> GroupHistory:
    """Adds what the sinks of a group of Kafka Connect read and commit. `sinks`: connector -> its
    group. Their partitions are named after the group too: ``connect-sink:orders-3``.
    """
    times = sorted({state.at_ms for each in (history, *sinks.values()) for state in each.states})
    states: list[ObservedState] = []
    reads: dict[str, tuple[str, ...]] = {}
    for at_ms in times:
        group = history.state_at(at_ms)
        if group is None:
            continue
        for connector, sink in sinks.items():
            there = sink.state_at(at_ms)
            for member in there.members.values() if there is not None else ():
                task = member.client_id.removeprefix(f"connector-consumer-{connector}-")
                if task != member.client_id and member.active:
                    reads[f"{connector}-{task}"] = tuple(sorted(f"{sink.group}:{partition}" for partition in member.active))
        members = {
            name: attrs.evolve(member, inputs={work: reads[work] for work in sorted(member.active) if work in reads})
            for name, member in group.members.items()
        }
        states.append(ObservedState(at_ms=at_ms, group=attrs.evolve(group, members=members)))
    commits = {f"{sink.group}:{partition}": found for sink in sinks.values() for partition, found in sink.commits.items()}
    return attrs.evolve(history, states=states, commits=history.commits | commits, sinks=sinks)


def read_history(
    group: str,
    records: Iterable[RawRecord],
    committed: Iterable[RecordedCommit],
    samples: Iterable[tuple[int, dict[str, list[int]]]],
    topics: Mapping[str, str],
    *,
    has_every_commit: bool = True,
) -> GroupHistory:
    """Folds a group's past from its records, in order. `samples`: times, and topic -> end of each
    partition. `topics`: topic id -> topic.
    """
    observed = ObservedGroups(topics)
    states: list[ObservedState] = []
    for raw in records:
        observed.read(raw)
        now = observed.groups.get(group)
        if now is None or (states and states[-1].group == now):
            continue
        if states and states[-1].at_ms == raw.timestamp_ms:  # records that a coordinator wrote at once
            states.pop()
        states.append(ObservedState(at_ms=raw.timestamp_ms, group=now))
    commits: dict[str, list[tuple[int, int]]] = {}
    repeats: dict[str, list[int]] = {}
    for commit in committed:
        if commit.committed is not None:
            partition = f"{commit.topic}-{commit.partition}"
            mine = commits.setdefault(partition, [])
            if mine and mine[-1][1] == commit.committed:  # by time: only one that goes further is work
                repeats.setdefault(partition, []).append(commit.at_ms)
            else:
                mine.append((commit.at_ms, commit.committed))
    sampled = list(samples)
    return GroupHistory(
        group=group,
        states=states,
        commits=commits,
        end_times_ms=[at_ms for at_ms, _ in sampled],
        ends=[ends for _, ends in sampled],
        unread=observed.unread,
        has_every_commit=has_every_commit,
        repeats=repeats,
    )
