"""The class of the assignor `lag_aware`, what it deals now, and the plan for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.costs import cross_rack, rack_cost, restore_records
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_2, IndexedProblem
from equipoise.assignors.common.movements import MoveBenefits
from equipoise.assignors.common.plan import MemberPlan, Plan, PlanCost, Reason, StageCost
from equipoise.assignors.common.problem import AssignmentProblem, Movement, MovementState
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.lag_aware import uneven
from equipoise.assignors.lag_aware.bundles import Dealt
from equipoise.assignors.lag_aware.dealing import (
    deal_all,
    deal_nearer,
    deal_topic,
    fill_all,
    hand_out,
    loads_of,
    ranks,
    subscriptions,
    topics_of,
)
from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.assignors.lag_aware.evening import Evening
from equipoise.assignors.lag_aware.options import ASSIGNOR, LagAwareOptions
from equipoise.events.tasks import TaskId


class LagAware:
    """KIP-169. Pure: what it remembers is in its plans. Options: see `LagAwareOptions`.

    It does not declare CAUGHT_UP_FIRST, since copies play no part; it assigns no copies, so
    COPIES_CAPPED holds. Its balance is per topic, and is reached when all owners have given up what
    was revoked.
    """

    name = ASSIGNOR
    version = 2
    behaviour = NEWEST
    solver = SOLVER
    deals_by_lag = True
    guarantees = frozenset({Guarantee.ALWAYS_OWNED, Guarantee.COPIES_CAPPED, Guarantee.CONVERGES})

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or for an
        unknown or unsound option.
        """
        chosen = LagAwareOptions.of(problem.settings, deals_by_itself=not self.behaviour.subscriptions_apart)
        indexed = IndexedProblem(problem, behaviour=self.behaviour)
        topics = topics_of(indexed, task_lags(indexed))
        settled = {task: movement.destination for task, movement in indexed.in_flight.items() if movement.state is MovementState.REVOKING}
        heading = {**indexed.owner, **settled}
        dealt = (_deal_all if chosen.cross_topic else _deal_each)(indexed, topics, heading, settled, chosen)
        if not chosen.deal_after_ms:
            return plan_of(indexed, topics, {**heading, **dealt.owner}, dealt)
        found = uneven.find(indexed, topics, chosen, problem.memory) if _rests(indexed, topics, dealt) else None
        if found is not None and indexed.now_ms - found.since_ms >= chosen.deal_after_ms:
            dealt = found.dealt(indexed.owner)
        plan = plan_of(indexed, topics, {**heading, **dealt.owner}, dealt)
        return attrs.evolve(
            plan,
            memory={} if found is None or plan.movements else found.memory(),
            watching=sum(not member.leaving for member in problem.members) > 1,
        )


class LagAware1(LagAware):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_2


def task_lags(indexed: IndexedProblem) -> dict[TaskId, int]:
    """Task -> records of its source that the group has not processed; an unknown lag counts as 0."""
    return {task.id: task.lag or 0 for task in indexed.tasks.values()}


def _deal_each(
    indexed: IndexedProblem, topics: Sequence[Topic], heading: Mapping[TaskId, str], settled: Mapping[TaskId, str], chosen: LagAwareOptions
) -> Dealt:
    dealt: list[Dealt] = []
    for topic in topics:
        even = topic.is_even(heading) and not indexed.anew
        if any(task in settled for task in topic.lags):
            staying = _staying([topic], heading)
            dealt.append(_left(indexed, [topic]) if even else Dealt(hand_out(topic, staying, loads_of([topic], staying))))
        elif even:
            dealt.append(_nearer(indexed, [topic], chosen))
        else:
            dealt.append(deal_topic(indexed, topic, chosen.rack_lag_tolerance))
    return Dealt(
        {task: name for each in dealt for task, name in each.owner.items()},
        all(each.unique for each in dealt),
        sum(each.rack_cost_lower_bound for each in dealt),
        frozenset[TaskId]().union(*(each.for_traffic for each in dealt)),
    )


def _deal_all(
    indexed: IndexedProblem, topics: Sequence[Topic], heading: Mapping[TaskId, str], settled: Mapping[TaskId, str], chosen: LagAwareOptions
) -> Dealt:
    even = not indexed.anew and all(topic.is_even(heading) for topic in topics) and _is_even_in_the_whole(topics, heading)
    if settled:
        return _left(indexed, topics) if even else Dealt(fill_all(indexed, topics, _staying(topics, heading)))
    if even and not indexed.behaviour.subscriptions_apart:
        evening = Evening(topics, heading, ranks(topics, heading))
        if evening.path():
            evening.even_out()
            passed_on = frozenset(task for task, name in evening.owner.items() if heading[task] != name)
            return Dealt(evening.owner, unique=False, passed_on=passed_on)
    return _nearer(indexed, topics, chosen) if even else deal_all(indexed, topics, chosen.rack_lag_tolerance)


def _rests(indexed: IndexedProblem, topics: Sequence[Topic], dealt: Dealt) -> bool:
    """Returns whether nothing is handed over, was asked for, or moves but for traffic."""
    if indexed.in_flight or indexed.anew:
        return False
    moving = (task for task, name in dealt.owner.items() if indexed.owner.get(task) != name)
    return all(task in dealt.for_traffic for task in moving) and all(task in indexed.owner for topic in topics for task in topic.lags)


def _left(indexed: IndexedProblem, topics: Iterable[Topic]) -> Dealt:
    """A deal that assigns nothing of these topics."""
    return Dealt({}, True, sum(indexed.racks.active(task).least for topic in topics for task in topic.lags))


def _nearer(indexed: IndexedProblem, topics: Sequence[Topic], chosen: LagAwareOptions) -> Dealt:
    """Even topics, with exchanges where these lower the traffic by more than the changes cost."""
    return deal_nearer(indexed, topics, chosen.rack_lag_tolerance) if indexed.racks.counts else Dealt({})


def _staying(topics: Iterable[Topic], heading: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Partitions whose owner or destination is a subscriber."""
    return {task: heading[task] for topic in topics for task in topic.lags if heading.get(task) in topic.pool}


def _is_even_in_the_whole(topics: Sequence[Topic], heading: Mapping[TaskId, str]) -> bool:
    """Returns whether the total counts of members with equal subscriptions differ by at most one."""
    loads = loads_of(topics, _staying(topics, heading))
    return all(
        max(loads[name].count for name in members) - min(loads[name].count for name in members) <= 1 for members in subscriptions(topics).values()
    )


def plan_of(indexed: IndexedProblem, topics: Sequence[Topic], target: Mapping[TaskId, str], dealt: Dealt) -> Plan:
    """The plan that revokes each task whose target is another member, and grants tasks without an
    owner at once.
    """
    now = {**target, **indexed.owner}
    movements = tuple(
        Movement(task=task, source=now[task], destination=target[task], state=MovementState.REVOKING)
        for task in sorted(target)
        if now[task] != target[task]
    )
    moves = len(movements)
    bound = min(moves, _moves_lower_bound(topics, indexed.owner))
    targets: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    for task, owner in sorted(target.items()):
        targets[owner].append(task)
    lags = {task: lag for topic in topics for task, lag in topic.lags.items()}
    stages = _rack_stages(indexed, target, dealt)
    return Plan(
        members=_member_plans(indexed, now, movements, lags),
        target={member: tuple(tasks) for member, tasks in targets.items()},
        movements=movements,
        reasons=_reasons(indexed, target, lags, dealt),
        probing=bool(movements),
        cost=PlanCost(
            moves=moves,
            moves_lower_bound=bound,
            restore_records=restore_records(indexed, target),
            cross_rack=cross_rack(indexed, target),
            imbalance=_imbalance(topics, target),
            optimal=(all(stage.cost == stage.lower_bound for stage in stages) if stages else moves == bound) and _is_evenest(indexed, topics, target),
            stages=stages,
            rack_cost_lower_bound=sum(stage.lower_bound for stage in stages),
        ),
        unique=dealt.unique,
        imbalance_now=_imbalance(topics, now),
    )


def _is_evenest(indexed: IndexedProblem, topics: Sequence[Topic], target: Mapping[TaskId, str]) -> bool:
    """Returns whether no deal that is even in each topic has evener total counts."""
    if indexed.behaviour.subscriptions_apart or not all(topic.is_even(target) for topic in topics):
        return True  # an uneven topic says so by the imbalance
    return not Evening(topics, target, ranks(topics, target)).path()


def _rack_stages(indexed: IndexedProblem, target: Mapping[TaskId, str], dealt: Dealt) -> tuple[StageCost, ...]:
    """The rack cost of the target, its moves included, with a lower bound for the same bundles
    given in any way; empty where racks make no difference.
    """
    if not indexed.racks.counts:
        return ()
    return (StageCost(name="active", cost=rack_cost(indexed, indexed.owner, target), lower_bound=dealt.rack_cost_lower_bound),)


def _member_plans(
    indexed: IndexedProblem, now: Mapping[TaskId, str], movements: Iterable[Movement], lags: Mapping[TaskId, int]
) -> dict[str, MemberPlan]:
    """Returns what each member may hold now, `active` in the order of dealing. There are no copies.

    A member revokes tasks that move, tasks that nobody may run while it is leaving, and tasks of no
    topology.
    """
    revoked = {movement.task for movement in movements}
    revoked.update(task for task, owner in indexed.owner.items() if indexed.members[owner].leaving and not indexed.eligible(task))
    active: dict[str, list[TaskId]] = {member: [] for member in indexed.members}
    revoke: dict[str, list[TaskId]] = {
        member.id: [task for task in member.active if task not in indexed.tasks] for member in indexed.members.values()
    }
    by_lag = sorted(sorted(now), key=lambda task: -lags.get(task, 0))
    for task in sorted(by_lag, key=lambda task: task.subtopology):  # equals stay in the order they had
        (revoke if task in revoked else active)[now[task]].append(task)
    return {member: MemberPlan(active=tuple(active[member]), revoke=tuple(sorted(revoke[member]))) for member in indexed.members}


def _reasons(indexed: IndexedProblem, target: Mapping[TaskId, str], lags: Mapping[TaskId, int], dealt: Dealt) -> dict[TaskId, Reason]:
    """The reason of each task that moves or is placed, with its lag, or the lag of its new owner if
    it has state; and of tasks that a leaving member gives up without a successor.
    """
    reasons: dict[TaskId, Reason] = {}
    moving = [task for task in indexed.changes(target) if task in indexed.owner and task in target]
    benefits = MoveBenefits(indexed, indexed.owner, target, moving)
    for task, destination in sorted(target.items()):
        owner = indexed.owner.get(task)
        leaving = owner is not None and indexed.members[owner].leaving
        parting = "" if owner is None else indexed.parting(owner)
        if owner == destination:
            if leaving and not indexed.eligible(task):
                reasons[task] = Reason(code="leaving")
            continue
        movement = indexed.in_flight.get(task)
        carried = movement is not None and movement.state is MovementState.REVOKING
        behind = indexed.lag(destination, task) if indexed.tasks[task].stateful else lags[task]
        if carried:
            code = "carried"
        elif task in dealt.for_traffic:
            code = benefits.code(task)
        else:
            code = "passed_on" if task in dealt.passed_on else "uneven" if task in dealt.for_lags else "dealt"
        reasons[task] = Reason(
            code=code,
            lag_records=behind,
            because="leaving" if parting == "overdue" else parting or None,
            rack_costs=None if owner is None else benefits.rack_costs(task),
        )
    return reasons


def _imbalance(topics: Iterable[Topic], owner: Mapping[TaskId, str]) -> int:
    """Partitions above the upper share of their topic plus those below the lower one, summed over
    members and topics. The share of a member that is no subscriber is 0.
    """
    outside = 0
    for topic in topics:
        lower, upper = topic.shares
        outside += sum(max(count - upper, lower - count, 0) for count in topic.counts(owner).values())
        outside += sum(task in owner and owner[task] not in topic.pool for task in topic.lags)
    return outside


def _moves_lower_bound(topics: Iterable[Topic], owner: Mapping[TaskId, str]) -> int:
    """The fewest changes of owner to any target that is even in each topic.

    Of a topic with T partitions, n members keep at most floor(T / n) each, and T mod n of them one
    more.
    """
    moves = 0
    for topic in topics:
        lower = topic.shares[0]
        counts = topic.counts(owner)
        kept = sum(min(count, lower) for count in counts.values())
        kept += min(len(topic.lags) % len(counts), sum(count > lower for count in counts.values()))
        moves += sum(task in owner for task in topic.lags) - kept
    return moves
