"""The question of a round as facts, and its answer as a document.

Existing facts say most of it: the topology, members that begin, and what each of them runs and
holds. `RoundAsked` comes last and names who is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.bridge.question import VERSION, AskedProcess, AskedTask, Question
from equipoise.events.decisions import RoundPlanned
from equipoise.events.errors import FieldError
from equipoise.events.fact_parts import observed_in_parts, report_in_parts, shortened_join
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    Load,
    MemberJoined,
    PartitionsObserved,
    PresentMember,
    RoundAsked,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, tasks_text
from equipoise.statemachine.state import GroupState, MemberState, known_lag

KAFKAS_WARMUPS = 2
"""Kafka's default of max.warmup.replicas, which no application that keeps it has chosen."""
ALL_AT_ONCE = 10_000
"""Warm-ups where the application has Kafka's default: a round costs more than a copy."""
LEAST_MEASURED_MS = 500
"""A restore rate is measured over at least so long."""
_SESSION_MS = 86_400_000
"""Of members whose broker says when they are gone; nobody waits for it."""
_OF_A_THREAD = re.compile(r"-StreamThread-\d+-consumer.*$|-\d+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
"""What the id of a thread's consumer has behind the name of its process: of a dynamic member, or of
a static one (``group.instance.id-NUMBER-UUID``).
"""


def member_name(process: AskedProcess) -> str:
    """The member id of a process: the ``client.id`` that its consumers show and the begin of its
    process id, or the process id alone. A function of the process, so no worker need remember it.
    """
    named = {_OF_A_THREAD.sub("", consumer) for consumer in process.consumers}
    name = named.pop() if len(named) == 1 else ""
    return f"{name}-{process.id[:8]}" if name and process.id not in name and len(name) < 200 else process.id


def names_of(question: Question) -> dict[str, str]:
    """Member id -> process id, in rising order. Raises FieldError when two processes get one id."""
    names: dict[str, str] = {}
    for index, process in enumerate(question.processes):
        name = member_name(process)
        if name in names:
            raise FieldError(f"$.processes[{index}].consumers", f"is named {name!r} like process {names[name]}; give each its own client.id")
        names[name] = process.id
    return dict(sorted(names.items()))


def configuration(question: Question) -> GroupConfigured:
    """The configuration of a group that has none: the application's own settings. Raises FieldError
    with the path of a setting that is wrong.
    """
    given = dict(question.settings)

    def taken(name: str, default: Any) -> Any:
        value = given.pop(name, None)
        return default if value is None else value

    warmups = taken("max.warmup.replicas", KAFKAS_WARMUPS)
    values = {
        "acceptable_recovery_lag": taken("acceptable.recovery.lag", 10_000),
        "num_standbys": taken("num.standby.replicas", 0),
        "max_warmups": warmups,
        "max_warmups_per_member": warmups,
        "probing_interval_ms": taken("probing.rebalance.interval.ms", 600_000),
        "rack_aware_strategy": taken("rack.aware.assignment.strategy", "none"),
        "rack_traffic_cost": taken("rack.aware.assignment.traffic_cost", 10),
        "rack_non_overlap_cost": taken("rack.aware.assignment.non_overlap_cost", 1),
        "rack_aware_tags": tuple(taken("rack.aware.assignment.tags", ())),
    }
    if given:
        raise FieldError(f"$.settings[{min(given)!r}]", "unknown setting")
    try:
        settings = with_own_warmups(GroupSettings(**values))
    except FieldError as error:
        raise FieldError(f"$.settings: {error.name}", error.problem) from None
    assignor = registry.latest("high_availability")
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, led_by="external", knobs=settings)


def with_own_warmups(settings: GroupSettings) -> GroupSettings:
    """The settings with as many warm-ups at once as an application wants that has Kafka's default."""
    most = ALL_AT_ONCE if settings.max_warmups == KAFKAS_WARMUPS else settings.max_warmups
    return attrs.evolve(settings, max_warmups=most, max_warmups_per_member=most)


def topology(question: Question, epoch: int) -> TopologyDeclared:
    """The tasks as sub-topologies. Raises FieldError when tasks are missing between others."""
    parts: dict[int, list[AskedTask]] = {}
    for task in sorted(question.tasks, key=lambda each: each.id):
        parts.setdefault(task.id.subtopology, []).append(task)
    declared = []
    for number, tasks in parts.items():
        if [task.id.partition for task in tasks] != list(range(len(tasks))):
            named = tasks_text([task.id for task in tasks[:20]])
            raise FieldError("$.tasks", f"sub-topology {number} has {named}; its partitions must be 0 to {len(tasks) - 1}")
        declared.append(
            Subtopology(
                subtopology=number,
                partitions=len(tasks),
                stateful=any(task.stateful for task in tasks),
                source_topics=tuple(sorted({each.topic for task in tasks for each in task.source})),
                changelog_topics=tuple(sorted({each.topic for task in tasks for each in task.changelog})),
            )
        )
    return TopologyDeclared(epoch=epoch, subtopologies=tuple(declared))


def racks_of(question: Question) -> dict[str, dict[int, tuple[str, ...]]]:
    """Topic -> partition -> racks of its replicas, where they are known."""
    racks: dict[str, dict[int, tuple[str, ...]]] = {}
    for task in question.tasks:
        for each in (*task.source, *task.changelog):
            if each.racks:
                racks.setdefault(each.topic, {})[each.partition] = each.racks
    return racks


def unseen_ends(question: Question, state: GroupState) -> dict[str, dict[int, int]]:
    """Topic -> partition -> end offset, of tasks with changelogs of which the worker has seen none
    yet. What the application says of all changelogs of a task counts for the first of them, until
    the worker has seen them.
    """
    ends: dict[str, dict[int, int]] = {}
    for task in question.tasks:
        seen = any(each.partition in state.end_offsets.get(each.topic, {}) for each in task.changelog)
        if task.records and task.changelog and not seen:
            first = min(task.changelog, key=lambda each: (each.topic, each.partition))
            ends.setdefault(first.topic, {})[first.partition] = task.records
    return ends


def facts_of(question: Question, state: GroupState, passed_ms: int) -> Iterator[Fact]:
    """Yields what the question says beyond `state`, in the order in which it must be folded.
    `passed_ms`: since the last round, or 0 where that is not known.

    Raises FieldError.
    """
    names = names_of(question)
    processes = {process.id: process for process in question.processes}
    if state.config is None:
        yield configuration(question)
    known = state.topology
    declared = topology(question, 1 if known is None else known.epoch)
    if known is None or declared != known:
        declared = attrs.evolve(declared, epoch=1 if known is None else known.epoch + 1)
        yield declared
    ends = unseen_ends(question, state)
    if ends:
        yield from observed_in_parts(PartitionsObserved(end_offsets=ends))
    margin_ms = max(3_000, state.settings.max_step_ms)
    present = []
    for name, process_id in names.items():
        process, member = processes[process_id], state.members.get(name)
        same = member is not None and (member.capacity, member.rack, member.tags) == (process.threads, process.rack, dict(process.tags))
        incarnation = state.generation + 1 if member is None or not same else member.incarnation
        if member is None or not same:
            yield shortened_join(
                MemberJoined(
                    member_id=name,
                    incarnation=incarnation,
                    capacity=process.threads,
                    rack=process.rack,
                    tags=dict(process.tags),
                    session_timeout_ms=max(_SESSION_MS, margin_ms + 1),
                    lease_margin_ms=margin_ms,
                    topology_epoch=declared.epoch,
                    join_nonce=f"{process_id}@{question.round_id}",
                )
            )
        number = 0 if member is None or not same else member.report_number + 1
        rate = 0 if member is None else _restored_per_s(state, member, process, passed_ms)
        report = LagReported(
            member_id=name,
            incarnation=incarnation,
            number=number,
            assignment_epoch=0,
            held=process.active,
            lags=dict(process.lags),
            load=Load(restored_records_per_s=float(rate)) if rate else None,
        )
        yield from report_in_parts(report)
        present.append(PresentMember(member_id=name, incarnation=incarnation))
    yield RoundAsked(round_id=question.round_id, members=tuple(present))


def _restored_per_s(state: GroupState, member: MemberState, process: AskedProcess, passed_ms: int) -> int:
    """Records that its copies got nearer in `passed_ms`, a second; 0: not measured. A copy that was
    done earlier makes it too low, never too high, so nobody counts on a rate that it has not.
    """
    if passed_ms < LEAST_MEASURED_MS:
        return 0
    restored = 0
    for task in (*member.warmup, *member.standby):
        now, before = known_lag(process.lags.get(task)), known_lag(member.lags.get(task))
        before = state.records(task) if before is None and task in member.warmup else before
        if now is not None and before is not None and before > now:
            restored += before - now
    return restored * 1_000 // passed_ms


def answer_of(planned: RoundPlanned, names: Mapping[str, str]) -> dict[str, Any]:
    """The document that answers a round. `names`: member id -> process id."""
    return {
        "version": VERSION,
        "round": planned.round_id,
        "generation": planned.generation,
        "processes": {
            names[each.member_id]: {"active": _texts(each.active), "standby": _texts(sorted({*each.standby, *each.warmup}))}
            for each in planned.members
        },
        "follow_up_ms": planned.follow_up_ms,
    }


def _texts(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in tasks]
