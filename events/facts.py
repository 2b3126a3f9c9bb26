"""Facts: what happened outside the leader. Past tense, frozen, sound by construction.

Every fact of a member has `member_id` and `incarnation` (docs/protocol.md#m1). Times inside a fact
are its sender's and decide nothing: the machine's time comes from records (docs/protocol.md#l2).
"""

from __future__ import annotations

import itertools

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError
from equipoise.events.fields import INT64_MAX, MOST_TEXT_CHARS, are_lags, are_tasks
from equipoise.events.settings import MOST_TAG_KEY_CHARS, MOST_TAG_VALUE_CHARS, MOST_TAGS, GroupSettings
from equipoise.events.tasks import Lag, TaskId

MOST_WEIGHT = 1_000_000
"""Highest weight of a partition. With the highest costs and 100 partitions, the cost of a task
stays below 2**47.
"""

MOST_TASKS = 500_000
"""Most tasks of a topology: a member's report on all of them fits into one event."""

MOST_TROUBLES = 20
"""Most troubles that a member reports at once."""

READINESS = ("word_or_lag", "lag", "word_and_lag")
"""What makes a copy of a member ready to become active.

word_or_lag: the member's word at any lag, or a lag within the group's limit; such a member may
judge by its own limit. lag: a lag within the group's limit. word_and_lag: both, where the word
comes from the application that prepares the task.
"""

PREPARED = 1_000
"""A complete preparation, in thousandths."""

_member = attrs.field(validator=fields.text())
_incarnation = attrs.field(validator=fields.integer())
_NONE: tuple[TaskId, ...] = ()


@attrs.frozen(kw_only=True)
class LogOpened:
    """The first record of a log: its id, and how senders choose a partition (docs/protocol.md#l1)."""

    log_id: str = attrs.field(validator=fields.text())
    partitions: int = attrs.field(default=1, validator=fields.integer(1, 10_000))
    manifest: str = attrs.field(default="", validator=fields.text(0, 900_000))
    """JSON text. For an imported log: what was observed, inferred and supplied. Empty for a live
    log.
    """


@attrs.frozen(kw_only=True)
class GroupConfigured:
    """The whole configuration of the group from here on (docs/protocol.md#d8)."""

    assignor: str = attrs.field(default="high_availability", validator=fields.text())
    behaviour_version: int = attrs.field(default=1, validator=fields.integer(1))
    solver: str = attrs.field(default="", validator=fields.text(0))
    """Name and version of the solver that the assignor pins; empty: it uses none."""
    led_by: str = attrs.field(default="equipoise", validator=fields.one_of("equipoise", "external"))
    """`external`: something else leads the group; equipoise only proposes (docs/protocol.md#d7)."""
    knobs: GroupSettings = attrs.field(factory=GroupSettings, validator=fields.instance_of(GroupSettings))
    made_from: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Number of the configuration that it was made from; the fact is rejected when another one is
    in force. None: it holds whatever is in force.
    """
    change_id: str = attrs.field(default="", validator=fields.text(0))
    """The `ChangePlanned` that it carries out, or undoes; empty: none."""
    by: str = attrs.field(default="", validator=fields.text(0))
    """Who made it, for people; empty: not known."""

    @property
    def content(self) -> GroupConfigured:
        """Returns what it configures, whoever made it and from whatever."""
        return attrs.evolve(self, made_from=None, change_id="", by="")


@attrs.frozen(kw_only=True)
class Subtopology:
    """A sub-topology has `partitions` tasks ``<subtopology>_0 ..``. Task p reads partition p of
    each source topic and writes partition p of each changelog.
    """

    subtopology: int = attrs.field(validator=fields.integer(0, 999_999_999))
    partitions: int = attrs.field(validator=fields.integer(1, 1_000_000))
    stateful: bool = attrs.field(validator=fields.boolean)
    source_topics: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.text()))
    changelog_topics: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.text()))


@attrs.frozen(kw_only=True)
class TopologyDeclared:
    """The tasks of topology `epoch`. A higher epoch replaces a lower one; members report which
    epoch they run (docs/protocol.md#d1).
    """

    epoch: int = attrs.field(validator=fields.integer())
    subtopologies: tuple[Subtopology, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(Subtopology)))

    def __attrs_post_init__(self) -> None:
        previous = -1
        for index, part in enumerate(self.subtopologies):
            if part.subtopology <= previous:
                raise FieldError(f"TopologyDeclared.subtopologies[{index}]", "sub-topologies must be in rising order, each once")
            previous = part.subtopology
        tasks = sum(part.partitions for part in self.subtopologies)
        if tasks > MOST_TASKS:
            raise FieldError("TopologyDeclared.subtopologies", f"{tasks} tasks; a topology has at most {MOST_TASKS}, so use fewer partitions")


@attrs.frozen(kw_only=True)
class PartitionsObserved:
    """End offsets, replica racks, weights and source lags of some partitions. Values that are not
    named stay unchanged (docs/protocol.md#d6).
    """

    end_offsets: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer())),
    )
    """topic -> partition -> end offset in records."""
    racks: dict[str, dict[int, tuple[str, ...]]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.tuple_of(fields.text()))),
    )
    """topic -> partition -> racks of its replicas."""
    weights: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer(0, MOST_WEIGHT))),
    )
    """topic -> partition -> its traffic, in any unit that is the same for all partitions of the
    group; missing: 1. Where racks count, a change causes a round; so report a weight when it
    changes, not at each measurement.
    """
    source_lags: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer())),
    )
    """topic -> partition -> records that the group has still to read (KIP-169 "Lag"), for groups
    whose assignor uses them.
    """


@attrs.frozen(kw_only=True)
class MemberJoined:
    """One incarnation of a member begins. It owns no task; it may have copies on disk
    (docs/protocol.md#m1).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    """Threads: a member of capacity 2 gets twice the tasks of a member of capacity 1."""
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    tags: dict[str, str] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(1, MOST_TAG_KEY_CHARS), fields.text(1, MOST_TAG_VALUE_CHARS), most_items=MOST_TAGS),
    )
    """Client tags (KIP-708), as ``{"zone": "eu-1a"}``."""
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """How many milliseconds before `session_timeout_ms` the lease ends: at least max_step_ms for
    each broker failover to tolerate (docs/protocol.md#m4).
    """
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """An earlier incarnation of this member that is proven dead, for example by the lock of the
    state directory (docs/protocol.md#m5).
    """
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    """Copies found on disk, with their lags."""
    eager: bool = attrs.field(default=False, validator=fields.boolean)
    """The member cannot take or give up single tasks: before any change of what it runs it gives up
    all tasks (KIP-415, protocol `eager`).
    """
    readiness: str = attrs.field(default="word_or_lag", validator=fields.one_of(*READINESS))
    """One of READINESS. Except for word_or_lag, its assignments carry the group's limit, by which
    it judges its copies.
    """
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """The member's own limit: records that a ready copy may be behind. None: the group's
    acceptable_recovery_lag and acceptable_recovery_ms.
    """
    advertised: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    """Where other processes reach the application, as ``host:port``; None: nowhere. No decision
    depends on it.
    """
    subtopologies: tuple[Subtopology, ...] | None = attrs.field(
        default=None, validator=fields.optional(fields.tuple_of(fields.instance_of(Subtopology)))
    )
    """The member's own topology of `topology_epoch`, which must be the one that was declared under
    this epoch (docs/protocol.md#d1). None: not said, as by former builds and imported logs.
    """


@attrs.frozen(kw_only=True)
class Load:
    """The load of a member's host. Shares are from 0 to 1 of what the host has; rates are per
    second.
    """

    cpu: float = attrs.field(default=0.0, validator=fields.number())
    memory: float = attrs.field(default=0.0, validator=fields.number())
    disk: float = attrs.field(default=0.0, validator=fields.number())
    records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    restored_records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    """Restore speed of all its copies together, measured recently while there was something to
    restore; 0: not measured.
    """
    tasks: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    """Task that it runs -> records per second that it processes. May be missing. Divides the host's
    load among its tasks when `busy` is missing.
    """
    behind: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    """Task -> records of its sources that are still to be processed (KIP-169 "Lag"), for tasks it
    runs or any others. May be missing.
    """
    busy: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    """Task that it runs -> microseconds per second that its records spend in their handler, waits
    included. May be missing. Divides `cpu` among the tasks.
    """


@attrs.frozen(field_transformer=fields.asked_by_the_class)
class LagReported:
    """Heartbeat and complete report of a member (docs/protocol.md#m2).

    `held` and `ready` are always complete. `lags` is complete when `base` is None; else it changes
    the report numbered `base`, and `forgotten` names the copies that are gone.
    """

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    number: int = attrs.field(validator=fields.integer())
    """Rises with every report of the incarnation."""
    assignment_epoch: int = attrs.field(validator=fields.integer())
    """Epoch of the last MemberAssigned that it applied; 0: none yet."""
    held: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Tasks that it runs as active, including tasks that it is still closing, excluding tasks that
    wait for a hold before they start.
    """
    ready: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Copies it declares ready to become active."""
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    base: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    forgotten: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    leaving: bool = attrs.field(default=False, validator=fields.boolean)
    load: Load | None = attrs.field(default=None, validator=fields.optional(fields.instance_of(Load)))
    preparing: dict[TaskId, int] = attrs.field(factory=dict, validator=fields.mapping_of(fields.task, fields.integer(0, PREPARED)))
    """Task that its application is preparing -> progress in thousandths. Possibly shortened when
    there are very many.
    """
    failed: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Tasks whose last preparation failed and will be retried."""

    def __attrs_post_init__(self) -> None:
        incarnation, number, epoch, base = self.incarnation, self.number, self.assignment_epoch, self.base
        if not (
            self.member_id.__class__ is str
            and 0 < len(self.member_id) <= MOST_TEXT_CHARS
            and self.member_id.isascii()
            and incarnation.__class__ is number.__class__ is epoch.__class__ is int
            and 0 <= incarnation <= INT64_MAX
            and 0 <= number <= INT64_MAX
            and 0 <= epoch <= INT64_MAX
            and (self.held is _NONE or are_tasks(self.held))
            and (self.ready is _NONE or are_tasks(self.ready))
            and are_lags(self.lags)
            and (base is None or (base.__class__ is int and 0 <= base <= INT64_MAX))
            and (self.forgotten is _NONE or are_tasks(self.forgotten))
            and (self.leaving is False or self.leaving is True)
            and (self.load is None or self.load.__class__ is Load)
            and self.preparing.__class__ is dict
            and not self.preparing
            and self.failed is _NONE
        ):
            fields.ask_each(self)


@attrs.frozen(kw_only=True)
class MemberUnchanged:
    """The member is alive, and its last LagReported still says how it is (docs/protocol.md#m2)."""

    member_id: str = _member
    incarnation: int = _incarnation
    report: int = attrs.field(validator=fields.integer())
    """Number of that report."""


@attrs.frozen(kw_only=True)
class TaskReady:
    """Copies have been restored and may become active. Announces early what the next LagReported
    has in `ready`.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    assignment_epoch: int = attrs.field(validator=fields.integer())
    tasks: tuple[TaskId, ...] = attrs.field(validator=fields.task_set)


@attrs.frozen(kw_only=True)
class TasksRevoked:
    """The member has given up tasks. Announces early that the next LagReported does not have them
    in `held`.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    assignment_epoch: int = attrs.field(validator=fields.integer())
    tasks: tuple[TaskId, ...] = attrs.field(validator=fields.task_set)


@attrs.frozen(kw_only=True)
class TaskParked:
    """The application failed or does not return, and its member keeps the task and handles nothing
    more in it, until it is granted again or says so with an empty `error`. The leader does nothing
    about it: on another member the task would fail, too.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    task: TaskId = attrs.field(validator=fields.task)
    token: int = attrs.field(validator=fields.integer())
    """Fencing token of the grant."""
    topic: str = attrs.field(default="", validator=fields.text(0))
    """Of the record at which the application failed; empty: it failed at no record."""
    partition: int = attrs.field(default=0, validator=fields.integer())
    offset: int = attrs.field(default=0, validator=fields.integer())
    error: str = attrs.field(default="", validator=fields.text(0))
    """Empty: the task is handled again."""


@attrs.frozen(kw_only=True)
class TroublesReported:
    """The member is held up from outside: by open transactions in its sources, quotas of brokers,
    sources that were partitioned differently, a clock. For people: no decision depends on it.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    troubles: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.text(), most_items=MOST_TROUBLES))
    """All of them, as sentences without a full stop; empty: there are none any more."""


@attrs.frozen(kw_only=True)
class LeaveIntended:
    """The member wants to leave once its tasks run elsewhere. The wish ends with the incarnation
    (docs/protocol.md#m7).
    """

    member_id: str = _member
    incarnation: int = _incarnation


@attrs.frozen(kw_only=True)
class LeaveCancelled:
    """The member stays after all."""

    member_id: str = _member
    incarnation: int = _incarnation


@attrs.frozen(kw_only=True)
class LeaveRequested:
    """An operator asks these members to leave, all in one round, or withdraws the request
    (docs/protocol.md#m8).
    """

    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))
    """At least one, in rising order. Once accepted, the request is for the member by name."""
    withdrawn: bool = attrs.field(default=False, validator=fields.boolean)
    """The members may stay after all."""
    incarnations: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer()))
    """Of these members, in the same order, when they were chosen; the fact is rejected when one is
    another now. Empty: whichever they are.
    """
    staying: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """So many members were to stay when these were chosen; the fact is rejected when fewer would.
    None: however few.
    """

    def __attrs_post_init__(self) -> None:
        if not self.members:
            raise FieldError("LeaveRequested.members", "names nobody; name at least one member")
        if len(self.incarnations) not in (0, len(self.members)):
            raise FieldError("LeaveRequested.incarnations", f"{len(self.incarnations)} of {len(self.members)} members; name each, or none")
        for index, (before, name) in enumerate(itertools.pairwise(self.members)):
            if before >= name:
                raise FieldError(f"LeaveRequested.members[{index + 1}]", "members must be in rising order, each once")


@attrs.frozen(kw_only=True)
class DealRequested:
    """An operator asks for a new deal: partitions that are balanced by count may move
    (docs/protocol.md#d11).
    """


MEASURED_KINDS = ("lead", "migrate", "adopt")
"""Changes of who leads or reads, which the members of a group do not report: equipoise begins to
lead it, its broker takes it over, or members take the place of consumers, and back. Who makes the
change measures it.
"""
CHANGE_KINDS = ("configure", "deal", "scale_down", "join", "restart", "other", *MEASURED_KINDS)
"""What is changed: the settings, the deal of partitions, members that are asked to leave, members
that join, members that restart, something that the log does not show, or one of MEASURED_KINDS.
"""
MOST_QUIET_MS = 3_600_000
JUDGED_METRICS = ("unavailable_task_ms", "moves", "rest_ms")
"""What a change is judged by: task-milliseconds that no member ran a task, tasks that went on on
another member, and milliseconds until the group was at rest.
"""


@attrs.frozen(kw_only=True)
class ExpectedCost:
    """The cost that is expected of a change, by one of JUDGED_METRICS: the median, the interval of
    50 %, and the one of 95 %.
    """

    metric: str = attrs.field(validator=fields.one_of(*JUDGED_METRICS))
    median: int = attrs.field(validator=fields.integer())
    low_50: int = attrs.field(validator=fields.integer())
    high_50: int = attrs.field(validator=fields.integer())
    low_95: int = attrs.field(validator=fields.integer())
    high_95: int = attrs.field(validator=fields.integer())

    def __attrs_post_init__(self) -> None:
        if not self.low_95 <= self.low_50 <= self.high_50 <= self.high_95:
            raise FieldError("ExpectedCost.low_50", "the interval of 50 % must lie within the one of 95 %")


@attrs.frozen(kw_only=True)
class ChangePlanned:
    """The group is going to be changed, and what that costs is to be judged
    (docs/protocol.md#d14). Written just before the change.
    """

    change_id: str = attrs.field(validator=fields.text())
    """Names the change in its log."""
    kind: str = attrs.field(validator=fields.one_of(*CHANGE_KINDS))
    what: str = attrs.field(validator=fields.text())
    """The change, for people."""
    why: str = attrs.field(default="", validator=fields.text(0))
    expected: tuple[ExpectedCost, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(ExpectedCost)))
    """In the order of JUDGED_METRICS, each at most once; empty: nothing was predicted."""
    quiet_ms: int = attrs.field(default=15_000, validator=fields.integer(1, MOST_QUIET_MS))
    """The change is over when nothing was under way for so long, in ms of group time, and each
    member was heard after that.
    """
    judge_within_ms: int = attrs.field(default=3_600_000, validator=fields.integer(1))
    """It is judged after so long at the latest, in ms of group time."""
    most_unavailable_task_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """More is too much, whatever was predicted; None: no such limit."""
    or_undo: bool = attrs.field(default=False, validator=fields.boolean)
    """Whether the settings of before come back when it costs too much. Of `kind` configure only."""
    made_from: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Number of the configuration for which it was planned; the fact is rejected when another one
    is in force. Only the configuration with its `change_id` then carries it out. None: it is
    planned whatever is in force, and the next configuration carries it out.
    """
    judged_by: str = attrs.field(default="observer", validator=fields.one_of("observer", "fold"))
    """observer: its verdict comes as a `ChangeMeasured`. fold: the machine judges it, as it did for
    former builds.
    """

    def __attrs_post_init__(self) -> None:
        places = [JUDGED_METRICS.index(each.metric) for each in self.expected]
        if places != sorted(set(places)):
            raise FieldError("ChangePlanned.expected", f"must name each of {', '.join(JUDGED_METRICS)} at most once, in this order")
        if self.or_undo and self.kind != "configure":
            raise FieldError("ChangePlanned.or_undo", f"a change of kind {self.kind!r} cannot be undone; only 'configure' can")
        if self.or_undo and not self.expected and self.most_unavailable_task_ms is None:
            raise FieldError("ChangePlanned.or_undo", "needs what is too much: expected, or most_unavailable_task_ms")


@attrs.frozen(kw_only=True)
class ChangeVerdict:
    """The cost of a planned change, in group time, beside what was expected
    (docs/protocol.md#d14).
    """

    change_id: str = attrs.field(validator=fields.text())
    outcome: str = attrs.field(validator=fields.one_of("at_rest", "late", "too_much", "replaced", "refused"))
    """at_rest: it is over. late: it was not over by the time that was set. too_much: it costs more
    than expected, or than allowed, and may not be over. replaced: another change came before that.
    refused: the settings were, so nothing changed.
    """
    unavailable_task_ms: int = attrs.field(validator=fields.integer())
    moves: int = attrs.field(validator=fields.integer())
    rest_ms: int = attrs.field(validator=fields.integer())
    """From its beginning until the group was at rest, or until now."""
    above: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.one_of(*JUDGED_METRICS, "limit")))
    """Of JUDGED_METRICS those above their interval of 95 %; and ``limit``."""
    below: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.one_of(*JUDGED_METRICS)))
    """Those below it."""


@attrs.frozen(kw_only=True)
class ChangeMeasured(ChangeVerdict):
    """The verdict on a planned change, by who has watched it: its leader, or, of MEASURED_KINDS,
    who made it.
    """


@attrs.frozen(kw_only=True)
class MemberLeft:
    """The member has stopped everything. Only the member itself may send this."""

    member_id: str = _member
    incarnation: int = _incarnation


@attrs.frozen(kw_only=True)
class MemberEnded:
    """The process of an incarnation is gone, whatever it was doing. Only who has seen it end, and
    could take its lock then, may send this (docs/protocol.md#m11).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    proof: str = attrs.field(default="", validator=fields.text(0))
    """Who has seen it, where, and how it ended, for people; no decision depends on it."""


@attrs.frozen(kw_only=True)
class RestartIntended:
    """The member wants to stop and will be back, under the same id and with its copies
    (docs/protocol.md#m12). It repeats this until it is released. LeaveCancelled takes it back; the
    wish ends with the incarnation.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    back_within_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer(1, 86_400_000)))
    """How long after its MemberLeft it will have joined again, at most. None: not stated; the
    leader expects what earlier restarts took.
    """
    wait_turn: bool = attrs.field(default=True, validator=fields.boolean)
    """Waits until the restarts of other members are over. False: at once."""


@attrs.frozen(kw_only=True)
class ProbingTick:
    """Time passes. Sent when a deadline is due, or when a group with members had no record for
    max_step_ms (docs/protocol.md#l3).
    """


@attrs.frozen(kw_only=True)
class SilenceObserved:
    """How long members have been silent, by the clock of their partition: the worker tells a group
    whose own time stood still while nothing in it was due (docs/protocol.md#l11). Counts only
    directly after the fact that it says.
    """

    silent_ms: dict[str, int] = attrs.field(converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.integer()))
    """member_id -> ms since its last fact."""
    after_offset: int = attrs.field(validator=fields.integer())
    """Offset of the group's last fact, as far as the worker had read."""


@attrs.frozen(kw_only=True)
class BaseRequested:
    """The leader's worker asks for the hash of the group's state, to store that state as a part of
    a base (docs/protocol.md#l10). Changes nothing else than a `ProbingTick` would.
    """


@attrs.frozen(kw_only=True)
class ObservedMember:
    """What an external leader assigned to one member."""

    member_id: str = _member
    incarnation: int = _incarnation
    active: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    standby: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)


@attrs.frozen(kw_only=True)
class EndedMember:
    """A member that left an external group. `ended_ms`: wall time. `inferred`: nobody recorded the
    end.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    how: str = attrs.field(validator=fields.one_of("left", "expired", "replaced"))
    ended_ms: int = attrs.field(validator=fields.integer())
    inferred: bool = attrs.field(validator=fields.boolean)


@attrs.frozen(kw_only=True)
class AssignmentObserved:
    """One generation of a group that something else leads: its complete set of members and their
    assignments, current from here on (docs/protocol.md#d7).
    """

    generation: int = attrs.field(validator=fields.integer())
    members: tuple[ObservedMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(ObservedMember)))
    ended: tuple[EndedMember, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(EndedMember)))
    cause: str = attrs.field(default="unknown", validator=fields.text())
    """What began the round, as far as is known: join, leave, expiry, follow-up, probing or unknown.
    """
    next_probing_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Wall time of the next round that its leader scheduled."""


CARRIERS = ("faust", "kafka_streams")
"""What carries a plan out where members do not embed equipoise. kafka_streams: an application of
Kafka Streams whose assignor asks equipoise (KIP-924).
"""


@attrs.frozen(kw_only=True)
class PresentMember:
    """A member for which a round was asked. Its last LagReported says what it runs and holds."""

    member_id: str = _member
    incarnation: int = _incarnation


@attrs.frozen(kw_only=True)
class RoundAsked:
    """The leader of a group that something else carries out asks for the assignment of all its
    members (docs/protocol.md#d12). Members that it does not name are gone.
    """

    round_id: str = attrs.field(validator=fields.text())
    """Chosen by who asks; the same id is answered once."""
    members: tuple[PresentMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(PresentMember)))
    """At least one, in rising order of their ids."""
    carrier: str = attrs.field(default="kafka_streams", validator=fields.one_of(*CARRIERS))
    due_by_copies: bool = attrs.field(default=True, validator=fields.boolean)
    """The next round is due as soon as the copies that take over will be ready, standbys among
    them, and copies within `acceptable_recovery_lag` are ready soon. False: asked by a build that
    counted warm-ups only, each by its restore rate.
    """

    def __attrs_post_init__(self) -> None:
        if not self.members:
            raise FieldError("RoundAsked.members", "names nobody; name every member of the group")
        for index, (before, present) in enumerate(itertools.pairwise(self.members)):
            if before.member_id >= present.member_id:
                raise FieldError(f"RoundAsked.members[{index + 1}]", "members must be in rising order, each once")


@attrs.frozen(kw_only=True)
class RejoinedMember:
    """A member as it takes part in one generation of a classic consumer group.

    `client`: the member id that the broker gave it; decisions do not depend on it.
    `topology_epoch`: the topology of its subscription. `held`: what it had when the generation
    began. A client of the eager protocol has stopped these tasks already, and gets back what it is
    assigned.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    client: str = attrs.field(validator=fields.text())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    held: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)


@attrs.frozen(kw_only=True)
class AbsentMember:
    """A member that is missing in a generation, and is waited for: `back_within_ms` from now on."""

    member_id: str = _member
    back_within_ms: int = attrs.field(validator=fields.integer(1, 86_400_000))


@attrs.frozen(kw_only=True)
class GroupRejoined:
    """A generation of a classic consumer group begins, and equipoise has the seat of its leader
    (docs/protocol.md#d13). `members` is complete: who is missing has left the group, and is waited
    for only if `absent` names it.
    """

    generation: int = attrs.field(validator=fields.integer())
    """The broker's number of the generation."""
    protocol: str = attrs.field(validator=fields.text())
    """The group's assignment protocol, as ``range`` or ``cooperative-sticky``."""
    members: tuple[RejoinedMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(RejoinedMember)))
    absent: tuple[AbsentMember, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(AbsentMember)))
    topologies: tuple[TopologyDeclared, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(TopologyDeclared)))
    """Topologies that are new, in rising order of their epochs. The last one has all tasks; those
    before it are subscriptions to a part of them.
    """

    def __attrs_post_init__(self) -> None:
        named = [("members", [each.member_id for each in self.members]), ("absent", [each.member_id for each in self.absent])]
        for field, names in named:
            for index, (before, name) in enumerate(itertools.pairwise(names)):
                if before >= name:
                    raise FieldError(f"GroupRejoined.{field}[{index + 1}]", "members must be in rising order, each once")
        here = {each.member_id for each in self.members}
        for index, absent in enumerate(self.absent):
            if absent.member_id in here:
                raise FieldError(f"GroupRejoined.absent[{index}]", "the member is among the members")
        for index, (lower, higher) in enumerate(itertools.pairwise(self.topologies)):
            if lower.epoch >= higher.epoch:
                raise FieldError(f"GroupRejoined.topologies[{index + 1}]", "epochs must rise")
        held = [task for each in self.members for task in each.held]
        if len(held) != len(set(held)):
            raise FieldError("GroupRejoined.members", "two members hold the same task; name it for one of them, or for none")


@attrs.frozen(kw_only=True)
class Undecodable:
    """Bytes that are not a sound fact. They are folded in their place, so that live and replay see
    the same (docs/protocol.md#l6).
    """

    code: str = attrs.field(validator=fields.text())
    """A code of `equipoise.events.codec.UNDECODABLE_CODES`."""
    field: str = attrs.field(default="", validator=fields.text(0))
    kind: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    length_bytes: int = attrs.field(validator=fields.integer())
    crc32: int = attrs.field(validator=fields.integer(0, 2**32 - 1))


Fact = (
    LogOpened
    | GroupConfigured
    | TopologyDeclared
    | PartitionsObserved
    | MemberJoined
    | LagReported
    | MemberUnchanged
    | TaskReady
    | TasksRevoked
    | TaskParked
    | TroublesReported
    | LeaveIntended
    | LeaveCancelled
    | LeaveRequested
    | DealRequested
    | ChangePlanned
    | ChangeMeasured
    | MemberLeft
    | MemberEnded
    | RestartIntended
    | ProbingTick
    | SilenceObserved
    | BaseRequested
    | AssignmentObserved
    | GroupRejoined
    | Undecodable
    | RoundAsked
)
