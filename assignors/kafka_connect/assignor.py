"""Our problem in Connect's terms, and Connect's answer as a plan.

::

    here                              in Kafka Connect
    member, task                      worker, connector task; capacity, racks, state, lags: unused
    option `connectors`               sub-topology whose tasks are connectors, which are balanced
                                      separately; left out: there are none
    option `scheduled_delay_ms`       scheduled.rebalance.max.delay.ms
    option `connect_protocol`         connect.protocol: ``compatible`` (one `eager` worker makes all
                                      workers so, version 0) or ``eager``
    `reported`                        what a worker reports as running when it joins, in its own
                                      order; left out: `active`, rising
    `memory`                          the leader's memory; empty: a new leader
    `memory` without `assigned_tasks` a leader that has not completed the last generation
    leaving                           gone
    subtopologies                     unknown; a worker gets only what it knows
    in_flight, home, ready, warm-ups  unknown

A round of Connect begins when all workers have stopped what was revoked and have joined again. So
while a worker still runs revoked work, the plan is the last one, unless members report what they
run (`reported`): then that is the round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.indexed_problem import VERSION_1, IndexedProblem
from equipoise.assignors.common.plan import MemberPlan, Plan, PlanCost, Reason
from equipoise.assignors.common.problem import AssignmentProblem, Memory
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.kafka_connect.connect_round import LeaderMemory, RoundResult, decide
from equipoise.events.errors import FieldError
from equipoise.events.tasks import TaskId

CONNECTORS = "connectors"
SCHEDULED_DELAY_MS = "scheduled_delay_ms"
CONNECT_PROTOCOL = "connect_protocol"
EAGER_MEMBERS, EAGER_TASKS = "eager_members", "eager_tasks"
"""Memory keys of the eager protocol: members and tasks of the last deal."""
DEFAULT_DELAY_MS = 300_000


class KafkaConnect:
    """Apache Kafka Connect 4, for comparison. Pure: the memory of Connect's leader is
    `Plan.memory`.

    It guarantees nothing: moved work has no owner until the next round, lost work waits, and who
    gets what depends on hashes of names.
    """

    name = "kafka_connect"
    version = 2
    solver = ""
    guarantees: frozenset[Guarantee] = frozenset()
    options: tuple[str, ...] = (CONNECTORS, SCHEDULED_DELAY_MS, CONNECT_PROTOCOL)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for an
        unknown or unsound option.
        """
        options.known_only(problem.settings, self.name, self.options)
        connectors = options.whole(problem.settings, CONNECTORS, 0) if CONNECTORS in problem.settings.options else None
        max_delay_ms = options.whole(problem.settings, SCHEDULED_DELAY_MS, DEFAULT_DELAY_MS)
        protocol = options.one_of(problem.settings, CONNECT_PROTOCOL, ("compatible", "eager"))
        indexed = IndexedProblem(problem, crash_loops=False, behaviour=VERSION_1)
        awaited = _awaited(indexed, problem.memory)
        if awaited:
            return _unchanged(indexed, problem.memory, awaited)
        reported = _reported(indexed)
        if not reported:
            return _unchanged(indexed, problem.memory, frozenset())
        if CONNECT_PROTOCOL in self.options and _is_eager(problem, protocol):
            return _eager_round(indexed, reported, connectors, problem.memory)
        decided = decide(
            configured=indexed.tasks,
            reported=reported,
            connectors=connectors,
            remembered=_remembered({} if EAGER_MEMBERS in problem.memory else problem.memory),
            now_ms=problem.now_ms,
            max_delay_ms=max_delay_ms,
        )
        return _plan(problem, indexed, reported, decided)


class KafkaConnect1(KafkaConnect):
    """Behaviour version 1, without the eager protocol."""

    version = 1
    options = (CONNECTORS, SCHEDULED_DELAY_MS)


def _is_eager(problem: AssignmentProblem, protocol: str) -> bool:
    """Returns whether the group is eager: it uses the newest protocol that all workers support."""
    return protocol == "eager" or any(member.eager and not member.leaving for member in problem.members)


def _eager_round(indexed: IndexedProblem, reported: Mapping[str, tuple[TaskId, ...]], connectors: int | None, memory: Memory) -> Plan:
    """All workers stop when members or tasks have changed since the last deal; once all have
    stopped, everything is dealt.
    """
    dealt: Memory = {"awaited_tasks": (), EAGER_MEMBERS: tuple(sorted(reported)), EAGER_TASKS: tuple(indexed.tasks)}
    owned = {task for name in reported for task in indexed.members[name].active}
    owner = {task: name for task, name in deal(indexed.tasks, reported, connectors).items() if indexed.may_run(name, task)}
    if owned == owner.keys() and memory == dealt:
        return _unchanged(indexed, memory, frozenset())
    if owned:
        return _unchanged(indexed, {EAGER_TASKS: ()}, frozenset(owned))
    members = {name: MemberPlan(active=tuple(task for task, at in owner.items() if at == name)) for name in indexed.members}
    return _answer(indexed, members, dict.fromkeys(owner, "dealt_in_turn"), dealt, {}, probing=False)


def _awaited(indexed: IndexedProblem, memory: Memory) -> frozenset[TaskId]:
    """Revoked work, and work of leaving members, that still runs. Members that report what they run
    are not waited for.
    """
    awaited = frozenset(_tasks(memory, "awaited_tasks"))
    return frozenset(
        task
        for task, owner in indexed.owner.items()
        if indexed.members[owner].leaving or (task in awaited and indexed.members[owner].reported is None)
    )


def _reported(indexed: IndexedProblem) -> dict[str, tuple[TaskId, ...]]:
    """Worker -> the work it reports as running. Raises FieldError when it leaves out a task that it
    owns.
    """
    reported: dict[str, tuple[TaskId, ...]] = {}
    for name, member in indexed.members.items():
        if member.leaving:
            continue
        reported[name] = tuple(task for task in sorted(member.active) if task in indexed.tasks) if member.reported is None else member.reported
        missing = [task for task in sorted(member.active) if task in indexed.tasks and task not in reported[name]]
        if missing:
            raise FieldError(f"members[{name}].reported", f"{missing[0]} is active there; name it here too")
    return reported


# What is remembered


def _tasks(memory: Memory, key: str) -> tuple[TaskId, ...]:
    return tuple(value for value in _listed(memory, key) if isinstance(value, TaskId))


def _listed(memory: Memory, key: str) -> Iterable[object]:
    value = memory.get(key, ())
    return value if isinstance(value, tuple) else ()


def _number(memory: Memory, key: str) -> int:
    value = memory.get(key, 0)
    return value if isinstance(value, int) else 0


def _remembered(memory: Memory) -> LeaderMemory:
    def members(key: str) -> tuple[str, ...]:
        return tuple(value for value in _listed(memory, key) if isinstance(value, str))

    return LeaderMemory(
        assigned=frozenset(_tasks(memory, "assigned_tasks")),
        revoked=frozenset(_tasks(memory, "revoked_tasks")),
        workers=frozenset(members("last_members")),
        candidates=members("candidate_members"),
        scheduled_ms=_number(memory, "scheduled_ms"),
        delay_ms=_number(memory, "delay_ms"),
        has_revoked=bool(_number(memory, "has_revoked")),
        in_a_row=_number(memory, "in_a_row"),
    )


def _memory(remembered: LeaderMemory, awaited: Iterable[TaskId]) -> Memory:
    return {
        "assigned_tasks": tuple(sorted(remembered.assigned)),
        "awaited_tasks": tuple(sorted(awaited)),
        "candidate_members": remembered.candidates,
        "delay_ms": remembered.delay_ms,
        "has_revoked": int(remembered.has_revoked),
        "in_a_row": remembered.in_a_row,
        "last_members": tuple(sorted(remembered.workers)),
        "revoked_tasks": tuple(sorted(remembered.revoked)),
        "scheduled_ms": remembered.scheduled_ms,
    }


# The plan


def _unchanged(indexed: IndexedProblem, memory: Memory, awaited: Set[TaskId]) -> Plan:
    """The plan in which members keep what is not revoked, and nothing is granted."""
    why = "all_stop" if EAGER_TASKS in memory else "given_up"
    members: dict[str, MemberPlan] = {}
    for name, member in indexed.members.items():
        revoke = tuple(task for task in sorted(member.active) if task in awaited or task not in indexed.tasks)
        members[name] = MemberPlan(active=tuple(task for task in sorted(member.active) if task not in revoke), revoke=revoke)
    codes = {task: "leaving" if indexed.members[indexed.owner[task]].leaving else why for task in awaited if task in indexed.owner}
    kept = {**memory, "awaited_tasks": tuple(sorted(awaited))} if memory or awaited else memory
    return _answer(indexed, members, codes, dict(sorted(kept.items())), {}, probing=bool(awaited))


def _plan(problem: AssignmentProblem, indexed: IndexedProblem, reported: Mapping[str, tuple[TaskId, ...]], decided: RoundResult) -> Plan:
    members: dict[str, MemberPlan] = {}
    codes: dict[TaskId, str] = {}
    refused: set[TaskId] = set()
    for name, member in indexed.members.items():
        if name not in reported:
            members[name] = MemberPlan(revoke=tuple(sorted(member.active)))
            continue
        granted = [task for task in decided.granted[name] if indexed.may_run(name, task)]
        refused.update(task for task in decided.granted[name] if not indexed.may_run(name, task))
        gone = [task for task in member.active if task not in indexed.tasks]
        revoke = frozenset(decided.revoked[name]).union(gone)
        kept = [task for task in reported[name] if task not in revoke and _may_hold(indexed, name, task)]
        members[name] = MemberPlan(active=(*kept, *granted), revoke=tuple(sorted(revoke)))
        codes.update(dict.fromkeys(granted, "fewest"))
    codes.update(dict.fromkeys(decided.surplus, "given_up"))
    codes.update(dict.fromkeys(decided.twice, "claimed_twice"))
    codes.update(dict.fromkeys(decided.waiting, "lost"))
    remembered = attrs.evolve(decided.remembered, assigned=decided.remembered.assigned - refused)
    awaited = [task for part in members.values() for task in part.revoke]
    waiting = remembered.delay_ms > 0
    lost_until_ms = {
        task: remembered.scheduled_ms
        for task in sorted(decided.waiting)
        if waiting and task in indexed.tasks and indexed.tasks[task].lost_since_ms is not None
    }
    plan = _answer(indexed, members, codes, _memory(remembered, awaited), lost_until_ms, probing=bool(awaited) or waiting)
    return attrs.evolve(plan, ask_again_ms=remembered.scheduled_ms if waiting else None)


def _may_hold(indexed: IndexedProblem, name: str, task: TaskId) -> bool:
    """Returns whether the plan may name the task: not one that is gone without the leader knowing."""
    return task in indexed.tasks and (indexed.owner.get(task) == name or indexed.may_run(name, task))


def _answer(
    indexed: IndexedProblem,
    members: Mapping[str, MemberPlan],
    codes: Mapping[TaskId, str],
    memory: Memory,
    lost_until_ms: Mapping[TaskId, int],
    *,
    probing: bool,
) -> Plan:
    """The plan of a round. Work that has no owner now has no target: Connect decides on it in a
    later round. Nor has work that its owner does not know and keeps.
    """
    owner = {task: name for name, part in members.items() for task in part.active}
    now = {**{task: name for name, part in members.items() for task in part.revoke if task in indexed.owner}, **owner}
    shares = Shares(indexed)
    return Plan(
        members=members,
        target={name: tuple(sorted(task for task in part.active if not indexed.must_move(task))) for name, part in members.items()},
        movements=(),
        reasons={
            task: Reason(code=code, lag_records=indexed.lag(owner[task], task) if task in owner else None)
            for task, code in sorted(codes.items())
            if task in indexed.tasks
        },
        probing=probing,
        cost=PlanCost(moves=0, moves_lower_bound=0, restore_records=0, cross_rack=0, imbalance=shares.imbalance(owner), optimal=not probing),
        imbalance_now=shares.imbalance(now),
        lost_until_ms=lost_until_ms,
        memory=memory,
    )


# Connect's first protocol (version 0, `EagerAssignor`): whenever a worker or work comes or goes,
# all workers stop everything, and all work is dealt again.


def deal(tasks: Iterable[TaskId], workers: Collection[str], connectors: int | None) -> dict[TaskId, str]:
    """Worker -> its work. `connectors`: the sub-topology whose tasks are connectors; None: there
    are none.
    """
    ordered = sorted(tasks, key=lambda task: (task.subtopology != connectors, task))
    names = sorted(workers)
    return {task: names[index % len(names)] for index, task in enumerate(ordered)} if names else {}
