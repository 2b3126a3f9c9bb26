"""The assignor `cooperative`: incremental cooperative rebalancing, as KIP-415 tells it. Everybody
keeps what nobody else is to have.

Design I
    What is to move is revoked from its owner and granted when that has let go; nothing else stops.
Design II
    A task whose owner left or died is *lost*. Nobody is given it for `scheduled_delay_ms`: its
    owner, which has its state, is likely to come back, and then has it again at once. After that it
    is placed like a new one. While lost work waits, nothing else moves for balance.
Design III
    The balance is reached in steps. A round revokes no more than `revocations_per_round` tasks for
    balance, and the next such part goes when their new owners have them. Rounds in succession that
    revoke for balance are spaced by a back-off, `revocation_backoff_ms` and 40 times as much each
    time, so that a fleet that starts does not shuffle once for each member; the parts of one step
    wait for each other and for no back-off.

The target is that of the shared solver: balanced by the fewest changes of owner, and of all these
one that spreads each sub-topology best.

Where this differs from Kafka Connect, and why. There, work that its owner came back for stays idle
until the delay is over; a member that leaves with nothing starts a delay; a rebalance during a
back-off ends it; what was lost for good goes to whoever was idle once, however full it is now; the
first tasks in the order of a report are the ones revoked, so whole connectors move; a new leader
knows of nothing that was lost; and revoked work is idle until the next rebalance. None of that is
so here: scenarios in ``tests/scenarios/cooperative`` show each beside what Connect does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from equipoise.assignors import options
from equipoise.assignors.bounds import moves_lower_bound
from equipoise.assignors.costs import plan_cost
from equipoise.assignors.movements import Merits, Movements, Slots
from equipoise.assignors.plans import by_member, member_plans
from equipoise.assignors.problem import AssignmentProblem, Guarantee, Memory, Movement, MovementState, Plan, Reason, Revocations
from equipoise.assignors.shares import Shares
from equipoise.assignors.situation import NEWEST, VERSION_1, Situation
from equipoise.assignors.standbys import Standbys, assign_standbys
from equipoise.assignors.target import Candidates, adopted_target
from equipoise.assignors.transport import SOLVER
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

BACKOFF_FACTOR = 40
"""How much longer each back-off in succession is; the factor of Kafka Connect, whose first one is
40 ms too.
"""
IN_PARTS = "in_parts"
"""In its memory: there while a step goes on of which a part was begun."""
MOST_IN_SUCCESSION = 8
"""After so many in succession a back-off grows no more: whatever it began with, it is at its cap of
`scheduled_delay_ms` long before.
"""


@attrs.frozen(kw_only=True)
class Delays:
    """The options of `cooperative`, in milliseconds of group time.

    `scheduled_delay_ms`: how long a lost task waits for its owner; Connect's
    scheduled.rebalance.max.delay.ms. 0: not at all. `revocation_backoff_ms`: the first back-off.
    None is longer than `scheduled_delay_ms`. 0: none. `revocations_per_round`: tasks that may be on
    their way for balance at a time. 0: all of them.
    """

    scheduled_delay_ms: int = 300_000
    revocation_backoff_ms: int = 40
    revocations_per_round: int = 0

    @classmethod
    def of(cls, settings: GroupSettings, known: Collection[str]) -> Delays:
        """Raises FieldError for one of these that is no whole number >= 0, and for an option that
        is none of `known`.
        """
        fields = {field.name: field.default for field in attrs.fields(cls) if field.name in known}
        options.known_only(settings, Cooperative.name, fields)
        return cls(**{name: options.whole(settings, name, default) for name, default in fields.items()})

    def backoff_ms(self, times: int) -> int:
        """How long the next round that revokes for balance waits after the `times`-th in
        succession; 0: the last succession is over.
        """
        grown_ms: int = self.revocation_backoff_ms * BACKOFF_FACTOR ** min(max(times - 1, 0), MOST_IN_SUCCESSION)
        return min(self.scheduled_delay_ms, grown_ms)


class Cooperative:
    """KIP-415. Pure and without memory: since when a task is lost, and whose it was, stands in the
    problem.
    """

    name = "cooperative"
    version = 2
    behaviour = NEWEST
    solver = SOLVER
    guarantees = frozenset((Guarantee.ALWAYS_OWNED, Guarantee.COPIES_CAPPED, Guarantee.CONVERGES))
    options: tuple[str, ...] = ("scheduled_delay_ms", "revocation_backoff_ms", "revocations_per_round")

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound.
        """
        delays = Delays.of(problem.settings, self.options)
        situation = Situation(problem, behaviour=self.behaviour)
        shares = Shares(situation)
        homes = _returned(situation)
        lost = _still_lost(problem, situation, homes, delays)
        settled = {task: movement.destination for task, movement in situation.in_flight.items()}
        candidates = _candidates(situation, homes, settled)
        target = adopted_target(situation, shares, candidates, settled, even_parts=True)  # lost work included: its place if nobody comes back for it
        now = {**situation.owner, **{task: member for task, member in target.owner.items() if task not in situation.owner and task not in lost}}
        now = dict(sorted(now.items()))
        movements, revocations, memory = _movements(problem, situation, delays, target.owner, lost)
        standbys = assign_standbys(situation, now, target.owner, movements, Slots(situation))
        imbalance = shares.imbalance(target.owner)
        moves = len(movements.planned)
        bound = moves_lower_bound(situation, shares, candidates, settled, balanced=imbalance == 0)
        return Plan(
            members=member_plans(situation, now, movements.planned, standbys, standbys.warmups),
            target=by_member(situation, target.owner),
            movements=movements.planned,
            reasons=_reasons(situation, homes, lost, now, movements, standbys),
            probing=bool(movements.planned) or standbys.unsettled,
            cost=plan_cost(situation, now, target, standbys.goal, moves=moves, bound=min(moves, bound), imbalance=imbalance),
            unique=target.unique and (standbys.goal is None or standbys.goal.unique),
            imbalance_now=shares.imbalance(now),
            lost_until_ms=lost,
            revocations=revocations,
            memory=memory,
        )


class Cooperative1(Cooperative):
    """As it decided before."""

    version = 1
    behaviour = VERSION_1
    options = ("scheduled_delay_ms", "revocation_backoff_ms")


def _returned(situation: Situation) -> dict[TaskId, str]:
    """Lost tasks whose member is back -> that member."""
    return {
        task.id: home
        for task in situation.tasks.values()
        if task.lost_since_ms is not None
        for home in situation.homes(task.id)
        if situation.may_run(home, task.id)
    }


def _still_lost(problem: AssignmentProblem, situation: Situation, homes: Mapping[TaskId, str], delays: Delays) -> dict[TaskId, int]:
    """Lost tasks that wait for their member -> until when. One that somebody was promised before is
    his; and nobody waits for a member that is back and keeps crashing."""
    waits = {
        task.id: task.lost_since_ms + delays.scheduled_delay_ms
        for task in situation.tasks.values()
        if task.lost_since_ms is not None and task.id not in homes and task.id not in situation.in_flight and not situation.is_kept_from_home(task.id)
    }
    return {task: until_ms for task, until_ms in waits.items() if until_ms > problem.now_ms}


def _candidates(situation: Situation, homes: Mapping[TaskId, str], settled: Mapping[TaskId, str]) -> dict[TaskId, Candidates]:
    """Tasks that nobody owns -> who may have them without that being a change of owner: who had
    them, if he is back, else anybody.
    """
    found: dict[TaskId, Candidates] = {}
    for task in situation.tasks.values():
        if task.id in homes:
            found[task.id] = Candidates(members=(homes[task.id],))
        elif task.stateful and task.id not in situation.owner and task.id not in settled and situation.eligible(task.id):
            found[task.id] = Candidates(fresh=situation.eligible(task.id))
    return found


def _movements(
    problem: AssignmentProblem, situation: Situation, delays: Delays, target: Mapping[TaskId, str], lost: Mapping[TaskId, int]
) -> tuple[Movements, Revocations, Memory]:
    """What is to move is revoked at once, but for what moves for balance alone: that waits while
    lost work waits, and for the back-off, and goes in parts."""
    moving = [task for task, owner in situation.owner.items() if target.get(task, owner) != owner]
    carried = [task for task in moving if task in situation.in_flight]
    forced = [task for task in moving if task not in situation.in_flight and not _may_stay(situation, task)]
    for_balance = sorted(task for task in moving if task not in situation.in_flight and _may_stay(situation, task))
    under_way = sum(_may_stay(situation, task) for task in carried)
    most = delays.revocations_per_round - under_way if delays.revocations_per_round else len(for_balance)
    if IN_PARTS in problem.memory and for_balance and not lost:
        waits_for, revocations = "", attrs.evolve(problem.revocations, since_ms=problem.now_ms, until_ms=0)
        most = 0 if under_way else most
    else:
        waits_for, revocations = _back_off(problem, delays, wanted=bool(for_balance), under_way=bool(carried), lost=bool(lost))
    begins = [] if waits_for else for_balance[: max(0, most)]
    later = for_balance[len(begins) :]
    merits = Merits(situation, situation.owner, target)
    planned: list[Movement] = []
    reasons: dict[TaskId, Reason] = {}
    for state, tasks in (
        (MovementState.REVOKING, sorted([*carried, *forced, *begins])),
        (MovementState.WAITING, later),
    ):
        for task in tasks:
            because = _wanted(situation, merits, task, target[task])
            code = "carried" if task in situation.in_flight else because if state is MovementState.REVOKING else waits_for or "next_step"
            planned.append(Movement(task=task, source=situation.owner[task], destination=target[task], state=state))
            lag_records, rack_costs = situation.lag(target[task], task), merits.rack_costs(task)
            reasons[task] = Reason(code=code, lag_records=lag_records, because=because, rack_costs=rack_costs)
    return (
        Movements(planned=tuple(planned), reasons=reasons, warmups=frozenset(), standby_destinations={}, ready_by_chance=()),
        revocations,
        {IN_PARTS: 1} if later and not waits_for else {},
    )


def _may_stay(situation: Situation, task: TaskId) -> bool:
    """It moves for balance alone: its owner stays and may run it."""
    return not situation.members[situation.owner[task]].leaving and not situation.must_move(task)


def _back_off(problem: AssignmentProblem, delays: Delays, *, wanted: bool, under_way: bool, lost: bool) -> tuple[str, Revocations]:
    """What moves for balance have to wait for ("": nothing; they begin now), and what is to be
    remembered.

    A back-off that something waited for is never cut short, whatever comes in between. Otherwise a
    group that comes to rest ends the succession.
    """
    said = problem.revocations
    until_ms = said.until_ms if said.until_ms > problem.now_ms else 0
    if not wanted:
        return "", attrs.evolve(said, times=said.times if under_way or until_ms else 0, until_ms=until_ms)
    if not until_ms and said.since_ms is not None:
        until_ms = max(0, said.since_ms + delays.backoff_ms(said.times))
    if until_ms > problem.now_ms:
        return "back_off", attrs.evolve(said, until_ms=until_ms)
    if lost:
        return "lost_work_waits", attrs.evolve(said, until_ms=0)
    return "", Revocations(times=said.times + 1, since_ms=problem.now_ms)


def _wanted(situation: Situation, merits: Merits, task: TaskId, destination: str) -> str:
    """Why it is to move."""
    parting = situation.parting(situation.owner[task])
    if parting:
        return "leaving" if parting == "overdue" else parting
    return "return_home" if situation.comes_home(destination, task) else merits.code(task)


def _reasons(
    situation: Situation,
    homes: Mapping[TaskId, str],
    lost: Mapping[TaskId, int],
    now: Mapping[TaskId, str],
    movements: Movements,
    standbys: Standbys,
) -> dict[TaskId, Reason]:
    """For each task that moves, waits, is placed, or gets a copy."""
    reasons = {task: Reason(code="standby") for task in standbys.placed}
    reasons.update((task, Reason(code="lost")) for task in lost)
    for task, owner in now.items():
        if task in situation.owner:
            if situation.members[owner].leaving and not situation.eligible(task):
                reasons[task] = Reason(code="leaving")
            continue
        code = "unowned_stateless"
        if task in situation.in_flight:
            code = "carried"
        elif homes.get(task) == owner:
            code = "return_home"
        elif situation.is_kept_from_home(task):
            code = "crash_loop"
        elif situation.tasks[task].lost_since_ms is not None:
            code = "lost_for_good" if task not in homes else "balance"
        elif situation.tasks[task].stateful:
            code = "unowned" if situation.caught_up(owner, task) else "unowned_cold"
        reasons[task] = Reason(code=code, lag_records=situation.lag(owner, task))
    reasons.update(movements.reasons)
    return dict(sorted(reasons.items()))
