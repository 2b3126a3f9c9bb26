"""What the leader knows of one group. Mutable; only `actions` writes to it.

A task has at most one owner: the member that was granted it and has not been proven to have let go.
A member's own sets say what it was told: `active` (it may run these), `revoking` (it was told to
give these up and has not acknowledged it), `standby` and `warmup` (copies). `owner[t] == m` exactly
when t is in m's `active` or `revoking`.
"""

from __future__ import annotations

import enum

import attrs

from equipoise.assignors import Memory, Movement, MovementState, Revocations
from equipoise.assignors.common.ranking import is_ready, lag_within
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

DEFAULT_KNOBS = GroupSettings()
REMEMBERED_TOPOLOGIES = 16
"""Epochs kept beside those that members run: one that comes with an older one is eligible for
nothing (PROTOCOL D1).
"""


ASKED_MEMORY_MS = 600_000
"""How long who was asked to leave, and is gone without a word, is asked again when it comes back:
twice the longest pause that Kubernetes makes before it starts a process anew (5 min). Who comes
later was started because somebody wants it there."""


MOST_INITIAL_DELAYS = 4
"""An empty group whose assignor deals by lag waits for lags until the initial delay has passed so
often at most (PROTOCOL D2): with the default 12 s, longer than brokers take to say them when one of
them is away."""

CRASH_BACKOFF_MS = 10_000
"""Back-off of a member after its second crash; it doubles with each further one. This and the two
below are the numbers of Kubernetes, which starts a container that keeps crashing again after 10 s,
20 s, 40 s, ... (CrashLoopBackOff)."""
MOST_CRASH_BACKOFF_MS = 300_000
CRASH_MEMORY_MS = 600_000
"""A member that neither crashed nor joined for so long, because it runs or because it is gone, has
its crashes forgotten.
"""


def crash_backoff_ms(times: int) -> int:
    """How long a member that has crashed `times` times has to run before its copies are preferred
    again; 0: they are (PROTOCOL D10).
    """
    return 0 if times < 2 else min(CRASH_BACKOFF_MS << min(times - 2, 10), MOST_CRASH_BACKOFF_MS)


class GroupPhase(enum.Enum):
    """What the group waits for."""

    UNCONFIGURED = "unconfigured"
    """Its first GroupConfigured."""
    EMPTY = "empty"
    """A first member."""
    GATHERING = "gathering"
    """The initial delay to pass, so that the first of many does not get all (PROTOCOL D2)."""
    LEADING = "leading"
    """The next fact; we decide."""
    SHADOWING = "shadowing"
    """The next fact; something else decides (PROTOCOL D7)."""


class MemberPhase(enum.Enum):
    """What a member waits for, as Kafka's group coordinator names it (KIP-848)."""

    STABLE = "STABLE"
    UNREVOKED = "UNREVOKED"
    """It still has to give something up."""
    UNRELEASED = "UNRELEASED"
    """It waits for another to give something up."""


@attrs.define
class Warmup:
    """Progress of a warm-up copy. `best_lag`: smallest lag reported since it began, None = none
    yet. Times are group time.
    """

    best_lag: int | None
    improved_ms: int
    caught_up: bool
    looked_lag: int | None
    """Its lag when its speed was last measured, or as first reported; None: not reported yet."""
    looked_ms: int
    """When that was, or, until then, when it began. Every `warmup_stall_ms` its speed is measured
    (PROTOCOL M7).
    """
    best_prepared: int = -1
    """How far its preparation has come at best, in thousandths, so that one that fails again and
    again comes no nearer; -1: it has not begun.
    """


@attrs.define
class SlotBackoff:
    """Back-off of a member whose warm-ups gave up slots to others `times` times: until `until_ms`
    none begins on it, but of the tasks `exempt`; `over` once that has passed."""

    until_ms: int
    times: int
    over: bool = False
    exempt: set[TaskId] = attrs.field(factory=set)
    """Tasks that wait for a slot on this very member, and for which one was given up."""


@attrs.define
class Preparation:
    """A task that a member's application prepares: how far that is, in thousandths, and since when
    it does, group time.
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
    """Group time of its last valid envelope (PROTOCOL M4)."""
    lags: dict[TaskId, Lag]
    eager: bool = False
    """It gives up everything before any change of what it runs; see `Context.complete_handover`."""
    readiness: str = "word_or_lag"
    """What makes a copy of it ready (`equipoise.events.facts.READINESS`)."""
    ready_lag_records: int | None = None
    """A limit of its own; None: the group's."""

    issued_epoch: int = 0
    applied_epoch: int = 0
    report_number: int = -1
    """Number of its last accepted report; -1: none."""
    held: tuple[TaskId, ...] = ()
    ready: frozenset[TaskId] = frozenset()
    preparing: dict[TaskId, Preparation] = attrs.field(factory=dict)
    failed: frozenset[TaskId] = frozenset()
    """Tasks whose last preparation failed."""
    restore_records_per_s: int = 0
    """Restore speed it measured last. Until it has measured one: that of its last incarnation, if
    that was still there, or the slowest that anybody had measured when it joined; 0: nobody had."""

    measured_records_per_s: int = 0
    """Restore speed of its own: told by it, or seen of its warm-ups, whichever came last; 0:
    neither. What is known of others does not count here.
    """
    slot_backoff: SlotBackoff | None = None

    intends: bool = False
    """It said itself that it wants to leave."""
    leaving: bool = False
    """It is drained: it intends to leave, or is asked to (`GroupState.asked`)."""
    drain_deadline_ms: int | None = None
    drain_expired: bool = False
    """Its drain timeout has passed: what it still runs goes now (PROTOCOL M7)."""
    released: bool = False

    active: dict[TaskId, int] = attrs.field(factory=dict)
    """Granted task -> epoch of the grant."""
    revoking: dict[TaskId, tuple[int, int]] = attrs.field(factory=dict)
    """Task it must give up -> (epoch that says so, group time of it)."""
    standby: set[TaskId] = attrs.field(factory=set)
    warmup: dict[TaskId, Warmup] = attrs.field(factory=dict)
    incoming: set[TaskId] = attrs.field(factory=set)
    """Tasks of movements in flight whose destination it is. Derived from `GroupState.in_flight`."""
    eager_regrants: dict[TaskId, bool] = attrs.field(factory=dict)
    """Of an eager member: tasks that it gets together with all that is on its way to it -> whether
    it had the task and gives it up for that alone.
    """

    def is_caught_up(self, task: TaskId, acceptable_lag: int) -> bool:
        """Whether its copy may become active at once (PROTOCOL M2). See
        `GroupState.acceptable_lag`.
        """
        return is_ready(self.lags.get(task), word=task in self.ready, readiness=self.readiness, acceptable=acceptable_lag)

    def awaits_word(self, task: TaskId, acceptable_lag: int) -> bool:
        """Whether its copy is near enough, and its application has not declared it ready yet."""
        lag = self.lags.get(task)
        return self.readiness == "word_and_lag" and task not in self.ready and lag.__class__ is int and lag <= acceptable_lag

    @property
    def follows(self) -> bool:
        """It judges its copies by the group's settings, which its assignments carry."""
        return self.readiness != "word_or_lag"

    def is_untold(self, task: TaskId) -> bool:
        """Whether the task was granted in this very step, so that the member does not know of it.
        """
        return self.active.get(task, 0) > self.issued_epoch

    def owns_nothing(self) -> bool:
        return not self.active and not self.revoking


@attrs.define
class Growth:
    """Of one partition: when its end offset was last observed, group time, and how many records a
    second it grew by until then, rounded up.

    Group time may be slower than the clock (PROTOCOL L2), never faster: so this may be too fast,
    and is never too slow.
    """

    observed_ms: int
    records_per_s: int = 0


@attrs.frozen
class MeasuredLoad:
    """A task's part of its hosts' load, averaged (`equipoise.statemachine.loads`): cpu, memory,
    disk in millionths of a thread's part of a host.
    """

    measured_ms: int
    cpu: int
    memory: int
    disk: int
    records_per_s: int


@attrs.define
class Backoff:
    """A warm-up that stalled `times` times: no new one of this task on this member before
    `until_ms`; `over` once that has passed.
    """

    until_ms: int
    times: int
    over: bool = False


@attrs.define
class Crashes:
    """How often a member crashed, that is, ended without having left: put out by its session, by
    force, or by its own next incarnation.

    Times are group time. `changed_ms`: when it crashed or joined last. `until_ms`: it is in
    back-off until then, counted from its join; None: it is not, or not there.
    """

    times: int
    first_ms: int
    changed_ms: int
    until_ms: int | None = None


@attrs.define
class Lost:
    """A task whose owner left or died at `since_ms` of group time. Nobody is given it before
    `until_ms`, on purpose; None: not decided.
    """

    since_ms: int
    until_ms: int | None = None


@attrs.define
class FencedIncarnation:
    """An incarnation that was put out by force and may run on: the tasks it had that nobody is
    known to run since (PROTOCOL M5).

    It is watched like a member: what it still says is rejected, and shows that it lives. Once it
    has been silent for its session timeout its lease is over, by the same reasoning as any
    member's, and nobody needs to wait for it any longer.
    """

    member_id: str
    incarnation: int
    session_timeout_ms: int
    lease_margin_ms: int
    last_heard_ms: int
    tasks: set[TaskId]


def fenced_key(member_id: str, incarnation: int) -> str:
    """Its key in `GroupState.fenced`."""
    return f"{member_id}#{incarnation}"


@attrs.define
class GroupState:
    """The whole state. Everything here is in the snapshot, but for what is marked derived."""

    group: str = ""
    log_id: str = ""
    config: GroupConfigured | None = None
    topologies: dict[int, TopologyDeclared] = attrs.field(factory=dict)
    end_offsets: dict[str, dict[int, int]] = attrs.field(factory=dict)
    racks: dict[str, dict[int, tuple[str, ...]]] = attrs.field(factory=dict)
    weights: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """Topic -> partition -> its traffic, where that was said."""
    growth: dict[str, dict[int, Growth]] = attrs.field(factory=dict)
    """Topic -> partition -> how fast it grows, from its last two end offsets."""
    loads: dict[TaskId, MeasuredLoad] = attrs.field(factory=dict)
    behind: dict[TaskId, int] = attrs.field(factory=dict)
    """Records of a task's sources that were still to be processed, as its member said, where nobody
    has observed them since.
    """
    source_lags: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """Topic -> partition -> records that the group has still to read, as observed since it began.
    """

    now_ms: int = 0
    """Group time (PROTOCOL L2)."""
    last_append_ms: int | None = None
    last_offset: int = -1
    seq: int = -1
    """Dense number of the last fact of this group, from 0."""
    number: int = 0
    """Number of the last decision."""
    generation: int = 0

    members: dict[str, MemberState] = attrs.field(factory=dict)
    owner: dict[TaskId, str] = attrs.field(factory=dict)
    tokens: dict[TaskId, int] = attrs.field(factory=dict)
    """Fencing token of the last grant of each task (PROTOCOL M6)."""
    holds: dict[TaskId, int] = attrs.field(factory=dict)
    """Tasks that were taken by force: how long a new owner waits, until one is known to run it
    (PROTOCOL M5).
    """
    fenced: dict[str, FencedIncarnation] = attrs.field(factory=dict)
    """Who those tasks may still run at, by `fenced_key`."""
    previous_owners: dict[TaskId, str] = attrs.field(factory=dict)
    """Tasks that left a member because it left or died, not for balance: whom they come back to
    first.
    """

    lost: dict[TaskId, Lost] = attrs.field(factory=dict)
    """Tasks that nobody owns since their owner left or died, in a group that has been led since."""

    in_flight: dict[TaskId, Movement] = attrs.field(factory=dict)
    waiting: int = 0
    """Movements the last round wanted and did not begin."""
    queued: dict[TaskId, str] = attrs.field(factory=dict)
    """Of these what waits for a warm-up slot and for nothing else -> its destination."""
    backoffs: dict[tuple[TaskId, str], Backoff] = attrs.field(factory=dict)
    nonces: dict[str, int] = attrs.field(factory=dict)
    """Join nonce -> group time at which it may be forgotten (PROTOCOL M1)."""

    crashes: dict[str, Crashes] = attrs.field(factory=dict)
    """Members, there or not, that crashed not long ago (PROTOCOL D10)."""

    asked: dict[str, int | None] = attrs.field(factory=dict)
    """Members that an operator asked to leave -> None once they are told; of who went without
    having left, the group time until which somebody who comes back under that name is asked too
    (PROTOCOL M8)."""

    revocations: Revocations = attrs.field(factory=Revocations)
    memory: Memory = attrs.field(factory=dict)
    """What the last plan wants to be told again."""

    gathering_until_ms: int | None = None
    awaiting_lags: bool = False
    """The initial delay is over, and the group gathers on only because lags are not known (PROTOCOL
    D2).
    """
    probing_deadline_ms: int | None = None
    scheduled_ms: int | None = None
    """When lost work is given away, or a back-off is over (KIP-415, "scheduled rebalance")."""
    verdict: tuple[str, int, int, int, int] | None = None
    """The last BalanceEvaluated, field by field."""

    @property
    def settings(self) -> GroupSettings:
        return DEFAULT_KNOBS if self.config is None else self.config.knobs

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
    def topology(self) -> TopologyDeclared | None:
        """The newest topology, None before the first."""
        return self.topologies[max(self.topologies)] if self.topologies else None

    def newest_incarnation(self, member_id: str) -> int | None:
        """The highest incarnation of this name that is a member, or is fenced and may still run;
        None: there is none (PROTOCOL M1).
        """
        known = [fenced.incarnation for fenced in self.fenced.values() if fenced.member_id == member_id]
        if member_id in self.members:
            known.append(self.members[member_id].incarnation)
        return max(known, default=None)

    def is_asked(self, member_id: str) -> bool:
        """Whether the incarnation that is there was asked to leave."""
        return self.asked.get(member_id, 0) is None

    def recent_crashes(self, member_id: str) -> Crashes | None:
        """None: it has not crashed lately, or that is forgotten."""
        crashes = self.crashes.get(member_id)
        return None if crashes is None or self.now_ms - crashes.changed_ms >= CRASH_MEMORY_MS else crashes

    def is_crash_looping(self, member_id: str) -> bool:
        """Whether it keeps crashing, and has not run for its back-off since: its copies are not
        preferred (PROTOCOL D10).
        """
        crashes = self.crashes.get(member_id)
        return crashes is not None and crashes.until_ms is not None

    def is_to_be_asked(self, member_id: str) -> bool:
        """Whether an incarnation before was asked to leave, and went without having left, so that
        this one is to be asked too.
        """
        until_ms = self.asked.get(member_id, 0)
        return until_ms is not None and until_ms > self.now_ms

    def tasks(self) -> dict[TaskId, Subtopology]:
        """Every task of the newest topology, in rising order."""
        topology = self.topology
        if topology is None:
            return {}
        return {TaskId(part.subtopology, partition): part for part in topology.subtopologies for partition in range(part.partitions)}

    def has_task(self, task: TaskId) -> bool:
        """Whether the newest topology has it."""
        return self._part(task) is not None

    def is_stateful(self, task: TaskId) -> bool:
        """Whether the newest topology has it, with state to move."""
        topology = self.topology
        parts = () if topology is None else topology.subtopologies
        return any(part.subtopology == task.subtopology and part.stateful for part in parts)

    def end_offset(self, task: TaskId, part: Subtopology) -> int:
        """Records in the task's changelogs as last observed; 0: none seen."""
        return sum(self.end_offsets.get(topic, {}).get(task.partition, 0) for topic in part.changelog_topics)

    def _part(self, task: TaskId) -> Subtopology | None:
        topology = self.topology
        parts = () if topology is None else topology.subtopologies
        return next((part for part in parts if part.subtopology == task.subtopology and task.partition < part.partitions), None)

    def records(self, task: TaskId) -> int:
        """`end_offset` of a task by its name; 0 for what is no task."""
        part = self._part(task)
        return 0 if part is None else self.end_offset(task, part)

    def growth_records_per_s(self, task: TaskId) -> int:
        """`written_records_per_s` of a task by its name; 0 for what is no task."""
        part = self._part(task)
        return 0 if part is None else self.written_records_per_s(task, part)

    def source_lag(self, task: TaskId, part: Subtopology) -> int | None:
        """Records of the task's sources that are still to be processed, by what was said last;
        None: not known.
        """
        told = self.behind.get(task)
        if told is not None or not part.source_topics:
            return told
        observed = [self.source_lags.get(topic, {}).get(task.partition) for topic in part.source_topics]
        known = [lag for lag in observed if lag is not None]
        return sum(known) if len(known) == len(observed) else None

    def knows_source_lags(self) -> bool:
        """Whether tasks are declared, and the lag is known of each that has sources. Costs time in
        their number.
        """
        tasks = self.tasks()
        return bool(tasks) and all(self.source_lag(task, part) is not None for task, part in tasks.items() if part.source_topics)

    def written_records_per_s(self, task: TaskId, part: Subtopology) -> int:
        """Speed at which the task's changelogs grow; 0: not at all, or it was observed less than
        twice.
        """
        found = (self.growth.get(topic, {}).get(task.partition) for topic in part.changelog_topics)
        return sum(growth.records_per_s for growth in found if growth is not None)

    def acceptable_lag(self, member: MemberState) -> int:
        """How far behind a copy of the member may be and count as caught up, in records (see
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
        """Sub-topologies of the member's topology epoch -> their number of partitions there. None:
        it runs the newest epoch, so every task.

        A member whose epoch was never declared, or is not remembered, can run nothing (PROTOCOL
        D1).
        """
        topology = self.topology
        if topology is None or member.topology_epoch == topology.epoch:
            return None
        known = self.topologies.get(member.topology_epoch)
        return {} if known is None else {part.subtopology: part.partitions for part in known.subtopologies}

    def learners(self, task: TaskId) -> tuple[str, ...]:
        """Members with a copy that restores, or is kept up to date, in order to take the task over.
        While there are any the task is being learned; whether one is ready is its member's word,
        `MemberState.ready`."""
        movement = self.in_flight.get(task)
        if movement is None:
            return ()
        if movement.source == movement.destination:  # given up and taken again: who learns it is not named by the movement
            return tuple(name for name in sorted(self.members) if task in self.members[name].warmup)
        destination = self.members[movement.destination]
        return (movement.destination,) if task in destination.warmup or task in destination.standby else ()

    def is_leaving_owner(self, task: TaskId) -> bool:
        """Whether who runs the task is leaving."""
        owner = self.owner.get(task)
        return owner is not None and self.members[owner].leaving

    def is_handed_over(self, member: MemberState, task: TaskId) -> bool:
        """Whether the member gets the task as soon as whoever runs it has let go: that is decided
        (PROTOCOL D3, D9).
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
    """Back-off of a warm-up that has stalled `times` times: each time twice as long (PROTOCOL M7).
    """
    return settings.warmup_stall_ms << min(times - 1, 10)


def known_lag(lag: Lag | None) -> int | None:
    """The number of records, or None for a sentinel or no report."""
    return None if lag is None or isinstance(lag, LagSentinel) else lag
