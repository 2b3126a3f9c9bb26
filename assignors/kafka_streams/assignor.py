"""Our problem in Kafka's terms, and Kafka's answer as a plan.

::

    here                              in Kafka Streams
    member, capacity                  process, its stream threads
    lag: a number, active, unknown    the same, -2, -3, whoever reports it
    no lag: owner, any other          -2: it runs the task, the whole changelog (end offset)
    max_warmups, num_standbys         max.warmup.replicas, num.standby.replicas
    min_cost, balanced_min_cost       rack.aware.assignment.strategy: min_traffic,
                                      balance_subtopology
    unknown racks of any partition    rack-aware assignment is off
    leaving                           gone: others get its tasks, caught up or not
    subtopologies                     unknown; members that know the same ones are assigned to
                                      separately, with shared warm-up slots
    ready, home, in_flight, blocked   unknown: each round decides from scratch

A warm-up is a standby, in Kafka and in the plan. Where Kafka names another owner, the present one
is asked to revoke, and the follow-up round decides from scratch; the next owner keeps its copy
until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.bounds import moves_lower_bound
from equipoise.assignors.common.costs import cross_rack, restore_records
from equipoise.assignors.common.indexed_problem import VERSION_1, IndexedProblem, Pool
from equipoise.assignors.common.plan import MemberPlan, Plan, PlanCost, Reason
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Movement, MovementState
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.target import Candidates
from equipoise.assignors.kafka_streams.client_states import LATEST, UNKNOWN, ClientState, KafkaSettings, RemainingWarmups
from equipoise.assignors.kafka_streams.java import MAX_LONG, member_key
from equipoise.assignors.kafka_streams.task_assignor import assign
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

_STRATEGIES = {"none": "none", "min_cost": "min_traffic", "balanced_min_cost": "balance_subtopology"}


class KafkaStreams:
    """Apache Kafka Streams 4, for comparison. Pure and without memory.

    It guarantees an owner for every task, and nothing else: a task may go to a member of unknown
    lag although another is caught up, copies for moved standbys come on top of num_standbys, and
    one member more or less changes most owners.
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
        indexed = IndexedProblem(problem, crash_loops=False, behaviour=VERSION_1)
        answer = _Answer()
        slots = RemainingWarmups(problem.settings.max_warmups)
        pools: dict[Pool, list[TaskId]] = {}
        for task in indexed.tasks:
            pools.setdefault(indexed.eligible(task), []).append(task)
        for pool, tasks in pools.items():
            if pool:
                _assign(indexed, pool, tasks, slots, answer)
        return _plan(indexed, answer)


@attrs.define
class _Answer:
    """Kafka's assignment. `target`: the owner in the end; `owner`: the interim one."""

    owner: dict[TaskId, str] = attrs.field(factory=dict)
    target: dict[TaskId, str] = attrs.field(factory=dict)
    standbys: dict[str, set[TaskId]] = attrs.field(factory=dict)
    probing: bool = False


def _assign(indexed: IndexedProblem, pool: Pool, tasks: list[TaskId], slots: RemainingWarmups, answer: _Answer) -> None:
    members = [indexed.members[name] for name in sorted(pool.members, key=member_key)]
    clients = [
        ClientState(index=index, id=member.id, capacity=member.capacity, rack=member.rack, tags=member.tags) for index, member in enumerate(members)
    ]
    reported: dict[TaskId, dict[int, int]] = {}
    for client, member in zip(clients, members, strict=True):
        for task, lag in {**dict.fromkeys(member.active, LagSentinel.ACTIVE), **member.lags}.items():
            reported.setdefault(task, {})[client.index] = _lag(lag)
    assigned = assign(clients, [indexed.tasks[task] for task in tasks], reported, settings_of(indexed.settings), slots)
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


def settings_of(settings: GroupSettings) -> KafkaSettings:
    """The settings in Kafka's terms."""
    return KafkaSettings(
        acceptable_recovery_lag=settings.acceptable_recovery_lag,
        num_standbys=settings.num_standbys,
        tags=frozenset(settings.rack_aware_tags),
        strategy=_STRATEGIES[settings.rack_aware_strategy],
        traffic_cost=settings.rack_traffic_cost,
        non_overlap_cost=settings.rack_non_overlap_cost,
    )


def _plan(indexed: IndexedProblem, answer: _Answer) -> Plan:
    now: dict[TaskId, str] = {}
    target: dict[TaskId, str] = {}
    revoked: set[TaskId] = set()
    for task in indexed.tasks:
        owner, wanted = indexed.owner.get(task), answer.owner.get(task)
        if wanted is None:
            if owner is not None:  # no member is eligible; a leaving owner gives it up all the same
                now[task] = owner
                if indexed.members[owner].leaving:
                    revoked.add(task)
                else:
                    target[task] = owner
        elif owner is None or owner == wanted:
            now[task], target[task] = wanted, answer.target[task]
        else:
            now[task], target[task] = owner, wanted
            revoked.add(task)
    movements = _movements(indexed, now, target, revoked)
    members = _member_plans(indexed, answer, now, target, revoked)
    shares = Shares(indexed)
    imbalance = shares.imbalance(target)
    granted = {task: Candidates(members=(member,)) for task, member in now.items() if task not in indexed.owner}
    bound = moves_lower_bound(indexed, shares, granted, {}, balanced=imbalance == 0)
    return Plan(
        members=members,
        target=_by_member(indexed, target.items()),
        movements=movements,
        reasons=_reasons(indexed, answer, now, members, movements),
        probing=answer.probing,
        cost=PlanCost(
            moves=len(movements),
            moves_lower_bound=bound,
            restore_records=restore_records(indexed, target),
            cross_rack=cross_rack(indexed, target),
            imbalance=imbalance,
            optimal=len(movements) == bound and not indexed.lacks_standbys,
        ),
        imbalance_now=shares.imbalance(now),
    )


def _by_member(indexed: IndexedProblem, tasks: Iterable[tuple[TaskId, str]]) -> dict[str, tuple[TaskId, ...]]:
    """Member -> its tasks, in rising order."""
    found: dict[str, list[TaskId]] = {name: [] for name in indexed.members}
    for task, member in sorted(tasks):
        found[member].append(task)
    return {name: tuple(its) for name, its in found.items()}


def _movements(indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], revoked: Set[TaskId]) -> tuple[Movement, ...]:
    """Movements, soonest ready first. A movement that waits for a copy waits for a probing round:
    Kafka does not look before.
    """
    movements = [
        Movement(task=task, source=now[task], destination=member, state=MovementState.REVOKING if task in revoked else MovementState.WAITING)
        for task, member in sorted(target.items())
        if now[task] != member
    ]
    return tuple(sorted(movements, key=lambda each: (each.task not in revoked, indexed.records(each.destination, each.task))))


def _member_plans(
    indexed: IndexedProblem, answer: _Answer, now: Mapping[TaskId, str], target: Mapping[TaskId, str], revoked: Set[TaskId]
) -> dict[str, MemberPlan]:
    active = _by_member(indexed, ((task, owner) for task, owner in now.items() if task not in revoked))
    gone = [(task, name) for name, member in indexed.members.items() for task in member.active if task not in indexed.tasks]
    revoke = _by_member(indexed, [*((task, now[task]) for task in revoked), *gone])
    kept = ((task, target[task]) for task in revoked if task in target and _has_copy(indexed.members[target[task]], task))
    keeps = _by_member(indexed, ((task, member) for task, member in kept if indexed.tasks[task].stateful))
    plans = {}
    for name in indexed.members:
        standby = answer.standbys.get(name, frozenset[TaskId]()).union(keeps[name]).difference(revoke[name])
        plans[name] = MemberPlan(active=active[name], standby=tuple(sorted(standby)), revoke=revoke[name])
    return plans


def _has_copy(member: MemberSpec, task: TaskId) -> bool:
    return task in member.lags or task in member.standby or task in member.warmup


def _reasons(
    indexed: IndexedProblem, answer: _Answer, now: Mapping[TaskId, str], members: Mapping[str, MemberPlan], movements: Iterable[Movement]
) -> dict[TaskId, Reason]:
    """The reason of each task that moves, waits, is placed, or gets a copy."""
    reasons: dict[TaskId, Reason] = {}
    for name, part in members.items():
        reasons.update({task: Reason(code="standby") for task in part.standby if not _has_copy(indexed.members[name], task)})
    for task, member in now.items():
        if task not in indexed.owner:
            code = "unowned_stateless"
            if indexed.tasks[task].stateful:
                code = "unowned" if indexed.caught_up(member, task) else "unowned_cold"
            reasons[task] = Reason(code=code, lag_records=indexed.lag(member, task))
        elif indexed.members[member].leaving and not indexed.eligible(task):
            reasons[task] = Reason(code="leaving")
    for movement in movements:
        reasons[movement.task] = _reason(indexed, answer, movement)
    return dict(sorted(reasons.items()))


def _reason(indexed: IndexedProblem, answer: _Answer, movement: Movement) -> Reason:
    task, destination = movement.task, movement.destination
    lag = indexed.lag(destination, task)
    wanted = "leaving" if movement.source is not None and indexed.members[movement.source].leaving else "turn"
    if not indexed.tasks[task].stateful:
        return Reason(code="dealt_anew", because=wanted)
    if movement.state is MovementState.WAITING:
        code = "next_probing" if task in answer.standbys[destination] else "slot_full"
    elif destination != answer.target[task]:
        code = "stand_in"
    else:
        code = "ready" if indexed.caught_up(destination, task) else wanted
    return Reason(code=code, lag_records=lag, because=wanted)
