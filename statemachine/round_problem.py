"""The problem of a round, made from the state: the frozen view on which an assignor decides.

Tasks and members that did not change since the last round are those of its problem
(`problem_cache`), so a round costs time in what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Partition, Task, TaskLoad
from equipoise.events.facts import Subtopology
from equipoise.events.tasks import TaskId
from equipoise.statemachine.state import GroupState, MemberState


def build_problem(state: GroupState, *, follow_up: bool = False, anew: bool = False) -> AssignmentProblem:
    """The frozen view of the state that an assignor decides on, everything in rising order.
    `follow_up`: no new event caused the round. `anew`: an operator asked for a new deal.
    """
    tasks = state.tasks()
    state.problem_cache.drop_members(state.members)
    previously_owned: dict[str, set[TaskId]] = {}
    for task, owner in state.previous_owners.items():
        previously_owned.setdefault(owner, set()).add(task)
    return AssignmentProblem(
        tasks=_tasks(state, tasks),
        members=tuple([_member(state, state.members[member_id], tasks, previously_owned.get(member_id, ())) for member_id in sorted(state.members)]),
        settings=state.settings,
        in_flight=tuple(sorted(_in_flight(state), key=lambda movement: movement.task)),
        blocked=frozenset(_blocked(state, tasks)),
        now_ms=state.now_ms,
        revocations=state.revocations,
        follow_up=follow_up,
        memory=state.memory,
        anew=anew,
    )


def _blocked(state: GroupState, tasks: Mapping[TaskId, Subtopology]) -> Iterable[tuple[TaskId, str]]:
    """(task, member) where no warm-up may begin: pairs that stalled, and all tasks on members that
    gave up a slot to others (docs/protocol.md#m7).
    """
    yield from (key for key, backoff in state.backoffs.items() if not backoff.over)
    for member_id, member in state.members.items():
        backoff = member.slot_backoff
        if backoff is not None and not backoff.over:
            yield from ((task, member_id) for task, part in tasks.items() if part.stateful and task not in backoff.exempt)


def _in_flight(state: GroupState) -> Iterable[Movement]:
    """Movements as an assignor sees them: a member that gave the task up is no source, and what an
    eager member waits for, to get it with other tasks, is on its way to it (docs/protocol.md#d3).
    """
    for task, movement in state.in_flight.items():
        owner = state.owner.get(task)
        yield movement if movement.source == owner else attrs.evolve(movement, source=owner)
    for member_id, member in state.members.items():
        for task in member.eager_regrants:
            if task not in state.owner and task not in state.in_flight:
                yield Movement(task=task, source=None, destination=member_id, state=MovementState.REVOKING)


def _tasks(state: GroupState, parts: Mapping[TaskId, Subtopology]) -> tuple[Task, ...]:
    cache = state.problem_cache
    lost_ms = {task: lost.since_ms for task, lost in state.lost.items()}
    displaced = frozenset(task for task, owner in state.previous_owners.items() if owner not in state.members)
    makers: dict[int, Callable[[TaskId], Task]] = {}
    made: dict[TaskId, Task] = {}
    for task in cache.stale(lost_ms, displaced):
        if task.subtopology not in makers:
            makers[task.subtopology] = _task_maker(state, parts[task])
        made[task] = makers[task.subtopology](task)
    return cache.keep(made)


def _task_maker(state: GroupState, part: Subtopology) -> Callable[[TaskId], Task]:
    """Makes the tasks of a sub-topology."""
    before, lost_ms, displaced = state.problem_cache.tasks, state.problem_cache.lost_ms, state.problem_cache.displaced
    ends = [state.end_offsets.get(topic, {}) for topic in part.changelog_topics]
    growths = [state.growth.get(topic, {}) for topic in part.changelog_topics]
    knows_lags = bool(state.behind or state.source_lags)

    def make(task: TaskId) -> Task:
        load, known, partition = state.loads.get(task), before.get(task), task.partition
        grown = [growth[partition].records_per_s for growth in growths if partition in growth]
        return Task(
            id=task,
            stateful=part.stateful,
            end_offset=sum([of_topic.get(partition, 0) for of_topic in ends]),
            source=_partitions(state, part.source_topics, partition) if known is None else known.source,
            changelog=_partitions(state, part.changelog_topics, partition) if known is None else known.changelog,
            written_records_per_s=sum(grown),
            lost_since_ms=lost_ms.get(task),
            lag=state.source_lag(task, part) if knows_lags else None,
            displaced=task in displaced,
            load=None if load is None else TaskLoad(cpu=load.cpu, memory=load.memory, disk=load.disk, records_per_s=load.records_per_s),
        )

    return make


def _partitions(state: GroupState, topics: tuple[str, ...], partition: int) -> tuple[Partition, ...]:
    return tuple(
        [
            Partition(
                topic=topic,
                partition=partition,
                racks=state.racks.get(topic, {}).get(partition, ()),
                weight=state.weights.get(topic, {}).get(partition, 1),
            )
            for topic in topics
        ]
    )


def _member(state: GroupState, member: MemberState, tasks: Mapping[TaskId, Subtopology], previously_owned: Iterable[TaskId]) -> MemberSpec:
    cached = state.problem_cache.members.get(member.member_id)
    crash_looping = state.is_crash_looping(member.member_id)
    if cached is not None and cached[0] is member and cached[1] == member.version:
        same = cached[2]
        if (
            same.leaving == member.leaving
            and same.drain_expired == member.drain_expired
            and same.drain_deadline_ms == member.drain_deadline_ms
            and same.crash_looping == crash_looping
            and same.previously_owned == frozenset(previously_owned)
        ):
            return same
    made = MemberSpec(
        id=member.member_id,
        capacity=member.capacity,
        rack=member.rack,
        tags=member.tags,
        leaving=member.leaving,
        drain_expired=member.drain_expired,
        drain_deadline_ms=member.drain_deadline_ms,
        subtopologies=state.runnable(member),
        active=tuple(sorted(task for task in (*member.active, *member.revoking) if task in tasks)),
        standby=tuple(sorted(task for task in member.standby if task in tasks)),
        warmup=tuple(sorted(task for task in member.warmup if task in tasks)),
        lags=member.lags,
        ready=member.ready,
        readiness=member.readiness,
        ready_lag_records=member.ready_lag_records,
        previously_owned=frozenset(previously_owned),
        restore_records_per_s=member.restore_records_per_s,
        eager=member.eager,
        crash_looping=crash_looping,
    )
    return state.problem_cache.keep_member(member, member.version, made)
