"""Decisions: what the leader emitted, each with the fact that caused it. Imperative, frozen, the
same each time they are computed.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError
from equipoise.events.tasks import TaskId

_member = attrs.field(validator=fields.text())
_incarnation = attrs.field(validator=fields.integer())


@attrs.frozen(kw_only=True)
class MemberExpired:
    """An incarnation is out: it must end itself when it reads this."""

    member_id: str = _member
    incarnation: int = _incarnation
    cause: str = attrs.field(validator=fields.one_of("session_timeout", "superseded", "proven_dead", "revocation_timeout"))
    silent_ms: int = attrs.field(validator=fields.integer())
    """Group time since its last valid fact."""
    hold_ms: int = attrs.field(default=0, validator=fields.integer())
    """How long a new owner of its tasks waits from reading its grant; > 0 when it was taken by
    force (PROTOCOL M5).
    """


@attrs.frozen(kw_only=True)
class BalanceEvaluated:
    """The leader's verdict on the balance, emitted when it changes."""

    verdict: str = attrs.field(validator=fields.one_of("empty", "balanced", "warming", "moving", "blocked"))
    """balanced: the target is reached. warming: copies restore. moving: tasks change hands.
    blocked: wanted, but nothing can be begun.
    """
    available_movements: int = attrs.field(validator=fields.integer())
    planned_movements: int = attrs.field(validator=fields.integer())
    imbalance_before: int = attrs.field(validator=fields.integer())
    imbalance_after: int = attrs.field(validator=fields.integer())
    """Tasks over the upper share plus tasks under the lower share, summed over members; now, and at
    the target.
    """


MOVE_STATES = ("waiting", "warming", "revoking", "granted", "cancelled")
"""waiting: no warm-up slot yet; without destination: for the member it was lost with. warming: the
destination restores. revoking: the source gives it up. granted: the destination has it."""


@attrs.frozen(kw_only=True)
class Move:
    """One task's movement, with the reason as a code and the numbers it rests on; readers render
    the text.
    """

    task: TaskId = attrs.field(validator=fields.task)
    source: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    destination: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    state: str = attrs.field(validator=fields.one_of(*MOVE_STATES))
    reason: str = attrs.field(validator=fields.text())
    """A code of `assignors.REASONS`."""
    lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Lag of the destination's copy when it was decided; None: it has no copy, or the task has no
    state.
    """


@attrs.frozen(kw_only=True)
class AssignmentIssued:
    """A decision round. The members it changes each get a MemberAssigned right after. With over
    MOST_MOVES moves, or over a million bytes, it comes in parts (`equipoise.events.parts`)."""

    generation: int = attrs.field(validator=fields.integer())
    cause: str = attrs.field(validator=fields.text())
    """What began the round: one of `equipoise.statemachine.context.CAUSES`."""
    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))
    moves: tuple[Move, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(Move)))
    """Every task whose movement began, advanced, ended or was cancelled in this round, by task; of
    one task what ended comes before what begins.
    """
    probing: bool = attrs.field(validator=fields.boolean)
    """More movements are to come."""
    scheduled_delay_ms: int = attrs.field(default=0, validator=fields.integer())
    """Group time until the leader decides on what it leaves undone on purpose: lost work, a move in
    back-off. 0: nothing (KIP-415, design II).
    """
    unique: bool = attrs.field(default=True, validator=fields.boolean)
    """False: the optimum is not the only one, so another solver version may rightly differ."""
    part: int = attrs.field(default=1, validator=fields.integer(1))
    parts: int = attrs.field(default=1, validator=fields.integer(1))


MOST_MOVES = 8_000
"""Moves in one AssignmentIssued, however short they are."""


@attrs.frozen(kw_only=True)
class MemberAssigned:
    """The complete set for one incarnation, fenced by its own epoch (PROTOCOL M3)."""

    member_id: str = _member
    incarnation: int = _incarnation
    assignment_epoch: int = attrs.field(validator=fields.integer(1))
    active: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    standby: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    warmup: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    revoke: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """To be closed and left out of `held` in the next report."""
    tokens: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer(1)))
    """Fencing token of each task of `active`, in its order; rises with every grant of the task
    (PROTOCOL M6).
    """
    hold_ms: dict[TaskId, int] = attrs.field(
        factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer(1))
    )
    """Active tasks that must not start until this long after this decision was read (PROTOCOL M5).
    """
    released: bool = attrs.field(default=False, validator=fields.boolean)
    """A leaving member that owns nothing: it may go."""
    acceptable_recovery_lag: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()), metadata=fields.APPENDED)
    """The group's setting, by which the member judges whether its copies are ready (PROTOCOL M2);
    None: it joined with the readiness word_or_lag.
    """
    acceptable_recovery_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()), metadata=fields.APPENDED)
    """The same."""

    def __attrs_post_init__(self) -> None:
        if len(self.tokens) != len(self.active):
            raise FieldError(
                "MemberAssigned.tokens", f"{len(self.tokens)} tokens for {len(self.active)} active tasks; one for each, in the same order"
            )
        active = frozenset(self.active) if self.hold_ms else frozenset()
        for task in self.hold_ms:
            if task not in active:
                raise FieldError(f"MemberAssigned.hold_ms[{task}]", "a hold is for a task of `active`")


def _check_part(kind: str, part: int, parts: int) -> None:
    if part > parts:
        raise FieldError(f"{kind}.part", f"{part} is over the number of parts, {parts}")


@attrs.frozen(kw_only=True)
class MemberAssignedPart:
    """One part of a MemberAssigned that is too large for one event (PROTOCOL L8). The parts follow
    each other; a member applies them together, when it has read the last one."""

    member_id: str = _member
    incarnation: int = _incarnation
    part: int = attrs.field(validator=fields.integer(1))
    """From 1."""
    parts: int = attrs.field(validator=fields.integer(2))
    assigned: MemberAssigned = attrs.field(validator=fields.instance_of(MemberAssigned))
    """The same in all parts but for the tasks: each list of the whole set is the lists of the
    parts, one after the other.
    """

    def __attrs_post_init__(self) -> None:
        _check_part("MemberAssignedPart", self.part, self.parts)
        if (self.assigned.member_id, self.assigned.incarnation) != (self.member_id, self.incarnation):
            raise FieldError("MemberAssignedPart.assigned", "is for another incarnation than its part says")


@attrs.frozen(kw_only=True)
class ProposedMember:
    """What equipoise would give one member."""

    member_id: str = _member
    active: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    standby: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    warmup: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)


@attrs.frozen(kw_only=True)
class AssignmentProposed:
    """Shadow: what would have been decided here in a group that something else leads (PROTOCOL D7).
    Never applied.
    """

    generation: int = attrs.field(validator=fields.integer())
    """Generation of the observed assignment it stands beside."""
    members: tuple[ProposedMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(ProposedMember)))
    moves: tuple[Move, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(Move)))
    probing: bool = attrs.field(validator=fields.boolean)
    unique: bool = attrs.field(default=True, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class AssignmentProposedPart:
    """One part of an AssignmentProposed that is too large for one event (PROTOCOL L8). The parts
    follow each other.
    """

    part: int = attrs.field(validator=fields.integer(1))
    """From 1."""
    parts: int = attrs.field(validator=fields.integer(2))
    proposed: AssignmentProposed = attrs.field(validator=fields.instance_of(AssignmentProposed))
    """Some of its members, and of its moves. A member with very many tasks is named several times,
    each time with others of them.
    """

    def __attrs_post_init__(self) -> None:
        _check_part("AssignmentProposedPart", self.part, self.parts)


@attrs.frozen(kw_only=True)
class EventRejected:
    """A fact was unsound or came too late; it changed nothing but, at most, its member's lease."""

    kind: int = attrs.field(validator=fields.integer())
    """Type code of the fact."""
    code: str = attrs.field(validator=fields.text())
    """A code of `equipoise.statemachine.rejections.REJECTIONS`; its text is rendered by readers."""
    member_id: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    numbers: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer(-(2**63))))
    """What the text needs, in the order its template names them."""


WARNINGS = ("rack_tag_differs", "rack_tag_missing", "rack_not_in_tags")
"""rack_tag_differs: its tag `rack` says another rack than `rack`; the tag is taken.
rack_tag_missing: it has a rack and not the tag that is asked for; its rack is taken.
rack_not_in_tags: it has a rack, and the tags asked for are others; they say how copies are spread,
the rack what traffic costs."""


@attrs.frozen(kw_only=True)
class MemberWarned:
    """What this incarnation says of itself does not fit the group's configuration, and is decided
    on all the same (KIP-925, 4.D.III).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    code: str = attrs.field(validator=fields.one_of(*WARNINGS))
    said: str = attrs.field(validator=fields.text())
    """Its rack."""
    tag: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    """Its tag `rack`; None: it has none."""


@attrs.frozen(kw_only=True)
class MemberAsked:
    """An operator wants this incarnation to leave, and it is drained from here on; or no longer
    wants it (PROTOCOL M8).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    leave: bool = attrs.field(validator=fields.boolean)
    """False: the request was taken back."""


@attrs.frozen(kw_only=True)
class Checkpointed:
    """The state after this fact has this hash, so that `verify` may start here (PROTOCOL L7)."""

    state_sha256: str = attrs.field(validator=fields.text(64, 64))
    seq: int = attrs.field(validator=fields.integer())
    form: int = attrs.field(default=0, validator=fields.integer())
    """The form of the state that was hashed (`equipoise.statemachine.snapshots.FORM`); 0: nobody
    said. Hashes of two forms say nothing about each other."""


Decision = (
    MemberExpired
    | BalanceEvaluated
    | AssignmentIssued
    | MemberAssigned
    | AssignmentProposed
    | EventRejected
    | Checkpointed
    | MemberWarned
    | MemberAsked
    | MemberAssignedPart
    | AssignmentProposedPart
)
