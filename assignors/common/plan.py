"""The output of an assignor: the plan, its reasons and its cost."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.problem import Memory, Movement, Revocations
from equipoise.assignors.common.restore_rate import EQUALLY_SOON_MS, EQUALLY_SOON_RECORDS
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId


@attrs.frozen(kw_only=True)
class MemberPlan:
    """What one member may hold now, each in rising order; `active` may be in the order of
    assignment.

    `active`: tasks without an owner, and tasks that this member owns and keeps. `revoke`: tasks
    that it owns and must give up.
    """

    active: tuple[TaskId, ...] = ()
    standby: tuple[TaskId, ...] = ()
    warmup: tuple[TaskId, ...] = ()
    revoke: tuple[TaskId, ...] = ()


def _that_fits(records: int | None) -> int | None:
    return None if records is None else min(records, INT64_MAX)


@attrs.frozen(kw_only=True)
class Reason:
    """Why a task moves, is placed, or waits. `code`: a key of REASONS. `lag_records`: the lag of
    the destination, at most INT64_MAX, which a decision holds; None: no copy, or no state.
    """

    code: str
    lag_records: int | None = attrs.field(default=None, converter=_that_fits)
    because: str | None = None
    """Of a movement whose `code` says what it waits for: the code of why it is wanted."""
    rack_costs: tuple[int, int] | None = None
    """Of a movement: the traffic cost of running the task on its source and on its destination;
    None: racks make no difference.
    """


_COLD = "nobody ran it and nobody is caught up"
_BY_NO_MORE = f"by at most {EQUALLY_SOON_MS // 1_000} s, or by {EQUALLY_SOON_RECORDS:,} records where no speed is known"
REASONS: Mapping[str, str] = {
    "balance": "{source} has more than its share; {destination} has less",
    "balance_room": "it makes room: with it on {destination} every member has its share",
    "not_its_own": "{source} may run it no longer, by its topology or subscription",
    "traffic": "{destination} is nearer to what it reads than {source}{traffic}",
    "traffic_room": "it makes room on {source} for a task that is nearer there{traffic}",
    "load": "{source} carries more of the load than {destination}, by more than the task and what is worth a move",
    "leaving": "{source} is leaving",
    "crash_loop": "{source} keeps crashing",
    "unowned": "nobody ran it; {destination} is the best placed of the caught-up members",
    "unowned_near": "nobody ran it; {destination} is nearest to what it reads of the caught-up members",
    "unowned_stateless": "nobody ran it; {destination} has room, and it has no state to restore",
    "unowned_stateless_balance": "nobody ran it, and it has no state to restore; by balance it goes to {destination}",
    "unowned_stateless_near": "nobody ran it, and it has no state to restore; {destination} is nearest to what it reads",
    "unowned_cold": "nobody ran it and nobody is caught up; {destination} is soonest ready ({records} to restore)",
    "unowned_cold_equal": f"{_COLD}; by balance it goes to {{destination}} ({{records}} to restore), as others are ready sooner {_BY_NO_MORE}",
    "unowned_cold_queue": f"{_COLD}; it goes to {{destination}} ({{records}} to restore), as who would be ready sooner restores other tasks too",
    "unowned_cold_near": f"{_COLD}; {{destination}} is nearest to what it reads of those ready about as soon ({{records}} to restore)",
    "unowned_cold_nearest": f"{_COLD}; {{destination}} is nearest to what it reads ({{records}} to restore)",
    "unowned_cold_balance": f"{_COLD}; by balance it goes to {{destination}} ({{records}} to restore), which is not the soonest ready",
    "return_home": "{destination} is back and had it before",
    "ready": "{destination} is caught up ({records} behind)",
    "ready_in_time": "{destination} is {records} behind and restores them within acceptable_recovery_ms",
    "slot_full": "waits for a warm-up slot",
    "after_state": "{destination} runs enough until tasks with state have moved away from it; then it gets this one, which has none",
    "warming": "{destination} restores {records}",
    "overdue": "{source} is leaving and its drain timeout has passed",
    "standby": "a hot copy",
    "carried": "decided earlier and still right",
    "turn": "in the order of ids it is the turn of {destination}, wherever it runs now",
    "stand_in": "{destination} stands in with {records} to restore, until the member whose turn it is has restored it",
    "next_probing": "{destination} has {records} to restore; the next probing round looks again",
    "dealt_anew": "tasks without state are dealt anew in every round; this time it falls to {destination}",
    "fewest": "nobody runs it; {destination} has the fewest",
    "given_up": "{source} has more than its share; the next round says who gets it",
    "all_stop": "who is there has changed: by the eager protocol all stop everything, and the next round deals it anew",
    "dealt_in_turn": "by the eager protocol all work is dealt in turn; it falls to {destination}",
    "claimed_twice": "several say that they run it; all stop, and the next round says who gets it",
    "dealt": "its topic is dealt by count, then by lag; it falls to {destination}",
    "passed_on": "of all topics together, members have more even counts with it on {destination}",
    "uneven": "lags have been uneven for deal_after_ms; dealt by them it falls to {destination}",
    "taken_back": "{destination} had not let go of it yet, and keeps it",
    "being_learned": "{source} gives it up while it is being learned, and takes it again",
    "blocked": "the last warm-up on {destination} stalled, or gave its slot to a copy that will be ready far sooner; back-off",
    "eager": "{destination} is eager: it gives up everything, then gets all that it is to have together",
    "lost": "its member is gone and may come back for it; until then nobody runs it",
    "lost_for_good": "its member did not come back for it in time; {destination} has room",
    "lost_passed_on": "its member did not come back for it in time; by balance it goes to {destination}",
    "lost_elsewhere": "its member is back and has its share; by balance it goes to {destination}",
    "lost_work_waits": "lost work waits for its member; until then nothing else moves for balance",
    "next_step": "so many tasks are moved for balance at a time; it is not yet the turn of this one",
    "back_off": "tasks were moved for balance just now; the next such move waits",
}
"""Reason code -> template of its sentence. ``records`` is filled in by `records_text`, ``traffic``
by `traffic_text`.
"""


def records_text(records: int | None) -> str:
    """``1 record``, ``1,204 records``; None: ``an unknown number of records``."""
    return "an unknown number of records" if records is None else f"{records:,} record{'' if records == 1 else 's'}"


@attrs.frozen(kw_only=True)
class StageCost:
    """The cost of one stage of a staged solve, and its proven lower bound given the stages before
    it.
    """

    name: str
    cost: int
    lower_bound: int


@attrs.frozen(kw_only=True)
class PlanCost:
    """The cost of a plan. `moves`: tasks whose owner changes from now to the target.
    `moves_lower_bound`: the proven fewest for any balanced target.
    """

    moves: int
    moves_lower_bound: int
    restore_records: int
    """Records that destinations still have to restore."""
    cross_rack: int
    imbalance: int
    """Tasks above the upper share plus tasks below the lower share at the target, summed over
    members.
    """
    optimal: bool
    """True only when the solver proved that the cost equals its lower bound; where racks make a
    difference, the cost of all stages together.
    """
    stages: tuple[StageCost, ...] = ()
    """Rack cost of running all tasks, moves included (``active``), and of keeping standbys
    (``standby``). Empty where racks make no difference.
    """
    rack_cost_lower_bound: int = 0
    """Lower bound of `rack_cost` for any balanced target with any standbys."""

    @property
    def rack_cost(self) -> int:
        """The sum of all stages."""
        return sum(stage.cost for stage in self.stages)


@attrs.frozen(kw_only=True)
class LoadBalance:
    """Load per thread of the most and of the least loaded staying member, now and at the target, in
    millionths of a fair share.

    `bound`: the most that the two differ by once the group is at rest, while loads stay the same.
    """

    highest_now: int = 0
    lowest_now: int = 0
    highest: int = 0
    lowest: int = 0
    bound: int = 0


@attrs.frozen(kw_only=True)
class Plan:
    """What each member may hold now, the target, and why. Mappings have rising keys; `members` and
    `target` name every live member.
    """

    members: Mapping[str, MemberPlan]
    target: Mapping[str, tuple[TaskId, ...]]
    """Member -> the active tasks it has in the end."""
    movements: tuple[Movement, ...]
    """Every movement that is wanted or under way, soonest ready first."""
    reasons: Mapping[TaskId, Reason]
    probing: bool
    """More movements will follow, so the group must be evaluated again."""
    cost: PlanCost
    unique: bool = True
    """False: other plans cost the same, and another solver version may choose one of them."""
    imbalance_now: int = 0
    """`cost.imbalance` of the present owners."""
    lost_until_ms: Mapping[TaskId, int] = attrs.field(factory=dict)
    """Lost tasks that wait for their previous owner -> group time at which the wait ends, in rising
    order of tasks. The leader asks again by then.
    """
    revocations: Revocations = attrs.field(factory=Revocations)
    """Goes into the next problem."""
    memory: Memory = attrs.field(factory=dict)
    """Goes into the next problem."""
    ask_again_ms: int | None = None
    """Group time by which the leader asks again; None: no such time."""
    watching: bool = False
    """The plan depends on measurements: the leader asks again at the next probing interval even
    when nothing is to move.
    """
    load: LoadBalance | None = None
    """Of assignors that balance by load; None: others."""

    @property
    def scheduled_ms(self) -> int | None:
        """The earliest group time by which the leader asks again although nothing happens; None:
        never.
        """
        others = [until_ms for until_ms in (self.revocations.until_ms, self.ask_again_ms) if until_ms]
        return min([*self.lost_until_ms.values(), *others], default=None)
