"""The question an assignor is asked, and its answer. Both frozen; the machine asks, `equipoise
assign` asks, tests ask.

Determinism: equal problems give equal plans, whatever the order of `tasks` and `members` and of
every mapping in them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

import attrs

from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, TaskId


class Guarantee(enum.Enum):
    """The invariants an assignor may declare; 1, 3, 6 and 8 bind every assignor. Checked where
    declared.
    """

    ALWAYS_OWNED = 2
    """Every task has exactly one target owner whenever an eligible member exists, or a stated
    lost_until_ms.
    """
    CAUGHT_UP_FIRST = 4
    """A stateful task is granted only to a caught-up member if one is alive and eligible."""
    COPIES_CAPPED = 5
    """Warm-ups never exceed their caps, standbys never the number asked for."""
    CONVERGES = 7
    """With truthful reports the balanced target is reached within a stated bound and kept."""
    LEAVING_APART = 9
    """Beside COPIES_CAPPED: copies that take over from leaving members are outside the caps, as
    many as are restored before the drain timeout.
    """


@attrs.frozen(kw_only=True)
class Partition:
    """A partition and the racks of its replicas (empty: not known). `weight`: its traffic, in any
    unit that is the same for all partitions.
    """

    topic: str
    partition: int
    racks: tuple[str, ...] = ()
    weight: int = 1


@attrs.frozen(kw_only=True)
class TaskLoad:
    """What a task asks of its host, measured: `cpu`, `memory`, `disk` in millionths of one thread's
    part of a host, `records_per_s` processed.
    """

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    records_per_s: int = 0


@attrs.frozen(kw_only=True)
class Task:
    """A task to be placed. `end_offset`: records in its changelogs, which a member without a copy
    has to restore.

    `lag`: records of its source that nobody has processed yet; None: not known.
    """

    id: TaskId
    stateful: bool
    end_offset: int = 0
    source: tuple[Partition, ...] = ()
    changelog: tuple[Partition, ...] = ()
    written_records_per_s: int = 0
    """Speed at which its changelogs grow; 0: they do not, or it was not measured."""
    load: TaskLoad | None = None
    """None: not measured."""
    lag: int | None = None
    lost_since_ms: int | None = None
    """Group time at which its owner left or died without having been asked to hand it over; None:
    it is not lost. Nobody owns a lost task.
    """
    guest: bool = False
    """It is where it is only because its owner left or died and is not back: if some task must
    move, it may as well be this one.
    """


@attrs.frozen(kw_only=True)
class Member:
    """A live member.

    `active`: tasks it owns: granted to it, or still being given up by it. No task is in two
    members' `active`. `standby`, `warmup`: copies it was told to keep. `lags`: task -> lag of every
    copy it reports, whoever asked for it; no entry = no copy. `ready`: copies it declared ready;
    what that is worth, its `readiness` says (`equipoise.events.facts.READINESS`).
    `ready_lag_records`: a limit of its own, in the place of acceptable_recovery_lag and
    acceptable_recovery_ms; None: it has none. `home`: tasks it owned until it left or died, and
    that moved for that reason alone; they are the first to come back.
    """

    id: str
    capacity: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    leaving: bool = False
    drained: bool = False
    """It is leaving and its drain timeout has passed: what it still runs goes now, caught-up
    destination or not (PROTOCOL M7).
    """
    drain_deadline_ms: int | None = None
    """Group time at which that will be; None: it is not leaving, or nobody said."""
    subtopologies: Mapping[int, int] | None = None
    """Sub-topologies of its topology epoch -> their number of partitions there. Others, and further
    partitions, it cannot run (PROTOCOL D1). None: it can run every task."""
    active: tuple[TaskId, ...] = ()
    standby: tuple[TaskId, ...] = ()
    warmup: tuple[TaskId, ...] = ()
    lags: Mapping[TaskId, Lag] = attrs.field(factory=dict)
    ready: frozenset[TaskId] = frozenset()
    readiness: str = "word_or_lag"
    ready_lag_records: int | None = None
    home: frozenset[TaskId] = frozenset()
    reported: tuple[TaskId, ...] | None = None
    """What it says it runs, in its own order, for an assignor to which that matters: `active`, and
    what others own; None: `active`, rising.
    """
    restore_records_per_s: int = 0
    """Restore speed of all its copies together, as measured; 0: not measured."""
    eager: bool = False
    """It gives up all it has before any change of what it runs (PROTOCOL M3). The machine sees to
    that whatever the plan; here for an assignor whose plan depends on it."""
    crash_looping: bool = False
    """It crashed again and again, and its back-off is not over: what others can run as well goes to
    them. While nobody else is caught up on a task, and its copy is the soonest ready, it still runs
    it (PROTOCOL D10)."""

    def knows(self, task: TaskId) -> bool:
        """Whether its topology has the task, so that it can run it or keep a copy of it (PROTOCOL
        D1).
        """
        return self.subtopologies is None or task.partition < self.subtopologies.get(task.subtopology, 0)


class MovementState(enum.Enum):
    """What a movement waits for."""

    WAITING = "waiting"
    """Wanted; no warm-up slot yet, or the assignor does not look before its next round."""
    WARMING = "warming"
    """Its destination restores; it holds a warm-up slot, unless the destination is a standby of the
    task.
    """
    REVOKING = "revoking"
    """Its destination is caught up; the source has been told to give the task up. To the source
    itself: it gives the task up and takes it again (what `learner` calls being learned, under its
    option strict)."""


@attrs.frozen(kw_only=True)
class Movement:
    """A change of owner that is wanted or under way. `source` None: nobody owns the task."""

    task: TaskId
    source: str | None
    destination: str
    state: MovementState


@attrs.frozen(kw_only=True)
class Revocations:
    """What an assignor wants to be told again about revocations for balance alone: `times` rounds
    in succession began some, the last one at `since_ms`; others wait for `until_ms` (group time; 0:
    none waits)."""

    times: int = 0
    since_ms: int | None = None
    until_ms: int = 0


Memory = Mapping[str, int | tuple[str, ...] | tuple[TaskId, ...]]
"""What an assignor that reproduces one with a memory wants to be told again, by names of its own,
in rising order: those that end in ``_tasks`` hold tasks, those that end in ``_members`` ids of
members, all others whole numbers. Empty: it has decided nothing yet, or another leader did."""


@attrs.frozen(kw_only=True)
class AssignmentProblem:
    """Everything an assignor may look at.

    `in_flight`: WARMING and REVOKING movements decided earlier. Their destinations are carried to
    the end (PROTOCOL D9): the machine has already dropped those whose reason is gone. A REVOKING
    one whose source has let go has source None, and its destination gets the task now. `blocked`:
    (task, member) pairs on which no new warm-up may begin (a warm-up stalled there, or gave its
    slot to others; PROTOCOL M7). `now_ms`: group time (PROTOCOL L2). `revocations`, `memory`: what
    the last plan said there.
    """

    tasks: tuple[Task, ...]
    members: tuple[Member, ...]
    settings: GroupSettings = attrs.field(factory=GroupSettings)
    in_flight: tuple[Movement, ...] = ()
    blocked: frozenset[tuple[TaskId, str]] = frozenset()
    now_ms: int = 0
    revocations: Revocations = attrs.field(factory=Revocations)
    follow_up: bool = False
    """It is asked again because of what was decided (a hand-over is done, a slot came free, time is
    up), and nothing new has come from outside.
    """
    memory: Memory = attrs.field(factory=dict)
    anew: bool = False
    """An operator asks for a new deal: what is even need not stay as it is. For assignors that deal
    (`deals_by_lag`).
    """


@attrs.frozen(kw_only=True)
class MemberPlan:
    """What one member may hold now. All in rising order; `active` may have an order of its own,
    that of assignment.

    `active` holds only tasks that are free, or that this member owns and keeps. `revoke` is what it
    owns and must give up.
    """

    active: tuple[TaskId, ...] = ()
    standby: tuple[TaskId, ...] = ()
    warmup: tuple[TaskId, ...] = ()
    revoke: tuple[TaskId, ...] = ()


@attrs.frozen(kw_only=True)
class Reason:
    """Why a task moves, is placed, or waits: a code of REASONS and the lag it rests on (None: no
    copy, or no state).
    """

    code: str
    lag_records: int | None = None
    because: str | None = None
    """For a movement: the code of why it was wanted, when `code` says what it waits for."""
    rack_costs: tuple[int, int] | None = None
    """For a movement: what running the task costs in traffic on its source and on its destination;
    None: racks make no difference.
    """


REASONS: Mapping[str, str] = {
    "balance": "{source} has more than its share; {destination} has less",
    "traffic": "{destination} is nearer to what it reads than {source}{traffic}",
    "traffic_room": "it makes room on {source} for a task that is nearer there{traffic}",
    "load": "{source} carries more of the load than {destination}, by more than the task and what is worth a move",
    "leaving": "{source} is leaving",
    "crash_loop": "{source} keeps crashing",
    "unowned": "nobody ran it; {destination} is the best placed of the caught-up members",
    "unowned_stateless": "nobody ran it; {destination} has room, and it has no state to restore",
    "unowned_cold": "nobody ran it and nobody is caught up; {destination} is soonest ready ({records} to restore)",
    "return_home": "{destination} is back and had it before",
    "ready": "{destination} is caught up ({records} behind)",
    "ready_in_time": "{destination} is {records} behind and restores them within acceptable_recovery_ms",
    "slot_full": "waits for a warm-up slot",
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
    "taken_back": "{destination} had not let go of it yet, and keeps it",
    "being_learned": "{source} gives it up while it is being learned, and takes it again",
    "blocked": "the last warm-up on {destination} stalled, or gave its slot to a copy that will be ready far sooner; back-off",
    "eager": "{destination} is eager: it gives up everything, then gets all that it is to have together",
    "lost": "its member is gone and may come back for it; until then nobody runs it",
    "lost_for_good": "its member did not come back for it in time; {destination} has room",
    "lost_work_waits": "lost work waits for its member; until then nothing else moves for balance",
    "next_step": "so many tasks are moved for balance at a time; it is not yet the turn of this one",
    "back_off": "tasks were moved for balance just now; the next such move waits",
}
"""Reason code -> template for readers; ``records`` as `records_text` has them, ``traffic`` as
`traffic_text`.
"""


def records_text(records: int | None) -> str:
    """``1 record``, ``1,204 records``; None: ``an unknown number of records``."""
    return "an unknown number of records" if records is None else f"{records:,} record{'' if records == 1 else 's'}"


def traffic_text(rack_costs: tuple[int, int] | None) -> str:
    """`` (traffic 20 before, 0 after)``; None: nothing."""
    return "" if rack_costs is None else f" (traffic {rack_costs[0]:,} before, {rack_costs[1]:,} after)"


@attrs.frozen(kw_only=True)
class StageCost:
    """What one stage of a staged solve costs, and a proven lower bound of that, given the stages
    before it.
    """

    name: str
    cost: int
    lower_bound: int


@attrs.frozen(kw_only=True)
class PlanCost:
    """What the plan costs. `moves`: owners that change from now to the target; `moves_lower_bound`:
    fewest for any balanced target, proven.
    """

    moves: int
    moves_lower_bound: int
    restore_records: int
    """Records that destinations still have to restore."""
    cross_rack: int
    imbalance: int
    """Tasks over the upper share plus tasks under the lower share at the target, summed over
    members.
    """
    optimal: bool
    """True only when the solver proved the cost equal to its lower bound; where racks make a
    difference, that of the whole.
    """
    stages: tuple[StageCost, ...] = ()
    """Rack cost of running all tasks, moves included (``active``), and of keeping standbys
    (``standby``); empty where racks make no difference.
    """
    rack_cost_lower_bound: int = 0
    """Of the sum of all stages, for any balanced target with any standbys."""

    @property
    def rack_cost(self) -> int:
        """All stages together."""
        return sum(stage.cost for stage in self.stages)


@attrs.frozen(kw_only=True)
class LoadBalance:
    """How full the fullest and the emptiest staying member are per thread, in millionths of a fair
    share: now, and at the target.

    `bound`: what the two differ by at most once the group has come to rest, if every task may go
    everywhere.
    """

    highest_now: int = 0
    lowest_now: int = 0
    highest: int = 0
    lowest: int = 0
    bound: int = 0


@attrs.frozen(kw_only=True)
class Plan:
    """Target, what may happen now, and why. Mappings are keyed in rising order and name every live
    member.
    """

    members: Mapping[str, MemberPlan]
    target: Mapping[str, tuple[TaskId, ...]]
    """Active tasks each member is to have in the end."""
    movements: tuple[Movement, ...]
    """All that is wanted or under way, soonest ready first."""
    reasons: Mapping[TaskId, Reason]
    probing: bool
    """More movements are to come, so the group should be evaluated again."""
    cost: PlanCost
    unique: bool = True
    """False: other plans cost the same, so another solver version may rightly choose another."""
    imbalance_now: int = 0
    """As cost.imbalance, with the owners of now."""
    lost_until_ms: Mapping[TaskId, int] = attrs.field(factory=dict)
    """Lost tasks that nobody is given yet on purpose -> group time at which that ends, in rising
    order of tasks. The leader asks again by then.
    """
    revocations: Revocations = attrs.field(factory=Revocations)
    """To be handed over with the next problem."""
    memory: Memory = attrs.field(factory=dict)
    """The same."""
    ask_again_ms: int | None = None
    """Group time at which the assignor wants to be asked again, whatever else; None: it does not.
    """
    watching: bool = False
    """It rests on what changes by itself: ask again at the next probing interval, though nothing is
    wanted now.
    """
    load: LoadBalance | None = None
    """For assignors that balance by load."""

    @property
    def scheduled_ms(self) -> int | None:
        """Group time at which the leader is to ask again though nothing else happens; None: it need
        not.
        """
        others = [until_ms for until_ms in (self.revocations.until_ms, self.ask_again_ms) if until_ms]
        return min([*self.lost_until_ms.values(), *others], default=None)


class Assignor(Protocol):
    """Who should run what. Pure: no clock, randomness, environment, or memory from call to call."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int:
        """Behaviour version: rises when any problem gets another plan."""

    @property
    def solver(self) -> str:
        """Name and version of the pinned solver, or ""."""

    @property
    def guarantees(self) -> frozenset[Guarantee]: ...
    def assign(self, problem: AssignmentProblem) -> Plan:
        """Raises InputError on a problem it cannot take, never anything else but for a defect."""


def deals_by_lag(assignor: Assignor) -> bool:
    """Whether it deals tasks by the lags of their sources (`Task.lag`), as it says by an attribute
    of this name. Then the leader has the lags observed, waits for them before the first round
    (PROTOCOL D2), and takes requests for a new deal (PROTOCOL D11)."""
    return bool(getattr(assignor, "deals_by_lag", False))


def check_settings(assignor: Assignor, settings: GroupSettings) -> None:
    """Asks the assignor about an empty group. Raises InputError when it cannot take these knobs,
    whatever the group.
    """
    assignor.assign(AssignmentProblem(tasks=(), members=(), settings=settings))


class WrappedAssignor:
    """An assignor that passes for another one, whose questions or answers it looks at or changes.
    To be subclassed.
    """

    def __init__(self, assignor: Assignor) -> None:
        self.wrapped = assignor

    @property
    def name(self) -> str:
        return self.wrapped.name

    @property
    def version(self) -> int:
        return self.wrapped.version

    @property
    def solver(self) -> str:
        return self.wrapped.solver

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        return self.wrapped.guarantees

    @property
    def deals_by_lag(self) -> bool:
        return deals_by_lag(self.wrapped)

    def assign(self, problem: AssignmentProblem) -> Plan:
        return self.wrapped.assign(problem)
