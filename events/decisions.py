"""Decisions: what the leader emits, each with the fact that caused it. Imperative, frozen, and the
same each time they are computed.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError
from equipoise.events.facts import ChangeVerdict
from equipoise.events.tasks import TaskId

REACHED = "balanced"
"""`BalanceEvaluated.verdict`: the target is reached, and the round has found nothing to do."""

_member = attrs.field(validator=fields.text())
_incarnation = attrs.field(validator=fields.integer())


@attrs.frozen(kw_only=True)
class MemberExpired:
    """The leader has expired this incarnation. It must end itself when it reads this."""

    member_id: str = _member
    incarnation: int = _incarnation
    cause: str = attrs.field(validator=fields.one_of("session_timeout", "superseded", "proven_dead", "revocation_timeout"))
    silent_ms: int = attrs.field(validator=fields.integer())
    """Group time in milliseconds since its last valid fact."""
    hold_ms: int = attrs.field(default=0, validator=fields.integer())
    """How many milliseconds a new owner of its tasks waits after reading its grant. Above 0 when
    the incarnation may still run (docs/protocol.md#m5).
    """


@attrs.frozen(kw_only=True)
class BalanceEvaluated:
    """The leader's verdict on the balance of the group. Emitted when it changes."""

    verdict: str = attrs.field(validator=fields.one_of("empty", REACHED, "warming", "moving", "blocked"))
    """balanced: the target is reached. warming: copies are restoring. moving: tasks change owners.
    blocked: movements are wanted, but none can begin.
    """
    available_movements: int = attrs.field(validator=fields.integer())
    planned_movements: int = attrs.field(validator=fields.integer())
    imbalance_before: int = attrs.field(validator=fields.integer())
    imbalance_after: int = attrs.field(validator=fields.integer())
    """Tasks above the upper share plus tasks below the lower share, summed over members: now
    (`imbalance_before`) and at the target (`imbalance_after`).
    """


MOVE_STATES = ("waiting", "warming", "revoking", "granted", "cancelled")
"""waiting: the task has no warm-up slot yet; without a destination, it waits for its previous
owner. warming: the destination restores. revoking: the source gives the task up. granted: the
destination has it.
"""


@attrs.frozen(kw_only=True)
class Move:
    """One step of the movement of one task. The reason is a code with its numbers; readers render
    the text.
    """

    task: TaskId = attrs.field(validator=fields.task)
    source: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    destination: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    state: str = attrs.field(validator=fields.one_of(*MOVE_STATES))
    reason: str = attrs.field(validator=fields.text())
    """A code of `equipoise.assignors.REASONS`."""
    lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Lag of the destination's copy, in records, when this was decided. None: it has no copy, or
    the task has no state.
    """


@attrs.frozen(kw_only=True)
class AssignmentIssued:
    """A decision round. Each member that the round changes gets a MemberAssigned right after it. A
    round with more than MOST_MOVES moves, or of more than a million bytes, comes in parts
    (`equipoise.events.parts`).
    """

    generation: int = attrs.field(validator=fields.integer())
    cause: str = attrs.field(validator=fields.text())
    """What began the round: one of `equipoise.statemachine.step_context.CAUSES`."""
    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))
    moves: tuple[Move, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(Move)))
    """Every task whose movement began, advanced, ended or was cancelled in this round, in task
    order. For one task, a movement that ends comes before one that begins.
    """
    probing: bool = attrs.field(validator=fields.boolean)
    """More movements will follow."""
    scheduled_delay_ms: int = attrs.field(default=0, validator=fields.integer())
    """Group time in milliseconds until the leader decides on what it defers: lost work, or a move
    in back-off. 0: nothing is deferred (KIP-415, design II).
    """
    unique: bool = attrs.field(default=True, validator=fields.boolean)
    """False: there is another optimum, so another solver version may choose differently."""
    part: int = attrs.field(default=1, validator=fields.integer(1))
    parts: int = attrs.field(default=1, validator=fields.integer(1))


MOST_MOVES = 8_000
"""Most moves in one AssignmentIssued, however small they are."""


@attrs.frozen(kw_only=True)
class MemberAssigned:
    """The complete assignment of one incarnation, fenced by its own epoch (docs/protocol.md#m3)."""

    member_id: str = _member
    incarnation: int = _incarnation
    assignment_epoch: int = attrs.field(validator=fields.integer(1))
    active: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    standby: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    warmup: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    revoke: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Tasks to close and to leave out of `held` in the next report."""
    tokens: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer(1)))
    """Fencing token of each task of `active`, in the same order. It rises with every grant of the
    task (docs/protocol.md#m6).
    """
    hold_ms: dict[TaskId, int] = attrs.field(
        factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer(1))
    )
    """Active task -> milliseconds after reading this decision before it may start
    (docs/protocol.md#m5).
    """
    released: bool = attrs.field(default=False, validator=fields.boolean)
    """The member may go: it is leaving and owns nothing, or it restarts and first stops what is
    still in `active` (docs/protocol.md#m12).
    """
    acceptable_recovery_lag: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()), metadata=fields.APPENDED)
    """The group's setting, by which the member judges whether its copies are ready
    (docs/protocol.md#m2). None: it joined with the readiness word_or_lag.
    """
    acceptable_recovery_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()), metadata=fields.APPENDED)
    """As `acceptable_recovery_lag`, in milliseconds."""

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
    """One part of a MemberAssigned that is too large for one event (docs/protocol.md#l8). Parts are
    consecutive. A member applies them together, after it has read the last one.
    """

    member_id: str = _member
    incarnation: int = _incarnation
    part: int = attrs.field(validator=fields.integer(1))
    """Number of this part, from 1."""
    parts: int = attrs.field(validator=fields.integer(2))
    assigned: MemberAssigned = attrs.field(validator=fields.instance_of(MemberAssigned))
    """Equal in all parts except for the tasks: each list of the complete assignment is the
    concatenation of the lists of the parts.
    """

    def __attrs_post_init__(self) -> None:
        _check_part("MemberAssignedPart", self.part, self.parts)
        if (self.assigned.member_id, self.assigned.incarnation) != (self.member_id, self.incarnation):
            raise FieldError("MemberAssignedPart.assigned", "is for another incarnation than its part says")


@attrs.frozen(kw_only=True)
class ProposedMember:
    """What equipoise would assign to one member."""

    member_id: str = _member
    active: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    standby: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    warmup: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)


@attrs.frozen(kw_only=True)
class AssignmentProposed:
    """Shadow mode: what equipoise would have decided here in a group that something else leads
    (docs/protocol.md#d7). Never applied.
    """

    generation: int = attrs.field(validator=fields.integer())
    """Generation of the observed assignment that this answers."""
    members: tuple[ProposedMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(ProposedMember)))
    moves: tuple[Move, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(Move)))
    probing: bool = attrs.field(validator=fields.boolean)
    unique: bool = attrs.field(default=True, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class AssignmentProposedPart:
    """One part of an AssignmentProposed that is too large for one event (docs/protocol.md#l8).
    Parts are consecutive.
    """

    part: int = attrs.field(validator=fields.integer(1))
    """Number of this part, from 1."""
    parts: int = attrs.field(validator=fields.integer(2))
    proposed: AssignmentProposed = attrs.field(validator=fields.instance_of(AssignmentProposed))
    """Some of the members and moves. A member with very many tasks occurs several times, each time
    with other tasks.
    """

    def __attrs_post_init__(self) -> None:
        _check_part("AssignmentProposedPart", self.part, self.parts)


@attrs.frozen(kw_only=True)
class RoundPlanned:
    """The answer to a RoundAsked: what each member gets in this round, which whoever asked carries
    out (docs/protocol.md#d12). A long one comes in consecutive parts (docs/protocol.md#l8).
    """

    round_id: str = attrs.field(validator=fields.text())
    generation: int = attrs.field(validator=fields.integer())
    members: tuple[ProposedMember, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(ProposedMember)))
    """Every member of the round. `active`: what it runs after the round, also where another member
    has to give it up first.
    """
    moves: tuple[Move, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(Move)))
    """Tasks that get an owner in this round (granted), and movements that begin, go on or end."""
    probing: bool = attrs.field(validator=fields.boolean)
    """More movements will follow."""
    follow_up_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """How long after this round the next one is wanted, in ms of group time. None: none is wanted,
    or the hand-over itself begins one.
    """
    unique: bool = attrs.field(default=True, validator=fields.boolean)
    part: int = attrs.field(default=1, validator=fields.integer(1))
    parts: int = attrs.field(default=1, validator=fields.integer(1))


@attrs.frozen(kw_only=True)
class EventRejected:
    """A fact was unsound or too late. It changed nothing except, at most, its member's lease."""

    kind: int = attrs.field(validator=fields.integer())
    """Type code of the fact."""
    code: str = attrs.field(validator=fields.text())
    """A code of `equipoise.statemachine.rejections.REJECTIONS`. Readers render its text."""
    member_id: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    numbers: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer(-(2**63))))
    """Values for the text, in the order in which its template names them."""


WARNINGS = ("rack_tag_differs", "rack_tag_missing", "rack_not_in_tags")
"""rack_tag_differs: the tag `rack` and `rack` differ; the tag is used. rack_tag_missing: the member
has a rack but not the required tag; its rack is used. rack_not_in_tags: the member has a rack, but
the required tags are others; the tags spread the copies, the rack counts for traffic.
"""


@attrs.frozen(kw_only=True)
class MemberWarned:
    """The rack of this incarnation does not fit its tags. The leader decides all the same (KIP-925,
    4.D.III).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    code: str = attrs.field(validator=fields.one_of(*WARNINGS))
    said: str = attrs.field(validator=fields.text())
    """The member's `rack`."""
    tag: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    """The member's tag `rack`; None: it has none."""


@attrs.frozen(kw_only=True)
class MemberAsked:
    """An operator wants this incarnation to leave, and the leader drains it from here on; or the
    request was withdrawn (docs/protocol.md#m8).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    leave: bool = attrs.field(validator=fields.boolean)
    """False: the request was withdrawn."""


@attrs.frozen(kw_only=True)
class RestartPlanned:
    """What the leader does for a member that will be back, and the numbers by which it chose
    (docs/protocol.md#m12).
    """

    member_id: str = _member
    incarnation: int = _incarnation
    choice: str = attrs.field(validator=fields.one_of("turn", "wait", "drain"))
    """turn: another member's restart comes first. wait: tasks with a caught-up copy are lent, the
    others wait for the member. drain: its tasks move before it goes, as if it left.
    """
    back_within_ms: int = attrs.field(validator=fields.integer(1))
    """Its tasks wait for so long after its MemberLeft, in ms of group time."""
    stated: bool = attrs.field(validator=fields.boolean)
    """Whether the member stated the time. False: by what earlier restarts took."""
    lent: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Tasks that others run until it is back. With `choice` drain: none, because all move."""
    waiting: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    """Its tasks that nobody else can run at once."""
    restore_records: int = attrs.field(default=0, validator=fields.integer())
    """State of the `waiting` tasks, in records."""
    restore_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """How long the other members would restore that; None: their restore rates are not known."""


@attrs.frozen(kw_only=True)
class RestartEnded:
    """The leader no longer waits for a member that was to be back (docs/protocol.md#m12)."""

    member_id: str = _member
    incarnation: int = _incarnation
    """The incarnation that stopped."""
    outcome: str = attrs.field(validator=fields.one_of("returned", "not_back", "cancelled"))
    """returned: it joined again. not_back: the time is over. cancelled: it stays, or leaves for
    good.
    """
    away_ms: int = attrs.field(default=0, validator=fields.integer())
    """Group time since its MemberLeft, in ms; 0: it had not left."""


@attrs.frozen(kw_only=True)
class ChangeJudged(ChangeVerdict):
    """The verdict on a planned change, as the group has it (docs/protocol.md#d14)."""

    undone: bool = attrs.field(default=False, validator=fields.boolean)
    """The leader appends the settings of before the change next."""


@attrs.frozen(kw_only=True)
class Checkpointed:
    """The hash of the state after this fact, so that `verify` may start here (docs/protocol.md#l7)."""

    state_sha256: str = attrs.field(validator=fields.text(64, 64))
    seq: int = attrs.field(validator=fields.integer())
    form: int = attrs.field(default=0, validator=fields.integer())
    """Form of the hashed state (`equipoise.statemachine.snapshots.FORM`); 0: unknown. Hashes of
    different forms cannot be compared.
    """


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
    | RestartPlanned
    | RestartEnded
    | RoundPlanned
    | ChangeJudged
)
