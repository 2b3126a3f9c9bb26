"""The class of the assignor `lag_aware`, and what it deals now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_2, IndexedProblem
from equipoise.assignors.common.plan import Plan
from equipoise.assignors.common.problem import AssignmentProblem, MovementState
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
from equipoise.assignors.lag_aware.dealt_plan import plan_of
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
