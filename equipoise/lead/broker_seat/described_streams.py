"""A group of Kafka Streams (KIP-1071) as its coordinator describes it: the question of a round
(`equipoise.bridge`), and the plan that makes what was decided of what the group has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.bridge.question import AskedPartition, AskedProcess, AskedTask, Question
from equipoise.events.decisions import RoundPlanned
from equipoise.events.errors import InputError
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.kafka.described_groups import DescribedStreamsGroup, DescribedStreamsMember, DescribedSubtopology
from equipoise.lead.broker_seat.broker_plan import BrokerPlan, Kind, PlanEntry, entries_of, in_order, made_for
from equipoise.lead.seat.metadata import SeatTopicMetadata

Process = Sequence[DescribedStreamsMember]
"""The threads of one process."""


def topics_of_streams(group: DescribedStreamsGroup) -> set[str]:
    """Topics that decide how many tasks there are, and changelogs."""
    parts = () if group.topology is None else group.topology.subtopologies
    return {topic for each in parts for topic in (*_sources(each), *(one.name for one in each.state_changelog_topics))}


def sources_of_streams(group: DescribedStreamsGroup) -> frozenset[str]:
    """Topics whose records the application has to read."""
    return frozenset(topic for each in (() if group.topology is None else group.topology.subtopologies) for topic in _sources(each))


def _sources(part: DescribedSubtopology) -> tuple[str, ...]:
    return (*part.source_topics, *(each.name for each in part.repartition_source_topics))


def question_of(
    group: DescribedStreamsGroup,
    metadata: SeatTopicMetadata,
    ends: Mapping[tuple[str, int], int],
    settings: Mapping[str, object],
    round_id: str,
    *,
    acceptable_lag: int = 0,
) -> Question:
    """The state of the application. `ends`: end offsets of changelogs. `acceptable_lag`: up to
    which copies count as caught up; those on a disk that nobody keeps up do not, however near,
    while the task runs and leaves them behind.
    Raises InputError for sub-topologies whose names are no numbers, and while topics are missing.
    """
    parts = () if group.topology is None else group.topology.subtopologies
    tasks: list[AskedTask] = []
    for part in parts:
        if not part.subtopology_id.isdecimal():
            raise InputError(f"group {group.group}: sub-topology {part.subtopology_id!r} is no number")
        count = max((metadata.counts.get(topic, 0) for topic in _sources(part)), default=0)
        if not count:
            raise InputError(f"group {group.group}: the source topics of sub-topology {part.subtopology_id} do not exist")
        tasks += (_task(part, number, metadata, ends) for number in range(count))
    known = {each.id for each in tasks}
    records = {each.id: each.records for each in tasks if each.stateful}
    running = {task for each in group.members for task in _tasks(each.target_assignment.active_tasks)}
    return Question(
        round_id=round_id,
        settings=settings,
        tasks=tuple(sorted(tasks, key=lambda each: each.id)),
        processes=tuple(_process(name, of, known, records, running, acceptable_lag + 1) for name, of in sorted(processes_of(group).items())),
    )


def _task(part: DescribedSubtopology, number: int, metadata: SeatTopicMetadata, ends: Mapping[tuple[str, int], int]) -> AskedTask:
    def places(topics: Iterable[str]) -> tuple[AskedPartition, ...]:
        return tuple(
            AskedPartition(topic=topic, partition=number, racks=metadata.racks.get(topic, {}).get(number, ()))
            for topic in sorted(set(topics))
            if number < metadata.counts.get(topic, 0)
        )

    changelogs = places(each.name for each in part.state_changelog_topics)
    return AskedTask(
        id=TaskId(int(part.subtopology_id), number),
        stateful=bool(part.state_changelog_topics),
        source=places(_sources(part)),
        changelog=changelogs,
        records=sum(ends.get((each.topic, each.partition), 0) for each in changelogs),
    )


def processes_of(group: DescribedStreamsGroup) -> dict[str, list[DescribedStreamsMember]]:
    """Process id -> its threads, in rising order of their ids."""
    found: dict[str, list[DescribedStreamsMember]] = {}
    for each in sorted(group.members, key=lambda one: one.member_id):
        found.setdefault(each.process_id, []).append(each)
    return found


def ended_members(group: DescribedStreamsGroup) -> frozenset[str]:
    """Members whose process was killed and started again: brokers keep them until their sessions
    end. Each thread of a process has a client id of its own, so of members with the same one the
    one with the newest epoch lives.
    """
    newest: dict[tuple[str, str], int] = {}
    for each in group.members:
        key = each.process_id, each.client_id
        newest[key] = max(each.member_epoch, newest.get(key, each.member_epoch))
    return frozenset(each.member_id for each in group.members if each.member_epoch < newest[each.process_id, each.client_id])


def active_tasks(group: DescribedStreamsGroup) -> dict[str, str]:
    """Task -> the process that says that it runs it."""
    return {str(task): each.process_id for each in group.members for task in _tasks(each.assignment.active_tasks)}


def pending_tasks(group: DescribedStreamsGroup) -> int:
    """Returns how many tasks are to be run by members that do not say yet that they run them."""

    def tasks(of: Iterable[Any]) -> set[tuple[str, int]]:
        return {(each.subtopology_id, number) for each in of for number in each.partitions}

    return sum(len(tasks(each.target_assignment.active_tasks) - tasks(each.assignment.active_tasks)) for each in group.members)


def is_at_rest(group: DescribedStreamsGroup) -> bool:
    """Returns whether each member has what it is to have, of the newest epoch."""
    return group.assignment_epoch >= group.group_epoch and all(each.assignment == each.target_assignment for each in group.members)


def _process(name: str, threads: Process, known: set[TaskId], records: Mapping[TaskId, int], running: set[TaskId], unkept_lag: int) -> AskedProcess:
    """`records`: of tasks with state. `running`: tasks that somebody runs. `unkept_lag`: the least
    of a copy of these that nobody keeps up.
    """
    active = {task for each in threads for task in _tasks(each.target_assignment.active_tasks)} & known
    standby = ({task for each in threads for task in _tasks(each.target_assignment.standby_tasks)} & records.keys()) - active
    lags: dict[TaskId, Lag] = {}
    lags.update(dict.fromkeys(active & records.keys(), LagSentinel.ACTIVE))
    lags.update(dict.fromkeys(standby, LagSentinel.UNKNOWN))
    for each in threads:
        ends = {(one.subtopology_id, one.partition): one.offset for one in each.task_end_offsets}
        for at in each.task_offsets:
            task = TaskId(int(at.subtopology_id), at.partition)
            if task in records.keys() - active and at.offset >= 0:
                lag = max(0, ends.get((at.subtopology_id, at.partition), records[task]) - at.offset)
                lags[task] = lag if task in standby or task not in running else max(lag, unkept_lag)
    first = threads[0]
    consumers = tuple(sorted({each.client_id for each in threads}))
    return AskedProcess(
        id=name,
        consumers=consumers,
        threads=len(consumers),
        rack=first.rack_id or None,
        tags={each.key: each.value for each in first.client_tags},
        active=tuple(sorted(active)),
        standby=tuple(sorted(standby)),
        lags=lags,
    )


def caught_up_copies(group: DescribedStreamsGroup, acceptable_lag: int) -> frozenset[tuple[str, TaskId]]:
    """Member and task of each copy that is so near its task, by what the member has reported."""
    found: set[tuple[str, TaskId]] = set()
    for each in group.members:
        at = {(one.subtopology_id, one.partition): one.offset for one in each.task_offsets}
        ends = {(one.subtopology_id, one.partition): one.offset for one in each.task_end_offsets}
        for part in each.assignment.standby_tasks:
            for place in ((part.subtopology_id, number) for number in part.partitions):
                if place in at and place in ends and ends[place] - at[place] <= acceptable_lag:
                    found.add((each.member_id, TaskId(int(part.subtopology_id), place[1])))
    return frozenset(found)


def _tasks(of: Iterable[object]) -> Iterable[TaskId]:
    for each in of:
        yield from (TaskId(int(each.subtopology_id), number) for number in each.partitions)  # type: ignore[attr-defined]


def streams_plan(
    group: DescribedStreamsGroup, planned: RoundPlanned, names: Mapping[str, str], tasks: Sequence[AskedTask], *, number: int
) -> BrokerPlan:
    """The plan that gives each process what was decided for it. Its threads keep what they have;
    what is new goes to those with the fewest, and what a thread has that was killed, to the one in
    its place: it has the state. `names`: member of the log -> process id.

    What was moved and has not arrived is named once more: the brokers hand the assignor what
    members have, not what they are to have, so it would stay with its former owner otherwise.
    """
    ended = ended_members(group)
    members = in_order(each.member_id for each in group.members)
    parts = sorted({str(each.id.subtopology) for each in tasks}, key=str.encode)
    at, position = {name: index for index, name in enumerate(members)}, {name: index for index, name in enumerate(parts)}
    runs = {task: each.member_id for each in group.members for task in _tasks(each.assignment.active_tasks)}
    is_for = {task: each.member_id for each in group.members for task in _tasks(each.target_assignment.active_tasks)}
    copies = {(task, each.member_id) for each in group.members for task in _tasks(each.assignment.standby_tasks)}
    wanted: dict[tuple[Kind, int, int], list[int]] = {}

    def want(kind: Kind, member: str, task: TaskId) -> None:
        wanted.setdefault((kind, at[member], position[str(task.subtopology)]), []).append(task.partition)

    threads_of = processes_of(group)
    for each in planned.members:
        threads = [one.member_id for one in threads_of[names[each.member_id]] if one.member_id not in ended]
        keeps = {task: next((of[task] for of in (is_for, runs) if of.get(task) in threads), "") for task in each.active}
        load = Counter(keeps.values())
        for task in each.active:
            to = keeps[task] or min(threads, key=lambda name: ((task, name) not in copies, load[name], name))
            load[to] += not keeps[task]
            if runs.get(task) != to:
                want("move", to, task)
        kept = {*each.standby, *each.warmup}
        held = {name: sum((task, name) in copies for task in kept) for name in threads}
        for task in sorted(kept):
            if not any((task, name) in copies for name in threads):
                to = min(threads, key=lambda name: (held[name], name))
                held[to] += 1
                want("copy", to, task)
        for task, name in sorted(copies):
            if name in threads and task not in kept and task not in each.active:
                want("drop", name, task)
    entries: list[PlanEntry] = [entry for key, numbers in sorted(wanted.items()) for entry in entries_of(*key, numbers)]
    return BrokerPlan(number=number, made_for=made_for(members, [part.encode() for part in parts]), entries=tuple(entries))
