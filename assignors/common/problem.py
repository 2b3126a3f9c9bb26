"""The question an assignor is asked, and its answer. Both frozen; the machine asks, `equipoise
assign` asks, tests ask.

Determinism: equal problems give equal plans, whatever the order of `tasks` and `members` and of
every mapping in them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, TaskId


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
    displaced: bool = False
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
    acceptable_recovery_ms; None: it has none. `previously_owned`: tasks it owned until it left or died, and
    that moved for that reason alone; they are the first to come back.
    """

    id: str
    capacity: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    leaving: bool = False
    drain_expired: bool = False
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
    previously_owned: frozenset[TaskId] = frozenset()
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
