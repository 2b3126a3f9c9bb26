"""The state of one incarnation of a member, on which `equipoise.statemachine.member` works."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from equipoise.events import fields
from equipoise.events.codec import MOST_EVENT_BYTES
from equipoise.events.decisions import MemberAssignedPart
from equipoise.events.errors import FieldError
from equipoise.events.facts import LagReported, LeaveCancelled, LeaveIntended, Load, MemberLeft, RestartIntended, Subtopology
from equipoise.events.tasks import Lag, TaskId


@attrs.frozen(kw_only=True)
class MemberSettings:
    """Constants of one incarnation. The fields up to `prepares` are in its MemberJoined."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = None
    eager: bool = False
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Its own limit; None: it judges its copies by the group's."""
    advertised: str | None = None
    prepares: bool = False
    """Its application prepares tasks: no copy is ready before the application has declared it."""

    former_log_id: str | None = None
    """The log of this member's former incarnation, as its host remembers it; None: unknown, or
    there was none.
    """
    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    keepalive_interval_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer(1)))
    """Longest time between two facts of a member that has nothing new to report. None: it reports
    at each heartbeat interval, whatever there is to say.
    """
    stateful_subtopologies: frozenset[int] = frozenset()
    """Sub-topologies whose tasks must be restored before they process records."""
    partitions: Mapping[int, int] | None = None
    """Sub-topologies of its topology -> their number of partitions; None: it can run every task."""

    subtopologies: tuple[Subtopology, ...] | None = None
    """Its topology, which the leader compares with the group's; None: it does not say."""

    def knows(self, task: TaskId) -> bool:
        """Returns whether its topology has the task (docs/protocol.md#d1)."""
        return self.partitions is None or task.partition < self.partitions.get(task.subtopology, 0)

    def __attrs_post_init__(self) -> None:
        if self.lease_margin_ms >= self.session_timeout_ms:
            problem = f"{self.lease_margin_ms} leaves nothing of session_timeout_ms {self.session_timeout_ms}; lower it"
            raise FieldError("MemberSettings.lease_margin_ms", problem)


class End(enum.Enum):
    """Why an incarnation ended."""

    LEASE_LAPSED = "lease_lapsed"
    """It could not renew its lease in time. Nothing revives it (docs/protocol.md#m4)."""
    EXPIRED = "expired"
    """It read its own MemberExpired: timed out, superseded or expelled."""
    REFUSED = "refused"
    """The leader accepts nothing more from this incarnation."""
    RELEASED = "released"
    """It was leaving, owned nothing any more and sent MemberLeft."""
    LEFT = "left"
    """It was closed, stopped everything and sent MemberLeft."""
    UNREADABLE = "unreadable"
    """It cannot read a decision that binds it: it stops everything and sends MemberLeft, because it
    cannot know what to do next (docs/protocol.md#m9).
    """
    LOG_REPLACED = "log_replaced"
    """Its topics hold another log than the one it joined (docs/protocol.md#l9)."""
    LOG_WENT_BACK = "log_went_back"
    """Its log ends below what it has read, or begins above it: decisions that it needs are gone
    (docs/protocol.md#l9).
    """
    FAILED = "failed"
    """Its host cannot continue with it; it sends MemberLeft."""


@attrs.define
class Grant:
    """A task that it may run from `start_ms` on (a hold, docs/protocol.md#m5), once `restored`."""

    token: int
    start_ms: int
    restored: bool


Word = LeaveIntended | LeaveCancelled | MemberLeft
"""Facts about the member as a whole, with no content but its identity."""


class SessionState:
    """Everything that `MemberSession` remembers."""

    most_event_bytes = MOST_EVENT_BYTES
    """Size limit of its facts, in bytes (docs/protocol.md#l8)."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.ended: End | None = None
        self.end_cause = ""
        """MemberExpired.cause, or the code of the fatal EventRejected; also when it was read after
        the lease lapsed.
        """
        self.end_numbers: tuple[int, ...] = ()
        """The numbers of that EventRejected."""
        self.newest_incarnation: int | None = None
        """The newest incarnation of this member, as named by the rejection that ended this one;
        None: no rejection named it.
        """
        self.assignment_epoch = 0
        """Epoch of the last applied MemberAssigned; 0: none."""
        self.grants: dict[TaskId, Grant] = {}
        self.unknown: frozenset[TaskId] = frozenset()
        """Tasks of the last MemberAssigned that its topology does not have, which it ignores. A
        leader that keeps D1 names none.
        """
        self.standby: frozenset[TaskId] = frozenset()
        self.warmup: frozenset[TaskId] = frozenset()
        self.acceptable_recovery_lag: int | None = None
        """The group's setting, by the last MemberAssigned; None: none was read yet."""
        self.acceptable_recovery_ms: int | None = None
        """The same."""
        self.closing: set[TaskId] = set()
        """Tasks that the host must stop now; it calls `task_closed` for each when done."""
        self.leaving = False
        """It wants to leave by itself."""
        self.restart: RestartIntended | None = None
        """It wants to stop and will be back; said with each report (docs/protocol.md#m12)."""
        self.asked = False
        """An operator wants it to leave (docs/protocol.md#m8)."""
        self.stopping = False
        """It is being closed: no task is opened, and MemberLeft follows when all are closed."""

        self.join_from_ms = 0
        """Earliest time to join: later than the placing of the reader when its log has replaced the
        former one (docs/protocol.md#l9).
        """

        self._joined = False
        self._log_id = ""
        self._doubtful_since_ms: int | None = None
        """When the log was first found to have lost decisions, unless it was found intact since."""
        self._last_number: int | None = None
        self._gap = False
        self._heartbeat_ms = 0
        self._fetch_ms = 0
        self._lags: dict[TaskId, Lag] = {}
        self._ready: set[TaskId] = set()
        self._prepared: set[TaskId] = set()
        """Tasks that the application has declared ready, while data of them is here."""
        self._preparing: dict[TaskId, int] = {}
        """Tasks being prepared -> thousandths, for the next reports."""
        self._failed: frozenset[TaskId] = frozenset()
        self._load: Load | None = None
        self._urgent: list[type[Word]] = []
        self._newly_ready: list[TaskId] = []
        self._given_up: list[TaskId] = []
        self._next_report_ms = 0
        self._report_number = -1
        self._reported: dict[TaskId, Lag] | None = None
        """Lags of the last report, on which the next may build; None: the next must be complete."""
        self._report_known = False
        """Whether the broker acknowledged the last report."""
        self._more_to_report = False
        """Whether the last report had no space for everything."""
        self._told: LagReported | None = None
        """The last report, without its number and lags, while the leader is known to have it; None:
        the next must be a report.
        """
        self._said_ms = 0
        """When it last sent a report, or that nothing has changed."""
        self._keepalive_due_ms = 0
        """When the next of these is due, with or without news."""
        self._parts: list[MemberAssignedPart] = []
        """Parts read so far of an assignment whose last part is still to come
        (docs/protocol.md#l8).
        """
