"""The assignor `lag_aware`: KIP-169, partitions of topics dealt to the members of a consumer group,
by count first and then by lag.

The KIP's example: C0 and C1 read t0 with the lags 100,000, 60,000 and 50,000. Before, by range:
160,000 and 50,000. After: 100,000 and 110,000.

A topic is a sub-topology here, and one of its partitions a task; `dealing` has the algorithm. Who
subscribes to a topic are the members that know the sub-topology (`Member.subtopologies`). Capacity
and copies of state play no part, as in the KIP.

The option `cross_topic` deals all topics together, so that counts and lags are even over all that
members have. Without it each topic is dealt by itself, as the KIP says: ten topics of one partition
each go to one member.

What differs from the KIP, because a group that runs must not be dealt anew at every question: what
is even stays as it is, whatever lags do in the meantime. A topic is dealt anew when a partition has
no owner that may keep it, when counts differ by two, or when an operator asks for a new deal
(`AssignmentProblem.anew`); with `cross_topic` all topics are, and also when counts differ by two in
the whole of members that subscribe to the same. While partitions of it are being handed over, only
those that need an owner are dealt, beside the others; the rest waits until that is done. And a
partition that changes its owner is revoked first and granted when its owner has let go; the KIP's
consumers all stop.

Racks, which the KIP does not know, come last: with `rack_aware_strategy` the same hands are given
so that the least is read across racks (`near_hands`). Counts are what they would be without; so are
lags, but for partitions that stand for each other, of equal lag or within `rack_lag_tolerance`:
with a tolerance of d records, two members that have k partitions of a topic each at most may differ
by 2*d*k more. What is even moves only when the traffic falls by more than the moves cost, and then
changes places in the same way. `balanced_min_cost` means the same as `min_cost`: each topic is
spread anyway.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import attrs

from equipoise.assignors import options
from equipoise.assignors.costs import cross_rack, rack_cost, restore_records
from equipoise.assignors.dealing import Topic, deal_all, deal_nearer, deal_topic, fill_all, hand_out, loads_of, subscriptions, topics_of
from equipoise.assignors.hands import Dealt
from equipoise.assignors.movements import Merits
from equipoise.assignors.problem import AssignmentProblem, Guarantee, MemberPlan, Movement, MovementState, Plan, PlanCost, Reason, StageCost
from equipoise.assignors.situation import Situation
from equipoise.assignors.transport import SOLVER
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

CROSS_TOPIC = "cross_topic"
AUTO_OFFSET_RESET = "auto_offset_reset"
OFFSET_RESETS = ("earliest", "latest")
RACK_LAG_TOLERANCE = "rack_lag_tolerance"


def partition_lag(*, beginning: int | None, end: int | None, committed: int | None, auto_offset_reset: str = "latest") -> int:
    """Records of a partition that the group has still to read (KIP-169 "Lag", its sign put right),
    never below 0.

    All offsets are of next records. `committed` None: nothing was committed yet, so the group
    begins where `auto.offset.reset` says: at the end for "latest" (in any case of letters), else at
    the beginning. The others None: not known, counts 0.
    """
    after = end or 0
    following = committed
    if following is None:
        following = after if auto_offset_reset.lower() == "latest" else beginning or 0
    return max(after - following, 0)


@attrs.frozen(kw_only=True)
class Ways:
    """The options of `lag_aware`.

    `cross_topic`: see above. `rack_lag_tolerance`: partitions of a topic whose lags differ by no
    more records may stand for each other where racks make a difference. `auto_offset_reset`: where
    the members begin to read a partition of which the group has committed nothing; for whoever
    observes the lags.
    """

    cross_topic: bool = False
    rack_lag_tolerance: int = 0
    auto_offset_reset: str = OFFSET_RESETS[0]

    @classmethod
    def of(cls, settings: GroupSettings) -> Ways:
        """Raises FieldError for one that is unsound, and for an option that is none of these."""
        options.known_only(settings, LagAware.name, (AUTO_OFFSET_RESET, CROSS_TOPIC, RACK_LAG_TOLERANCE))
        return cls(
            cross_topic=options.flag(settings, CROSS_TOPIC),
            rack_lag_tolerance=options.whole(settings, RACK_LAG_TOLERANCE, 0),
            auto_offset_reset=auto_offset_reset(settings),
        )


class LagAware:
    """KIP-169. Pure and without memory. Its options: see `Ways`.

    It does not promise CAUGHT_UP_FIRST: who has a copy plays no part. It keeps no copies, so
    COPIES_CAPPED holds of itself. Its balance is that of each topic, and is reached when everybody
    has let go of what it was asked for.
    """

    name = "lag_aware"
    version = 1
    solver = SOLVER
    deals_by_lag = True
    guarantees = frozenset({Guarantee.ALWAYS_OWNED, Guarantee.COPIES_CAPPED, Guarantee.CONVERGES})

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound or none of its own.
        """
        ways = Ways.of(problem.settings)
        situation = Situation(problem)
        topics = topics_of(situation, task_lags(situation))
        settled = {task: movement.destination for task, movement in situation.in_flight.items() if movement.state is MovementState.REVOKING}
        heading = {**situation.owner, **settled}
        dealt = (_deal_all if ways.cross_topic else _deal_each)(situation, topics, heading, settled, ways)
        return _plan(situation, topics, {**heading, **dealt.owner}, dealt)


def auto_offset_reset(settings: GroupSettings) -> str:
    """Where the members of a group begin that has committed nothing, as its option says; whichever
    assignor it has.
    """
    return options.one_of(settings, AUTO_OFFSET_RESET, OFFSET_RESETS)


def task_lags(situation: Situation) -> dict[TaskId, int]:
    """Task -> records of its source that are still to be read; what is not known counts 0."""
    return {task.id: task.lag or 0 for task in situation.tasks.values()}


# What is dealt now


def _deal_each(situation: Situation, topics: Sequence[Topic], heading: Mapping[TaskId, str], settled: Mapping[TaskId, str], ways: Ways) -> Dealt:
    dealt: list[Dealt] = []
    for topic in topics:
        even = topic.is_even(heading) and not situation.anew
        if any(task in settled for task in topic.lags):
            staying = _staying([topic], heading)
            dealt.append(_left(situation, [topic]) if even else Dealt(hand_out(topic, staying, loads_of([topic], staying))))
        elif even:
            dealt.append(_nearer(situation, [topic], ways))
        else:
            dealt.append(deal_topic(situation, topic, ways.rack_lag_tolerance))
    return Dealt(
        {task: name for each in dealt for task, name in each.owner.items()},
        all(each.unique for each in dealt),
        sum(each.rack_cost_lower_bound for each in dealt),
        frozenset[TaskId]().union(*(each.for_traffic for each in dealt)),
    )


def _deal_all(situation: Situation, topics: Sequence[Topic], heading: Mapping[TaskId, str], settled: Mapping[TaskId, str], ways: Ways) -> Dealt:
    even = not situation.anew and all(topic.is_even(heading) for topic in topics) and _is_even_in_the_whole(topics, heading)
    if settled:
        return _left(situation, topics) if even else Dealt(fill_all(topics, _staying(topics, heading)))
    return _nearer(situation, topics, ways) if even else deal_all(situation, topics, ways.rack_lag_tolerance)


def _left(situation: Situation, topics: Iterable[Topic]) -> Dealt:
    """Nothing of these topics is dealt."""
    return Dealt({}, True, sum(situation.racks.active(task).least for topic in topics for task in topic.lags))


def _nearer(situation: Situation, topics: Sequence[Topic], ways: Ways) -> Dealt:
    """What is even stays, but for partitions that change places because that is less to read across
    racks, by more than the changes cost.
    """
    return deal_nearer(situation, topics, ways.rack_lag_tolerance) if situation.racks.counts else Dealt({})


def _staying(topics: Iterable[Topic], heading: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Partitions whose owner or destination may have them."""
    return {task: heading[task] for topic in topics for task in topic.lags if heading.get(task) in topic.pool}


def _is_even_in_the_whole(topics: Sequence[Topic], heading: Mapping[TaskId, str]) -> bool:
    """Members that subscribe to the same have as many partitions, to within one."""
    loads = loads_of(topics, _staying(topics, heading))
    return all(
        max(loads[name].count for name in members) - min(loads[name].count for name in members) <= 1 for members in subscriptions(topics).values()
    )


# The plan


def _plan(situation: Situation, topics: Sequence[Topic], target: Mapping[TaskId, str], dealt: Dealt) -> Plan:
    """Who owns a task that goes elsewhere is told to give it up; who gets a free one has it at
    once.
    """
    now = {**target, **situation.owner}
    movements = tuple(
        Movement(task=task, source=now[task], destination=target[task], state=MovementState.REVOKING)
        for task in sorted(target)
        if now[task] != target[task]
    )
    moves = len(movements)
    bound = min(moves, _moves_lower_bound(topics, situation.owner))
    targets: dict[str, list[TaskId]] = {member: [] for member in situation.members}
    for task, owner in sorted(target.items()):
        targets[owner].append(task)
    lags = {task: lag for topic in topics for task, lag in topic.lags.items()}
    stages = _rack_stages(situation, target, dealt)
    return Plan(
        members=_member_plans(situation, now, movements, lags),
        target={member: tuple(tasks) for member, tasks in targets.items()},
        movements=movements,
        reasons=_reasons(situation, target, lags, dealt.for_traffic),
        probing=bool(movements),
        cost=PlanCost(
            moves=moves,
            moves_lower_bound=bound,
            restore_records=restore_records(situation, target),
            cross_rack=cross_rack(situation, target),
            imbalance=_imbalance(topics, target),
            optimal=all(stage.cost == stage.lower_bound for stage in stages) if stages else moves == bound,
            stages=stages,
            rack_cost_lower_bound=sum(stage.lower_bound for stage in stages),
        ),
        unique=dealt.unique,
        imbalance_now=_imbalance(topics, now),
    )


def _rack_stages(situation: Situation, target: Mapping[TaskId, str], dealt: Dealt) -> tuple[StageCost, ...]:
    """What is read across racks and what the moves cost, where that counts, and a lower bound of it
    for the same hands, however they are given.
    """
    if not situation.racks.counts:
        return ()
    return (StageCost(name="active", cost=rack_cost(situation, situation.owner, target), lower_bound=dealt.rack_cost_lower_bound),)


def _member_plans(
    situation: Situation, now: Mapping[TaskId, str], movements: Iterable[Movement], lags: Mapping[TaskId, int]
) -> dict[str, MemberPlan]:
    """What each member may hold now, `active` in the order of dealing: no copies.

    It revokes what moves, what nobody may run while it is leaving, and what no topology has.
    """
    revoked = {movement.task for movement in movements}
    revoked.update(task for task, owner in situation.owner.items() if situation.members[owner].leaving and not situation.eligible(task))
    active: dict[str, list[TaskId]] = {member: [] for member in situation.members}
    revoke: dict[str, list[TaskId]] = {
        member.id: [task for task in member.active if task not in situation.tasks] for member in situation.members.values()
    }
    by_lag = sorted(sorted(now), key=lambda task: -lags.get(task, 0))
    for task in sorted(by_lag, key=lambda task: task.subtopology):  # equals stay in the order they had
        (revoke if task in revoked else active)[now[task]].append(task)
    return {member: MemberPlan(active=tuple(active[member]), revoke=tuple(sorted(revoke[member]))) for member in situation.members}


def _reasons(situation: Situation, target: Mapping[TaskId, str], lags: Mapping[TaskId, int], for_traffic: Container[TaskId]) -> dict[TaskId, Reason]:
    """For each task that moves or is placed, with its lag, or that of its new owner if it has
    state; and for what who leaves gives up for nobody.
    """
    reasons: dict[TaskId, Reason] = {}
    merits = Merits(situation, situation.owner, target)
    for task, destination in sorted(target.items()):
        owner = situation.owner.get(task)
        leaving = owner is not None and situation.members[owner].leaving
        parting = "" if owner is None else situation.parting(owner)
        if owner == destination:
            if leaving and not situation.eligible(task):
                reasons[task] = Reason(code="leaving")
            continue
        movement = situation.in_flight.get(task)
        carried = movement is not None and movement.state is MovementState.REVOKING
        behind = situation.lag(destination, task) if situation.tasks[task].stateful else lags[task]
        code = "carried" if carried else merits.code(task) if task in for_traffic else "dealt"
        reasons[task] = Reason(
            code=code,
            lag_records=behind,
            because="leaving" if parting == "overdue" else parting or None,
            rack_costs=None if owner is None else merits.rack_costs(task),
        )
    return reasons


def _imbalance(topics: Iterable[Topic], owner: Mapping[TaskId, str]) -> int:
    """Partitions over the upper share of their topic plus those under the lower one, summed over
    members and topics.

    The share of who may not have a partition is 0.
    """
    outside = 0
    for topic in topics:
        lower, upper = topic.shares
        outside += sum(max(count - upper, lower - count, 0) for count in topic.counts(owner).values())
        outside += sum(task in owner and owner[task] not in topic.pool for task in topic.lags)
    return outside


def _moves_lower_bound(topics: Iterable[Topic], owner: Mapping[TaskId, str]) -> int:
    """The fewest changes of owner to any target that is even in each topic.

    Of what they own of a topic with T partitions, n members keep at most floor(T / n) each, and T
    mod n of them one more.
    """
    moves = 0
    for topic in topics:
        lower = topic.shares[0]
        counts = topic.counts(owner)
        kept = sum(min(count, lower) for count in counts.values())
        kept += min(len(topic.lags) % len(counts), sum(count > lower for count in counts.values()))
        moves += sum(task in owner for task in topic.lags) - kept
    return moves
