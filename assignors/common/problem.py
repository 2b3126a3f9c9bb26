"""The input of an assignor. All classes are frozen.

Equal problems give equal plans, whatever the order of `tasks`, of `members` and of every mapping in
them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter

import attrs

from equipoise.assignors.common.carrier import Carrier
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId


@attrs.frozen(kw_only=True)
class Partition:
    """A partition of a topic. `racks`: those of its replicas; empty: not known. `weight`: its
    traffic, in any unit that is the same for all partitions.
    """

    topic: str
    partition: int
    racks: tuple[str, ...] = ()
    weight: int = 1


@attrs.frozen(kw_only=True)
class TaskLoad:
    """The measured load of a task: `cpu`, `memory` and `disk` in millionths of one thread's part of
    a host, and `records_per_s` processed.
    """

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    records_per_s: int = 0


@attrs.frozen(kw_only=True)
class Task:
    """A task to assign.

    `end_offset`: records in its changelogs, which a member without a copy has to restore. `lag`:
    records of its source that the group has not processed yet; None: not known.
    """

    id: TaskId
    stateful: bool
    end_offset: int = 0
    source: tuple[Partition, ...] = ()
    changelog: tuple[Partition, ...] = ()
    written_records_per_s: int = 0
    """Rate at which its changelogs grow; 0: they do not, or it was not measured."""
    load: TaskLoad | None = None
    """None: not measured."""
    lag: int | None = None
    lost_since_ms: int | None = None
    """Group time at which its owner left or died without handing it over; None: it is not lost. A
    lost task has no owner.
    """
    displaced: bool = False
    """It runs where it does only because its previous owner left or died and is still away. Among
    equal tasks this one moves first.
    """


@attrs.frozen(kw_only=True)
class MemberSpec:
    """A live member.

    `active`: tasks it owns: granted to it, or still being given up by it. No task is in two
    members' `active`. `standby`, `warmup`: copies the leader assigned to it. `lags`: task -> lag of
    every copy it reports; no entry: no copy. `ready`: copies it declared ready; `readiness` says
    whether that counts (`equipoise.events.facts.READINESS`). `ready_lag_records`: its own limit,
    which replaces acceptable_recovery_lag and acceptable_recovery_ms; None: it has none.
    `previously_owned`: tasks it owned until it left or died, and that moved for that reason alone;
    they return to it first.
    """

    id: str
    capacity: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    leaving: bool = False
    drain_expired: bool = False
    """It is leaving and its drain timeout has passed: its tasks move now, to a caught-up
    destination or not. See docs/protocol.md#m7.
    """
    drain_deadline_ms: int | None = None
    """Group time at which its drain timeout passes; None: it is not leaving, or not known."""
    subtopologies: Mapping[int, int] | None = None
    """Sub-topology of its topology epoch -> number of partitions. It cannot run any others. None:
    it can run every task. See docs/protocol.md#d1."""
    active: tuple[TaskId, ...] = ()
    standby: tuple[TaskId, ...] = ()
    warmup: tuple[TaskId, ...] = ()
    lags: Mapping[TaskId, Lag] = attrs.field(factory=dict)
    ready: frozenset[TaskId] = frozenset()
    readiness: str = "word_or_lag"
    ready_lag_records: int | None = None
    previously_owned: frozenset[TaskId] = frozenset()
    reported: tuple[TaskId, ...] | None = None
    """The tasks it reports as running, in its own order, which may include tasks that others own;
    None: `active`, in rising order.
    """
    restore_records_per_s: int = 0
    """Measured restore rate of all its copies together; 0: not measured."""
    eager: bool = False
    """It gives up all its tasks before any change of them. The state machine enforces that for
    every plan; the field is for assignors whose plan depends on it."""
    crash_looping: bool = False
    """It crashed repeatedly and its back-off is not over: its tasks go to members that can run them
    as well. It keeps a task on which nobody else is caught up while its copy is the soonest ready.
    See docs/protocol.md#d10."""

    @cached_property
    def active_in_order(self) -> tuple[TaskId, ...]:
        """`active`, in rising order."""
        return tuple(sorted(self.active))

    @cached_property
    def only_runs(self) -> bool:
        """Returns whether it reports each task that it owns as running, and has no other copies."""
        return not (self.standby or self.warmup or self.ready) and self.lags == dict.fromkeys(self.active, LagSentinel.ACTIVE)

    def knows(self, task: TaskId) -> bool:
        """Returns whether its topology has the task, so that it can run it or keep a copy."""
        return self.subtopologies is None or task.partition < self.subtopologies.get(task.subtopology, 0)


class MovementState(enum.Enum):
    """What a movement waits for."""

    WAITING = "waiting"
    """It waits for a warm-up slot, or for the assignor's next round."""
    WARMING = "warming"
    """Its destination restores. It holds a warm-up slot unless the destination is a standby of the
    task.
    """
    REVOKING = "revoking"
    """Its destination is caught up and the source is asked to give the task up. Where both are the
    same member, it gives the task up and takes it again (`learner` with its option strict)."""


@attrs.frozen(kw_only=True)
class Movement:
    """A change of owner that is wanted or under way. `source` None: the task has no owner."""

    task: TaskId
    source: str | None
    destination: str
    state: MovementState


@attrs.frozen(kw_only=True)
class Revocations:
    """What an assignor carries from plan to plan about revocations for balance alone. `times`:
    rounds in succession that began some. `since_ms`: group time of the last one. `until_ms`: group
    time for which further ones wait; 0: none waits."""

    times: int = 0
    since_ms: int | None = None
    until_ms: int = 0


Memory = Mapping[str, int | tuple[str, ...] | tuple[TaskId, ...]]
"""What an assignor carries from plan to plan, under keys of its own in rising order. A key that
ends in ``_tasks`` holds tasks, one that ends in ``_members`` ids of members, any other a whole
number. Empty: it has decided nothing yet, or another leader did."""


@attrs.frozen(kw_only=True)
class AssignmentProblem:
    """Everything an assignor may look at.

    `in_flight`: WARMING and REVOKING movements decided earlier, which are carried to their end; the
    state machine has dropped those whose reason is gone. A REVOKING one whose source gave the task
    up has source None, and its destination gets the task now. `blocked`: (task, member) pairs on
    which no new warm-up may begin, because one stalled there or gave its slot to others. `now_ms`:
    group time. `revocations`, `memory`: from the last plan.
    """

    tasks: tuple[Task, ...]
    members: tuple[MemberSpec, ...]
    settings: GroupSettings = attrs.field(factory=GroupSettings)
    in_flight: tuple[Movement, ...] = ()
    blocked: frozenset[tuple[TaskId, str]] = frozenset()
    now_ms: int = 0
    revocations: Revocations = attrs.field(factory=Revocations)
    follow_up: bool = False
    """The round follows up on earlier decisions (a hand-over is done, a slot is free, a deadline
    passed); there is no new input.
    """
    memory: Memory = attrs.field(factory=dict)
    carrier: Carrier | None = None
    """What carries the plan out; None: members that embed equipoise."""
    anew: bool = False
    """An operator requested a new deal, so partitions that are even may move too. For assignors
    that deal by lag (`deals_by_lag`).
    """

    @cached_property
    def task_by_id(self) -> Mapping[TaskId, Task]:
        """In rising order."""
        return {task.id: task for task in sorted(self.tasks, key=attrgetter("id"))}

    @cached_property
    def owner(self) -> Mapping[TaskId, str]:
        """Task -> the member that owns it, in rising order of tasks; tasks without an owner are
        absent.
        """
        held: dict[TaskId, str] = {}
        for member in self.members:
            held.update(dict.fromkeys(member.active, member.id))
        owned = list(filter(held.__contains__, self.task_by_id))
        return dict(zip(owned, map(held.__getitem__, owned), strict=True))

    @cached_property
    def owned_once(self) -> bool:
        """Returns whether what members own are tasks of `tasks`, each of them once."""
        return len(self.owner) == sum([len(member.active) for member in self.members])
