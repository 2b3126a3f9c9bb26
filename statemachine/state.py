"""What the leader knows of one group. Mutable; only `actions` writes to it.

A task has at most one owner: the member that was granted the task and has not provably given it up.
A member's sets hold its last assignment: `active` (it may run these), `revoking` (it must give
these up and has not acknowledged it), `standby` and `warmup` (copies). `owner[t] == m` exactly when
t is in m's `active` or `revoking`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from equipoise.assignors import Memory, Movement, MovementState, Revocations
from equipoise.assignors.common.ranking import is_ready, lag_within
from equipoise.events.facts import JUDGED_METRICS, ChangePlanned, GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.fields import INT64_MAX
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine.problem_cache import ProblemCache
from equipoise.statemachine.topologies import is_part_of

DEFAULT_SETTINGS = GroupSettings()
LATEST_MS = 2**62
"""Group time goes no further, so that it fits an int64 whatever the brokers' clocks say."""
FURTHEST_MS = 2**64 - 1
"""The furthest deadline that a snapshot can hold."""
REMEMBERED_TOPOLOGIES = 16
"""Epochs kept beside those that members run. A member with an older epoch is eligible for no task
(docs/protocol.md#d1).
"""


ASKED_MEMORY_MS = 600_000
"""A member that was asked to leave and disappeared is asked again when it returns within this time:
twice the longest pause before Kubernetes restarts a process (5 min). Whoever starts it later wants
it to run.
"""


MOST_INITIAL_DELAYS = 4
"""An empty group whose assignor deals by lag waits for source lags for at most this many initial
delays (docs/protocol.md#d2): with the default of 12 s, longer than brokers need to answer while one
of them is down.
"""

CRASH_BACKOFF_MS = 10_000
"""Back-off of a member after its second crash; it doubles with each further one. This value and the
next two are those of Kubernetes, which restarts a crashing container after 10 s, 20 s, 40 s, ...
(CrashLoopBackOff).
"""
MOST_CRASH_BACKOFF_MS = 300_000
REFUSED_MEMORY_MS = 600_000
"""How long a refused join is told of. A member that is started again is refused again."""

CRASH_MEMORY_MS = 600_000
"""The crashes of a member are forgotten when it neither crashed nor joined for this long, whether
it runs or is gone.
"""


def crash_backoff_ms(times: int) -> int:
    """Returns how long a member that crashed `times` times must run before its copies are preferred
    again; 0: they are preferred at once (docs/protocol.md#d10).
    """
    return 0 if times < 2 else min(CRASH_BACKOFF_MS << min(times - 2, 10), MOST_CRASH_BACKOFF_MS)


class GroupPhase(enum.Enum):
    """What the group waits for."""

    UNCONFIGURED = "unconfigured"
    """The first GroupConfigured."""
    EMPTY = "empty"
    """The first member."""
    GATHERING = "gathering"
    """The end of the initial delay, so that the first of many members does not get every task
    (docs/protocol.md#d2).
    """
    LEADING = "leading"
    """The next fact; this leader decides."""
    SHADOWING = "shadowing"
    """The next fact; another leader decides (docs/protocol.md#d7)."""


class MemberPhase(enum.Enum):
    """What a member waits for, as Kafka's group coordinator names it (KIP-848)."""

    STABLE = "STABLE"
    UNREVOKED = "UNREVOKED"
    """It still has to give a task up."""
    UNRELEASED = "UNRELEASED"
    """It waits for another member to give a task up."""


@attrs.define
class Warmup:
    """Progress of a warm-up copy. Times are group time. `best_lag`: smallest lag reported since it
    began; None: none yet.
    """

    best_lag: int | None
    improved_ms: int
    caught_up: bool
    looked_lag: int | None
    """Its lag when its speed was last measured, or as first reported; None: not reported yet."""
    looked_ms: int
    """Time of that lag, or, until it is reported, of the begin. The speed is measured every
    `warmup_stall_ms` (docs/protocol.md#m7).
    """
    best_prepared: int = -1
    """The furthest its preparation has come, in thousandths; -1: not begun. A preparation that
    fails again and again makes no progress.
    """


@attrs.define
class SlotBackoff:
    """Back-off of a member whose warm-ups gave up slots to others `times` times: until `until_ms`
    no warm-up begins on it, except of the tasks `exempt`. `over`: that time has passed.
    """

    until_ms: int
    times: int
    over: bool = False
    exempt: set[TaskId] = attrs.field(factory=set)
    """Tasks that wait for a slot on this member and for which a slot was given up."""


@attrs.define
class Preparation:
    """A task that a member's application prepares: its progress in thousandths, and the group time
    at which it began.
    """

    thousandths: int
    since_ms: int


@attrs.define
class MemberState:
    """One live incarnation."""

    member_id: str
    incarnation: int
    capacity: int
    rack: str | None
    tags: dict[str, str]
    session_timeout_ms: int
    lease_margin_ms: int
    topology_epoch: int
    last_heard_ms: int
    """Group time of its last valid envelope (docs/protocol.md#m4)."""
    lags: dict[TaskId, Lag]
    eager: bool = False
    """It gives up all tasks before any change of its tasks; see `StepContext.complete_handover`."""
    readiness: str = "word_or_lag"
    """What makes a copy on this member ready (`equipoise.events.facts.READINESS`)."""
    ready_lag_records: int | None = None
    """Its own limit; None: the group's."""
    advertised: str | None = None
    """Where other processes reach its application; None: nowhere."""
    tells_topology: bool = False
    """Its join said which topology it runs."""

    issued_epoch: int = 0
    applied_epoch: int = 0
    report_number: int = -1
    """Number of its last accepted report; -1: none."""
    held: tuple[TaskId, ...] = ()
    ready: frozenset[TaskId] = frozenset()
    preparing: dict[TaskId, Preparation] = attrs.field(factory=dict)
    failed: frozenset[TaskId] = frozenset()
    """Tasks whose last preparation failed."""
    troubles: tuple[str, ...] = ()
    """What holds it up from outside, in its own words (`TroublesReported`)."""
    restore_records_per_s: int = 0
    """Restore speed that it measured last. Before its first measurement: the speed of its previous
    incarnation, if that was still a member, or else the slowest speed of any member when it joined;
    0: unknown.
    """

    measured_records_per_s: int = 0
    """Its own restore speed: reported by it, or observed on its warm-ups, whichever came last; 0:
    unknown. Speeds of other members do not count here.
    """
    slot_backoff: SlotBackoff | None = None

    intends: bool = False
    """It reported that it wants to leave."""
    leaving: bool = False
    """It is being emptied (a drain): it wants to leave, or was asked to (`GroupState.asked`)."""
    drain_deadline_ms: int | None = None
    drain_expired: bool = False
    """Its drain timeout has passed: the tasks it still runs move now (docs/protocol.md#m7)."""
    released: bool = False

    active: dict[TaskId, int] = attrs.field(factory=dict)
    """Granted task -> epoch of the grant."""
    revoking: dict[TaskId, tuple[int, int]] = attrs.field(factory=dict)
    """Task to give up -> (epoch of the revocation, group time of it)."""
    standby: set[TaskId] = attrs.field(factory=set)
    warmup: dict[TaskId, Warmup] = attrs.field(factory=dict)
    incoming: set[TaskId] = attrs.field(factory=set)
    """Tasks of the movements in flight to this member. Derived from `GroupState.in_flight`."""
    eager_regrants: dict[TaskId, bool] = attrs.field(factory=dict)
    """Of an eager member: tasks that it will be granted together with all others -> whether it had
    the task and gives it up only for that.
    """
    version: int = attrs.field(default=0, init=False, eq=False)
    """Changes of what the assignor's problem has of the member's tasks and copies. Derived."""

    def is_caught_up(self, task: TaskId, acceptable_lag: int) -> bool:
        """Returns whether its copy may become active at once (docs/protocol.md#m2). For the limit
        see `GroupState.acceptable_lag`.
        """
        return is_ready(self.lags.get(task), word=task in self.ready, readiness=self.readiness, acceptable=acceptable_lag)

    def awaits_word(self, task: TaskId, acceptable_lag: int) -> bool:
        """Returns whether its copy is close enough and only the application's declaration is
        missing.
        """
        lag = self.lags.get(task)
        return self.readiness == "word_and_lag" and task not in self.ready and lag.__class__ is int and lag <= acceptable_lag

    @property
    def follows(self) -> bool:
        """Returns whether it judges its copies by the group's settings, which its assignments
        carry.
        """
        return self.readiness != "word_or_lag"

    def is_untold(self, task: TaskId) -> bool:
        """Returns whether the task was granted in this step, so that the member does not know of
        it.
        """
        return self.active.get(task, 0) > self.issued_epoch

    def owns_nothing(self) -> bool:
        return not self.active and not self.revoking


@attrs.define
class Growth:
    """Growth of one partition: group time of its last observation, and records/s up to then,
    rounded up.

    Group time may be slower than the clock but never faster (docs/protocol.md#l2), so this may be
    too high and is never too low.
    """

    observed_ms: int
    records_per_s: int = 0


@attrs.frozen
class MeasuredLoad:
    """A task's part of its hosts' load, averaged (see `equipoise.statemachine.loads`): cpu, memory
    and disk in millionths of one thread's share of a host.
    """

    measured_ms: int
    cpu: int
    memory: int
    disk: int
    records_per_s: int


@attrs.define
class Backoff:
    """Back-off of a warm-up that stalled `times` times: no warm-up of this task begins on this
    member before `until_ms`. `over`: that time has passed.
    """

    until_ms: int
    times: int
    over: bool = False


@attrs.define
class Crashes:
    """How often a member crashed: ended without leaving, by its session timeout, by force, or by
    its next incarnation.

    Times are group time. `changed_ms`: its last crash or join. `until_ms`: end of its back-off,
    counted from its join; None: it is in no back-off, or not a member.
    """

    times: int
    first_ms: int
    changed_ms: int
    until_ms: int | None = None


@attrs.define
class Lost:
    """A task whose owner left or died at `since_ms` of group time. On purpose nobody is granted it
    before `until_ms`; None: not decided.
    """

    since_ms: int
    until_ms: int | None = None


@attrs.define
class Restart:
    """A member that wants to stop and will be back (docs/protocol.md#m12). Times are group time."""

    asked_ms: int
    within_ms: int | None
    """How long its tasks wait after it left; None: not stated, and its turn has not come."""
    stated: bool
    wait_turn: bool
    begun: bool = False
    """Its turn has come: it gets nothing new, and lends what others can run at once."""
    drains: bool = False
    """It is emptied like a member that leaves, because that costs less."""
    left_ms: int | None = None
    """When it left; None: it has not left yet."""

    @property
    def until_ms(self) -> int | None:
        """Returns when the leader stops waiting for the member; None: it has not left yet."""
        return None if self.left_ms is None or self.within_ms is None else self.left_ms + self.within_ms


@attrs.frozen(kw_only=True)
class ChangeCounts:
    """The cost of a planned change until now. Times are group time."""

    begun_ms: int | None = None
    """None: it has not begun."""
    rest_since_ms: int | None = None
    """Since when nothing is under way; None: something is."""
    unavailable_task_ms: int = 0
    """Of the stretches that are over."""
    moves: int = 0
    looked_ms: int = -1
    """When it was looked last whether the group is at rest."""
    standing: Mapping[TaskId, int] = attrs.field(factory=dict)
    """Task that nobody runs -> since when."""
    runners: Mapping[TaskId, tuple[str, int]] = attrs.field(factory=dict)
    """Task -> member and incarnation that ran it last."""
    heard_ms: Mapping[str, int] = attrs.field(factory=dict)
    """Member -> when it was heard last."""

    def costs(self, now_ms: int) -> dict[str, int]:
        """Returns the costs by `equipoise.events.facts.JUDGED_METRICS`."""
        if self.begun_ms is None:
            return dict.fromkeys(JUDGED_METRICS, 0)
        rest_ms = now_ms if self.rest_since_ms is None else self.rest_since_ms
        return {
            "unavailable_task_ms": self.unavailable_task_ms + sum(now_ms - since_ms for since_ms in self.standing.values()),
            "moves": self.moves,
            "rest_ms": rest_ms - self.begun_ms,
        }


@attrs.frozen(kw_only=True)
class WatchedChange:
    """A planned change that is not judged yet, or is to be undone (docs/protocol.md#d14)."""

    planned: ChangePlanned
    former: GroupConfigured
    """The configuration of before."""
    offset: int
    """Of the fact that planned it."""
    planned_ms: int
    """Group time."""
    configured: int = 0
    """Configurations since it was planned."""
    undoes: bool = False
    """It was judged, and the leader is to append `former`."""
    counts: ChangeCounts | None = None
    """None: an observer counts."""


@attrs.define
class Lent:
    """A task that `borrower` runs while its owner, `home`, restarts. `as_standby`: the borrower
    keeps a standby of it.
    """

    home: str
    borrower: str
    as_standby: bool


@attrs.define
class FencedIncarnation:
    """An incarnation that was removed by force and may still run, with the tasks it had that no
    member is known to run since (docs/protocol.md#m5).

    It is watched like a member: its messages are rejected, and show that it lives. When it has been
    silent for its session timeout its lease is over, as any member's would be, and nobody waits for
    it any longer.
    """

    member_id: str
    incarnation: int
    session_timeout_ms: int
    lease_margin_ms: int
    last_heard_ms: int
    tasks: set[TaskId]


def fenced_key(member_id: str, incarnation: int) -> str:
    """The key of an incarnation in `GroupState.fenced`."""
    return f"{member_id}#{incarnation}"


@attrs.frozen
class Parked:
    """Why the owner of a task handles nothing more in it (`TaskParked`)."""

    member_id: str
    since_ms: int
    topic: str
    partition: int
    offset: int
    error: str


@attrs.frozen
class Refused:
    """Why a member's join was refused: a code of `equipoise.statemachine.topologies`, with its
    numbers. `at_ms`: group time.
    """

    at_ms: int
    code: str
    numbers: tuple[int, ...]


@attrs.define
class GroupState:
    """The state of one group. All of it is in the snapshot, except what is marked as derived."""

    group: str = ""
    log_id: str = ""
    config: GroupConfigured | None = None
    config_number: int = 0
    """Configurations since the first one that named what it was made from (docs/protocol.md#d8)."""
    topologies: dict[int, TopologyDeclared] = attrs.field(factory=dict)
    end_offsets: dict[str, dict[int, int]] = attrs.field(factory=dict)
    racks: dict[str, dict[int, tuple[str, ...]]] = attrs.field(factory=dict)
    weights: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """Topic -> partition -> its traffic, where reported."""
    growth: dict[str, dict[int, Growth]] = attrs.field(factory=dict)
    """Topic -> partition -> its growth, from its last two end offsets."""
    loads: dict[TaskId, MeasuredLoad] = attrs.field(factory=dict)
    behind: dict[TaskId, int] = attrs.field(factory=dict)
    """Records of a task's sources still to be processed, as its member reported, where nobody
    observed them later.
    """
    refused: dict[str, Refused] = attrs.field(factory=dict)
    """Members whose last join was refused, because they run another topology."""
    parked: dict[TaskId, Parked] = attrs.field(factory=dict)
    """Task that its owner, if it still is the same, has parked."""
    source_lags: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """Topic -> partition -> records that the group has still to read, as observed since it began.
    """

    now_ms: int = 0
    """Group time (docs/protocol.md#l2)."""
    last_append_ms: int | None = None
    last_offset: int = -1
    seq: int = -1
    """Dense number of the group's last fact, from 0."""
    number: int = 0
    """Number of the last decision."""
    generation: int = 0

    members: dict[str, MemberState] = attrs.field(factory=dict)
    owner: dict[TaskId, str] = attrs.field(factory=dict)
    tokens: dict[TaskId, int] = attrs.field(factory=dict)
    """Fencing token of the last grant of each task (docs/protocol.md#m6)."""
    holds: dict[TaskId, int] = attrs.field(factory=dict)
    """Tasks that were taken by force -> how long a new owner waits, in ms, until one is known to
    run the task (docs/protocol.md#m5).
    """
    fenced: dict[str, FencedIncarnation] = attrs.field(factory=dict)
    """Incarnations that may still run such tasks, by `fenced_key`."""
    previous_owners: dict[TaskId, str] = attrs.field(factory=dict)
    """Tasks whose owner left or died -> that member, to which they return first. Tasks that moved
    for balance have none.
    """

    lost: dict[TaskId, Lost] = attrs.field(factory=dict)
    """Tasks without owner since their owner left or died, in a group that has been led since."""

    in_flight: dict[TaskId, Movement] = attrs.field(factory=dict)
    waiting: int = 0
    """Movements that the last round wanted and did not begin."""
    queued: dict[TaskId, str] = attrs.field(factory=dict)
    """Those of them that wait only for a warm-up slot -> destination."""
    backoffs: dict[tuple[TaskId, str], Backoff] = attrs.field(factory=dict)
    nonces: dict[str, int] = attrs.field(factory=dict)
    """Join nonce -> group time at which it may be forgotten (docs/protocol.md#m1)."""
    nonces_kept_ms: int = attrs.field(default=0, init=False, eq=False)
    """Until this group time all nonces are kept. Derived: a lower bound."""

    crashes: dict[str, Crashes] = attrs.field(factory=dict)
    """Recent crashes, of members and of former members (docs/protocol.md#d10)."""

    asked: dict[str, int | None] = attrs.field(factory=dict)
    """Members that an operator asked to leave -> None. A member that disappeared without leaving ->
    group time until which it is asked again when it returns (docs/protocol.md#m8).
    """

    restarts: dict[str, Restart] = attrs.field(factory=dict)
    """Members that will be back. One that has left is still in `members`, and owns the tasks that
    wait for it.
    """
    lent: dict[TaskId, Lent] = attrs.field(factory=dict)
    """Tasks that were lent and are not back yet."""
    restart_times_ms: dict[str, int] = attrs.field(factory=dict)
    """Member -> how long it was away at its last restart."""

    revocations: Revocations = attrs.field(factory=Revocations)
    memory: Memory = attrs.field(factory=dict)
    """What the assignor's last plan wants to be given back in the next problem."""

    gathering_until_ms: int | None = None
    awaiting_lags: bool = False
    """The initial delay is over, and the group still waits for source lags (docs/protocol.md#d2).
    """
    probing_deadline_ms: int | None = None
    scheduled_ms: int | None = None
    """When lost tasks are assigned, a back-off ends (KIP-415, "scheduled rebalance"), or members
    that joined get their tasks (docs/protocol.md#d5).
    """
    change: WatchedChange | None = None
    """None: no planned change is to be judged."""
    verdict: tuple[str, int, int, int, int] | None = None
    """The fields of the last BalanceEvaluated."""
    problem_cache: ProblemCache[MemberState] = attrs.field(factory=ProblemCache, init=False, eq=False, repr=False)
    """Derived."""

    @property
    def settings(self) -> GroupSettings:
        return DEFAULT_SETTINGS if self.config is None else self.config.knobs

    @property
    def phase(self) -> GroupPhase:
        if self.config is None:
            return GroupPhase.UNCONFIGURED
        if self.config.led_by == "external":
            return GroupPhase.SHADOWING
        if not self.members:
            return GroupPhase.EMPTY
        return GroupPhase.LEADING if self.gathering_until_ms is None else GroupPhase.GATHERING

    @property
    def is_watched(self) -> bool:
        """Returns whether its own leader decides. One that asks for rounds has them evaluated here
        (docs/protocol.md#d12).
        """
        return self.phase is GroupPhase.SHADOWING and self.verdict is None

    @property
    def topology(self) -> TopologyDeclared | None:
        """The newest topology; None: none was declared."""
        return self.topologies[max(self.topologies)] if self.topologies else None

    def basis_problem(self, fact: GroupConfigured | ChangePlanned) -> str | None:
        """Returns the code with which a change is rejected that was made from something else than
        what is in force; None: it was not.
        """
        if fact.made_from is not None and fact.made_from != self.config_number:
            return "configuration_changed"
        is_planned = isinstance(fact, ChangePlanned) or not fact.change_id
        return None if is_planned or (self.change is not None and self.change.planned.change_id == fact.change_id) else "not_watched"

    def newest_incarnation(self, member_id: str) -> int | None:
        """The highest incarnation of this name that is a member, or is fenced and may still run;
        None: there is none (docs/protocol.md#m1).
        """
        known = [fenced.incarnation for fenced in self.fenced.values() if fenced.member_id == member_id]
        if member_id in self.members:
            known.append(self.members[member_id].incarnation)
        return max(known, default=None)

    def is_asked(self, member_id: str) -> bool:
        """Returns whether the current incarnation was asked to leave."""
        return self.asked.get(member_id, 0) is None

    def recent_crashes(self, member_id: str) -> Crashes | None:
        """The member's crashes; None: it has no recent ones."""
        crashes = self.crashes.get(member_id)
        return None if crashes is None or self.now_ms - crashes.changed_ms >= CRASH_MEMORY_MS else crashes

    def is_crash_looping(self, member_id: str) -> bool:
        """Returns whether the member crashed repeatedly and is still in back-off, so that its
        copies are not preferred (docs/protocol.md#d10).
        """
        crashes = self.crashes.get(member_id)
        return crashes is not None and crashes.until_ms is not None

    def is_to_be_asked(self, member_id: str) -> bool:
        """Returns whether an earlier incarnation was asked to leave and disappeared, so that the
        next one is asked too.
        """
        until_ms = self.asked.get(member_id, 0)
        return until_ms is not None and until_ms > self.now_ms

    def is_away(self, member_id: str) -> bool:
        """Returns whether the member has stopped everything and will be back."""
        restart = self.restarts.get(member_id)
        return restart is not None and restart.left_ms is not None

    def is_restarting(self, member_id: str) -> bool:
        """Returns whether the member keeps its place while it restarts: it is away, or about to go."""
        restart = self.restarts.get(member_id)
        return restart is not None and restart.begun and not restart.drains

    def may_stop(self, member: MemberState) -> bool:
        """Returns whether a member that restarts has lent all that it is to lend."""
        return self.is_restarting(member.member_id) and not member.revoking

    def tasks(self) -> Mapping[TaskId, Subtopology]:
        """Every task of the newest topology, in rising order."""
        return self.problem_cache.parts_of(self.topology)

    def has_task(self, task: TaskId) -> bool:
        """Returns whether the newest topology has the task."""
        return self._part(task) is not None

    def is_stateful(self, task: TaskId) -> bool:
        """Returns whether the newest topology has the task, with state to move."""
        topology = self.topology
        parts = () if topology is None else topology.subtopologies
        return any(part.subtopology == task.subtopology and part.stateful for part in parts)

    def later_ms(self, delay_ms: int) -> int:
        """The group time (ms) at which `delay_ms` will have passed, at most FURTHEST_MS."""
        return min(self.now_ms + delay_ms, FURTHEST_MS)

    def end_offset(self, task: TaskId, part: Subtopology) -> int:
        """Records in the task's changelogs, as last observed, at most INT64_MAX; 0: never observed."""
        return min(sum(self.end_offsets.get(topic, {}).get(task.partition, 0) for topic in part.changelog_topics), INT64_MAX)

    def _part(self, task: TaskId) -> Subtopology | None:
        return self.problem_cache.parts_of(self.topology).get(task)

    def records(self, task: TaskId) -> int:
        """`end_offset` of a task by its id; 0: no such task."""
        part = self._part(task)
        return 0 if part is None else self.end_offset(task, part)

    def growth_records_per_s(self, task: TaskId) -> int:
        """`written_records_per_s` of a task by its id; 0: no such task."""
        part = self._part(task)
        return 0 if part is None else self.written_records_per_s(task, part)

    def source_lag(self, task: TaskId, part: Subtopology) -> int | None:
        """Records of the task's sources still to be processed, by the newest report or observation;
        None: unknown.
        """
        reported = self.behind.get(task)
        if reported is not None or not part.source_topics:
            return reported
        observed = [self.source_lags.get(topic, {}).get(task.partition) for topic in part.source_topics]
        known = [lag for lag in observed if lag is not None]
        return sum(known) if len(known) == len(observed) else None

    def knows_source_lags(self) -> bool:
        """Returns whether a topology is declared and the source lag of each task with sources is
        known. Costs time in the number of tasks.
        """
        tasks = self.tasks()
        return bool(tasks) and all(self.source_lag(task, part) is not None for task, part in tasks.items() if part.source_topics)

    def written_records_per_s(self, task: TaskId, part: Subtopology) -> int:
        """Speed at which the task's changelogs grow; 0: they do not grow, or were observed less
        than twice.
        """
        found = (self.growth.get(topic, {}).get(task.partition) for topic in part.changelog_topics)
        return sum(growth.records_per_s for growth in found if growth is not None)

    def acceptable_lag(self, member: MemberState) -> int:
        """The lag, in records, up to which a copy of the member counts as caught up (see
        `equipoise.assignors.common.ranking.lag_within`).

        Costs time in the member's copies when acceptable_recovery_ms is set; else none.
        """
        if member.ready_lag_records is not None:
            return member.ready_lag_records
        settings = self.settings
        if not settings.acceptable_recovery_ms or not member.restore_records_per_s:
            return settings.acceptable_recovery_lag
        topology = self.topology
        parts = {} if topology is None else {part.subtopology: part for part in topology.subtopologies if part.stateful}

        def written(task: TaskId) -> int | None:
            part = parts.get(task.subtopology)
            return None if part is None or task.partition >= part.partitions else self.written_records_per_s(task, part)

        owned = {*member.active, *member.revoking}
        within = lag_within(settings.acceptable_recovery_ms, member.lags, owned, written, member.restore_records_per_s)
        return max(settings.acceptable_recovery_lag, within)

    def runnable(self, member: MemberState) -> dict[int, int] | None:
        """Sub-topologies of the member's topology epoch -> their number of partitions. None: the
        member runs the newest epoch, so every task.

        A member whose epoch was never declared, or is no longer remembered, can run nothing. A
        member that says its topology runs what is the same in the newest one (docs/protocol.md#d1).
        """
        topology = self.topology
        if topology is None or member.topology_epoch == topology.epoch:
            return None
        known = self.topologies.get(member.topology_epoch)
        if known is None:
            return {}
        if not member.tells_topology:
            return {part.subtopology: part.partitions for part in known.subtopologies}
        newest = {part.subtopology: part for part in topology.subtopologies}
        same = (part for part in known.subtopologies if part.subtopology in newest and is_part_of(part, newest[part.subtopology]))
        return {part.subtopology: part.partitions for part in same}

    def recently_refused(self) -> dict[str, Refused]:
        """Members whose join was refused within the last REFUSED_MEMORY_MS."""
        return {name: each for name, each in self.refused.items() if self.now_ms - each.at_ms < REFUSED_MEMORY_MS}

    def learners(self, task: TaskId) -> tuple[str, ...]:
        """Members whose copy restores, or is kept up to date, in order to take the task over. While
        there are any, the task is being learned. `MemberState.ready` tells whether a copy is ready.
        """
        movement = self.in_flight.get(task)
        if movement is None:
            return ()
        if movement.source == movement.destination:  # given up and taken again: the movement does not name the learner
            return tuple(name for name in sorted(self.members) if task in self.members[name].warmup)
        destination = self.members[movement.destination]
        return (movement.destination,) if task in destination.warmup or task in destination.standby else ()

    def is_leaving_owner(self, task: TaskId) -> bool:
        """Returns whether the owner of the task is leaving."""
        owner = self.owner.get(task)
        return owner is not None and self.members[owner].leaving

    def is_handed_over(self, member: MemberState, task: TaskId) -> bool:
        """Returns whether it is decided that the member gets the task as soon as its owner gives it
        up (docs/protocol.md#d3, #d9).
        """
        movement = self.in_flight.get(task)
        if task in member.eager_regrants:
            return True
        return movement is not None and movement.destination == member.member_id and movement.state is MovementState.REVOKING

    def member_phase(self, member: MemberState) -> MemberPhase:
        if member.revoking:
            return MemberPhase.UNREVOKED
        owned_elsewhere = (task for task in member.incoming if self.owner.get(task) not in (None, member.member_id))
        if any(self.in_flight[task].state is MovementState.REVOKING for task in owned_elsewhere):
            return MemberPhase.UNRELEASED
        return MemberPhase.STABLE


def stall_ms(settings: GroupSettings, times: int) -> int:
    """Back-off of a warm-up that has stalled `times` times, in ms: it doubles each time
    (docs/protocol.md#m7).
    """
    return settings.warmup_stall_ms << min(times - 1, 10)


def known_lag(lag: Lag | None) -> int | None:
    """The number of records; None for a sentinel or when nothing was reported."""
    return None if lag is None or isinstance(lag, LagSentinel) else lag
