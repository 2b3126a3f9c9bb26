"""The settings of a member."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Collection, Iterable, Mapping
from os import PathLike
from typing import Any, TypedDict

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.log.kafka.log_topics import DEFAULT_PREFIX
from equipoise.member.copies.fencing import AT_LEAST_ONCE, EXACTLY_ONCE
from equipoise.member.copies.stores import MemoryStore, OpenStore, RocksStore
from equipoise.member.tasks.callbacks import check_callback
from equipoise.member.tasks.error_policy import ErrorPolicy
from equipoise.member.tasks.serdes import BytesSerde, Serde, check_serde

FAILOVER_MS = 15_000
"""Time in which brokers replace one that crashed."""


def _serde(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_serde(attribute.name, value)


def _opens_stores(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_callback(attribute.name, value, "folder", may_be_class=True)


def refuse_unknown(place: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises InputError when one of `given` is not among `known`, with those that look like it."""
    for name in given:
        if name not in known:
            alike = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            fix = f"did you mean {' or '.join(map(repr, alike))}?" if alike else f"there are: {', '.join(sorted(known))}"
            raise InputError(f"{place}: no such option {name!r}; {fix}")


@attrs.frozen(kw_only=True)
class RestartIntent:
    """A member that stops will be back, `back_within_ms` later at most; None: it does not know.
    `wait_turn`: not while other members restart.
    """

    back_within_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer(1, 86_400_000)))
    wait_turn: bool = attrs.field(default=True, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class MemberOptions:
    """The settings of one member, which `Member` takes as keyword arguments. Names that end in
    ``_ms`` are in milliseconds.

    Raises FieldError when a value is invalid, or timeouts do not fit together.
    """

    guarantee: str = attrs.field(default=AT_LEAST_ONCE, validator=fields.one_of(AT_LEAST_ONCE, EXACTLY_ONCE))
    """``exactly_once``: outputs, changelog records and source offsets of a task are committed in
    one transaction. ``at_least_once``: without transactions, see docs/protocol.md#m6.
    """
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    """Threads that run tasks. Tasks are shared out in proportion to it."""
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.name))
    """The member's rack, for the assignor, and as `client.rack` for brokers, which let it read from
    a near replica (KIP-392). None: unknown.
    """
    tags: Mapping[str, str] = attrs.field(factory=dict)
    """Names and values by which standbys are spread, as the group's `rack_aware_tags` say."""
    session_timeout_ms: int = attrs.field(default=45_000, validator=fields.integer(1))
    """The leader takes the tasks of a member that was silent for this time. Choose more than the
    brokers' failover time, else each failover expires the whole group.
    """
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """The member stops processing this long before the leader may expire it. At least the group's
    `max_step_ms`.
    """
    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    """How often the member looks whether it has something to report, and proves that it has read
    the decisions to their end; at most half of `lease_ms`.
    """
    keepalive_interval_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Longest time between two facts of a member that has nothing to report; at most three quarters
    of `lease_ms`, see docs/protocol.md#m4. None: what leaves brokers 15 s to fail over. 0: it
    reports at each heartbeat, as workers need it that do not know `MemberUnchanged`.
    """
    advertised: str | None = attrs.field(default=None, validator=fields.optional(fields.name))
    """Where other processes reach this application, as ``host:port``, for `Member.owner`; a port of
    0 becomes that of `http_port`. None: nowhere, or with `queries` at `http_host` and its port.
    """
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """A copy with at most this lag, in records, is ready to take its task over. None: the group's
    present `acceptable_recovery_lag` and `acceptable_recovery_ms` apply.
    """
    declares_ready: bool = attrs.field(default=False, validator=fields.boolean)
    """A copy is ready only after the application has called `Member.ready(task)`, whatever its lag.
    Implied by `Member(prepare=...)`, which declares a task ready when it returns.
    """

    eager: bool = attrs.field(default=False, validator=fields.boolean)
    """The member gives up all its tasks before any change, and then gets its complete set at once
    (the eager protocol). For applications that cannot add or remove single tasks. Other members of
    the group need not be eager. See docs/protocol.md#m3.
    """

    state_directory: str | PathLike[str] | None = None
    """Folder of the stores and of the proof that a former process is dead. None: stores are in
    memory, and a restarted member waits for the session timeout of the former process.
    """
    witness: bool = attrs.field(default=False, validator=fields.boolean)
    """A small process beside this one proves to the leader that this one has ended, when it is
    killed or crashes. Its tasks then need not wait for the session timeout. Only on Linux.
    """
    on_sigterm: str = attrs.field(default="leave", validator=fields.one_of("leave", "restart", "close"))
    """What SIGTERM means to `Member.run`. leave: the member leaves for good, once its tasks run
    elsewhere. restart: it will be back within `back_within_ms`; tasks of which others have no
    caught-up copy wait for it (docs/protocol.md#m12). close: it leaves at once.
    """
    back_within_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer(1, 86_400_000)))
    """With ``on_sigterm="restart"``: how long a restart takes at most, from the end of this process
    until the next one has joined. None: not known; the leader expects twice what the last one took.
    """
    wait_turn: bool = attrs.field(default=True, validator=fields.boolean)
    """With ``on_sigterm="restart"``: the member runs on while other members restart. False: it
    stops at once, beside them.
    """
    open_store: OpenStore | None = attrs.field(default=None, validator=_opens_stores)
    """Opens a store. None: `RocksStore` with a state directory, `MemoryStore` without."""
    restore_records_per_s: float | None = attrs.field(default=None, validator=fields.optional(fields.number()))
    """Limit on restoring, of all copies together. None: no limit."""
    restore_bytes_per_s: float | None = attrs.field(default=None, validator=fields.optional(fields.number()))
    """The same in bytes of keys and values."""

    commit_interval_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """Longest time between two commits of a task that processes records; if it is
    `most_uncommitted_records` behind, or more, at least 3 s. With exactly_once it commits at once
    when none waits, because outputs are read after a commit. None: 100 with exactly_once, 500
    otherwise.
    """
    most_uncommitted_records: int = attrs.field(default=10_000, validator=fields.integer(1))
    """A task commits after this many records at the latest. All tasks of a member together have
    about 800,000 that are not committed: those with the most commit first.
    """
    max_idle_ms: int = attrs.field(default=0, validator=fields.integer())
    """How long a task with several sources waits for records of one that has no more at present,
    while others have: they may be earlier. It never passes one whose end it has not reached.
    """
    max_ahead_ms: int = attrs.field(default=3_600_000, validator=fields.integer())
    """A time of a record that is further ahead of the brokers' clock moves no stream time, and is
    not handed on. Give more where windows go by times to come, such as dates of bookings.
    """
    auto_offset_reset: str = attrs.field(default="earliest", validator=fields.one_of("earliest", "latest"))
    """Where a task without committed offset begins to read: ``earliest`` or ``latest``."""

    adopts: str | None = attrs.field(default=None, validator=fields.optional(fields.name))
    """A consumer group whose place the members take: their tasks begin when its consumers have
    left, where these have read to, and brokers let none of them in while a member is there. Not the
    name of the members' own group. See docs/adopt.md. None: none.
    """

    key_serde: Serde = attrs.field(factory=BytesSerde, validator=_serde)
    """Of the keys of records, read and sent."""
    value_serde: Serde = attrs.field(factory=BytesSerde, validator=_serde)
    """Of the values of records, read and sent."""
    state_key_serde: Serde | None = attrs.field(default=None, validator=fields.optional(_serde))
    """Of the keys of state. None: `key_serde`."""
    state_serde: Serde | None = attrs.field(default=None, validator=fields.optional(_serde))
    """Of the values of state. None: `value_serde`."""
    on_error: ErrorPolicy = attrs.field(factory=ErrorPolicy.stop, validator=fields.instance_of(ErrorPolicy))
    """What happens to a record when the handler or a serde raises."""

    http_port: int | None = attrs.field(default=None, validator=fields.optional(fields.integer(0, 65_535)))
    """Port that serves ``/health``, ``/ready`` and ``/metrics``. 0: any free one, see
    `Member.http_port`. None: none is opened.
    """
    http_host: str = attrs.field(default="127.0.0.1", validator=fields.text())
    """Address of that port; 0.0.0.0 for everybody."""
    http_hosts: str = ""
    """Further names under which that port is asked, with commas between them. See
    docs/deploy.md#the-http-port.
    """

    queries: bool = attrs.field(default=False, validator=fields.boolean)
    """Other members may read the state of tasks here, at ``/query`` of `http_port` (without a
    password) and `advertised`, for their `Member.query`.
    """

    prefix: str = DEFAULT_PREFIX
    """What the names of the log's topics begin with."""
    start_timeout_ms: int = attrs.field(default=60_000, validator=fields.integer())
    """How long to wait at the start until a worker has made the log."""
    group_config: GroupConfigured | None = None
    """The configuration to send when the group has none yet. None: the assignor high_availability
    with its defaults.
    """

    def __attrs_post_init__(self) -> None:
        if self.lease_margin_ms >= self.session_timeout_ms:
            raise FieldError("lease_margin_ms", f"{self.lease_margin_ms} leaves nothing of session_timeout_ms {self.session_timeout_ms}; lower it")
        if self.heartbeat_interval_ms * 2 > self.lease_ms:
            raise FieldError("heartbeat_interval_ms", f"{self.heartbeat_interval_ms} is over half of the lease, {self.lease_ms}; lower it")
        if self.keepalive_interval_ms is not None and self.keepalive_interval_ms * 4 > self.lease_ms * 3:
            problem = f"{self.keepalive_interval_ms} is over three quarters of the lease, {self.lease_ms}; lower it"
            raise FieldError("keepalive_interval_ms", problem)

        if self.queries and self.http_port is None:
            raise FieldError("queries", "others ask at the member's HTTP port, and there is none; give http_port")
        if self.http_port is None and self.advertised is not None and self.advertised.endswith(":0"):
            raise FieldError("advertised", f"{self.advertised!r} has the port of http_port, and there is none; give http_port")

    def reached_at(self, port: int) -> str | None:
        """`advertised`, when the HTTP port is known."""
        if self.advertised is not None:
            return f"{self.advertised[:-2]}:{port}" if self.advertised.endswith(":0") else self.advertised
        host = socket.gethostname() if self.http_host in ("0.0.0.0", "::", "") else self.http_host  # all addresses have no name
        return f"{f'[{host}]' if ':' in host else host}:{port}" if self.queries else None

    @property
    def lease_ms(self) -> int:
        """Returns how long the member may process without having read the log to its end."""
        return self.session_timeout_ms - self.lease_margin_ms

    @property
    def keepalive_ms(self) -> int | None:
        """`keepalive_interval_ms`, or its default; None: the member reports at each heartbeat."""
        if self.keepalive_interval_ms is not None:
            return self.keepalive_interval_ms or None
        return max(self.heartbeat_interval_ms, min(self.lease_ms - FAILOVER_MS, self.lease_ms * 3 // 5))

    @property
    def transactional(self) -> bool:
        """Returns whether commits are transactions."""
        return self.guarantee == EXACTLY_ONCE

    @property
    def commit_interval_s(self) -> float:
        """`commit_interval_ms`, or its default, in seconds."""
        if self.commit_interval_ms is not None:
            return self.commit_interval_ms / 1_000
        return 0.1 if self.transactional else 0.5

    @property
    def stores(self) -> OpenStore:
        """`open_store`, or its default."""
        return self.open_store or (MemoryStore if self.state_directory is None else RocksStore)

    @property
    def request_timeout_ms(self) -> int:
        """Timeout of requests to brokers: one that hangs leaves time for two more in the lease."""
        return max(1_000, self.lease_ms // 3)


class MemberKeywords(TypedDict, total=False):
    """The fields of `MemberOptions` as keyword arguments, so that a type checker knows them."""

    guarantee: str
    capacity: int
    rack: str | None
    tags: Mapping[str, str]
    session_timeout_ms: int
    lease_margin_ms: int
    heartbeat_interval_ms: int
    keepalive_interval_ms: int | None
    advertised: str | None
    ready_lag_records: int | None
    declares_ready: bool
    eager: bool
    state_directory: str | PathLike[str] | None
    witness: bool
    on_sigterm: str
    back_within_ms: int | None
    wait_turn: bool
    open_store: OpenStore | None
    restore_records_per_s: float | None
    restore_bytes_per_s: float | None
    commit_interval_ms: int | None
    most_uncommitted_records: int
    max_idle_ms: int
    max_ahead_ms: int
    auto_offset_reset: str
    adopts: str | None
    key_serde: Serde
    value_serde: Serde
    state_key_serde: Serde | None
    state_serde: Serde | None
    on_error: ErrorPolicy
    http_port: int | None
    http_host: str
    http_hosts: str
    queries: bool
    prefix: str
    start_timeout_ms: int
    group_config: GroupConfigured | None
