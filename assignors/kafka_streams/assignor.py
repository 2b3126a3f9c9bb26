"""A problem in Kafka's terms, and Kafka's answer as a plan.

====================================
================================================================================================
here                                  in Kafka Streams ====================================
================================================================================================
member, capacity                      process, its stream threads lag: a number, active, unknown
the same, -2, -3, whoever reports it no lag, owner / anybody else          -2: it runs the task /
the whole changelog (end offset) max_warmups, num_standbys             max.warmup.replicas,
num.standby.replicas min_cost, balanced_min_cost           rack.aware.assignment.strategy
min_traffic, balance_subtopology racks of any partition not known      rack-aware assignment is off
leaving                               gone already: others get what it runs, caught up or not
subtopologies                         no such thing; members that know the same ones are assigned to
by themselves, with shared warm-up slots ready, home, in_flight, blocked       no such thing: every
round decides anew ====================================
================================================================================================

A warm-up is a standby, in Kafka and in the plan: nothing tells them apart. Where Kafka names
another owner, the present one is told to revoke, and the follow-up round decides anew; the next
owner keeps the copy it has until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.costs import cross_rack, restore_records
from equipoise.assignors.common.indexed_problem import VERSION_1, Pool, Situation
from equipoise.assignors.common.plan import MemberPlan, Plan, PlanCost, Reason
from equipoise.assignors.common.problem import AssignmentProblem, Member, Movement, MovementState
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.target import Candidates
from equipoise.assignors.kafka_streams.assign import assign
from equipoise.assignors.kafka_streams.clients import LATEST, UNKNOWN, Client, Settings, Slots
from equipoise.assignors.kafka_streams.java import MAX_LONG, member_key
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

_STRATEGIES = {"none": "none", "min_cost": "min_traffic", "balanced_min_cost": "balance_subtopology"}


class KafkaStreams:
    """Apache Kafka Streams 4, for comparison. Pure and without memory.

    It promises an owner for every task, and nothing else: a task goes to a member whose lag is
    unknown although another is caught up, copies for moved standbys come on top of those asked for,
    and one member more or less gives most tasks another owner.
    """

    name = "kafka_streams"
    version = 1
    solver = ""
    guarantees = frozenset({Guarantee.ALWAYS_OWNED})

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for any
        option: it has none.
        """
        options.known_only(problem.settings, self.name)
        situation = Situation(problem, crash_loops=False, behaviour=VERSION_1)
        answer = _Answer()
        slots = Slots(problem.settings.max_warmups)
        pools: dict[Pool, list[TaskId]] = {}
        for task in situation.tasks:
            pools.setdefault(situation.eligible(task), []).append(task)
        for pool, tasks in pools.items():
            if pool:
                _assign(situation, pool, tasks, slots, answer)
        return _plan(situation, answer)


@attrs.define
class _Answer:
    """What Kafka would have members do. `target`: where a task is on its way to, or runs for good.
    """

    owner: dict[TaskId, str] = attrs.field(factory=dict)
    target: dict[TaskId, str] = attrs.field(factory=dict)
    standbys: dict[str, set[TaskId]] = attrs.field(factory=dict)
    probing: bool = False


def _assign(situation: Situation, pool: Pool, tasks: list[TaskId], slots: Slots, answer: _Answer) -> None:
    members = [situation.members[name] for name in sorted(pool.members, key=member_key)]
    clients = [
        Client(index=index, id=member.id, capacity=member.capacity, rack=member.rack, tags=member.tags) for index, member in enumerate(members)
    ]
    reported: dict[TaskId, dict[int, int]] = {}
    for client, member in zip(clients, members, strict=True):
        for task, lag in {**dict.fromkeys(member.active, LagSentinel.ACTIVE), **member.lags}.items():
            reported.setdefault(task, {})[client.index] = _lag(lag)
    assigned = assign(clients, [situation.tasks[task] for task in tasks], reported, settings_of(situation.settings), slots)
    for client in clients:
        for task in client.active:
            answer.owner[task] = answer.target[task] = client.id
        answer.standbys.setdefault(client.id, set()).update(client.standby)
    for movement in assigned.movements:
        answer.target[movement.task] = movement.destination.id
    answer.probing = answer.probing or assigned.probing


def _lag(lag: Lag) -> int:
    if isinstance(lag, LagSentinel):
        return LATEST if lag is LagSentinel.ACTIVE else UNKNOWN
    return min(lag, MAX_LONG)


def settings_of(settings: GroupSettings) -> Settings:
    """Kafka's own settings."""
    return Settings(
        acceptable_recovery_lag=settings.acceptable_recovery_lag,
        num_standbys=settings.num_standbys,
        tags=frozenset(settings.rack_aware_tags),
        strategy=_STRATEGIES[settings.rack_aware_strategy],
        traffic_cost=settings.rack_traffic_cost,
        non_overlap_cost=settings.rack_non_overlap_cost,
    )


def _plan(situation: Situation, answer: _Answer) -> Plan:
    now: dict[TaskId, str] = {}
    target: dict[TaskId, str] = {}
    revoked: set[TaskId] = set()
    for task in situation.tasks:
        owner, wanted = situation.owner.get(task), answer.owner.get(task)
        if wanted is None:
            if owner is not None:  # nobody may be given it; who leaves gives it up all the same
                now[task] = owner
                if situation.members[owner].leaving:
                    revoked.add(task)
                else:
                    target[task] = owner
        elif owner is None or owner == wanted:
            now[task], target[task] = wanted, answer.target[task]
        else:
            now[task], target[task] = owner, wanted
            revoked.add(task)
    movements = _movements(situation, now, target, revoked)
    members = _member_plans(situation, answer, now, target, revoked)
    shares = Shares(situation)
    imbalance = shares.imbalance(target)
    granted = {task: Candidates(members=(member,)) for task, member in now.items() if task not in situation.owner}
    bound = moves_lower_bound(situation, shares, granted, {}, balanced=imbalance == 0)
    return Plan(
        members=members,
        target=_by_member(situation, target.items()),
        movements=movements,
        reasons=_reasons(situation, answer, now, members, movements),
        probing=answer.probing,
        cost=PlanCost(
            moves=len(movements),
            moves_lower_bound=bound,
            restore_records=restore_records(situation, target),
            cross_rack=cross_rack(situation, target),
            imbalance=imbalance,
            optimal=len(movements) == bound,
        ),
        imbalance_now=shares.imbalance(now),
    )


def _by_member(situation: Situation, tasks: Iterable[tuple[TaskId, str]]) -> dict[str, tuple[TaskId, ...]]:
    """Tasks of each member, all in rising order."""
    found: dict[str, list[TaskId]] = {name: [] for name in situation.members}
    for task, member in sorted(tasks):
        found[member].append(task)
    return {name: tuple(its) for name, its in found.items()}


def _movements(situation: Situation, now: Mapping[TaskId, str], target: Mapping[TaskId, str], revoked: Set[TaskId]) -> tuple[Movement, ...]:
    """Soonest ready first. What waits for a copy waits for a probing round, too: Kafka does not
    look before.
    """
    movements = [
        Movement(task=task, source=now[task], destination=member, state=MovementState.REVOKING if task in revoked else MovementState.WAITING)
        for task, member in sorted(target.items())
        if now[task] != member
    ]
    return tuple(sorted(movements, key=lambda each: (each.task not in revoked, situation.records(each.destination, each.task))))


def _member_plans(
    situation: Situation, answer: _Answer, now: Mapping[TaskId, str], target: Mapping[TaskId, str], revoked: Set[TaskId]
) -> dict[str, MemberPlan]:
    active = _by_member(situation, ((task, owner) for task, owner in now.items() if task not in revoked))
    gone = [(task, name) for name, member in situation.members.items() for task in member.active if task not in situation.tasks]
    revoke = _by_member(situation, [*((task, now[task]) for task in revoked), *gone])
    kept = ((task, target[task]) for task in revoked if task in target and _has_copy(situation.members[target[task]], task))
    keeps = _by_member(situation, ((task, member) for task, member in kept if situation.tasks[task].stateful))
    plans = {}
    for name in situation.members:
        standby = answer.standbys.get(name, frozenset[TaskId]()).union(keeps[name]).difference(revoke[name])
        plans[name] = MemberPlan(active=active[name], standby=tuple(sorted(standby)), revoke=revoke[name])
    return plans


def _has_copy(member: Member, task: TaskId) -> bool:
    return task in member.lags or task in member.standby or task in member.warmup


def _reasons(
    situation: Situation, answer: _Answer, now: Mapping[TaskId, str], members: Mapping[str, MemberPlan], movements: Iterable[Movement]
) -> dict[TaskId, Reason]:
    """For each task that moves, waits, is placed, or gets a copy."""
    reasons: dict[TaskId, Reason] = {}
    for name, part in members.items():
        reasons.update({task: Reason(code="standby") for task in part.standby if not _has_copy(situation.members[name], task)})
    for task, member in now.items():
        if task not in situation.owner:
            code = "unowned_stateless"
            if situation.tasks[task].stateful:
                code = "unowned" if situation.caught_up(member, task) else "unowned_cold"
            reasons[task] = Reason(code=code, lag_records=situation.lag(member, task))
        elif situation.members[member].leaving and not situation.eligible(task):
            reasons[task] = Reason(code="leaving")
    for movement in movements:
        reasons[movement.task] = _reason(situation, answer, movement)
    return dict(sorted(reasons.items()))


def _reason(situation: Situation, answer: _Answer, movement: Movement) -> Reason:
    task, destination = movement.task, movement.destination
    lag = situation.lag(destination, task)
    wanted = "leaving" if movement.source is not None and situation.members[movement.source].leaving else "turn"
    if not situation.tasks[task].stateful:
        return Reason(code="dealt_anew", because=wanted)
    if movement.state is MovementState.WAITING:
        code = "next_probing" if task in answer.standbys[destination] else "slot_full"
    elif destination != answer.target[task]:
        code = "stand_in"
    else:
        code = "ready" if situation.caught_up(destination, task) else wanted
    return Reason(code=code, lag_records=lag, because=wanted)
