"""What an application may set of its member."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError
from equipoise.events.facts import GroupConfigured
from equipoise.events.log.kafka.topics import DEFAULT_PREFIX
from equipoise.member.fencing import AT_LEAST_ONCE, EXACTLY_ONCE
from equipoise.member.stores import MemoryStore, OpenStore, RocksStore

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no CLOCK_BOOTTIME; there CLOCK_MONOTONIC goes on in sleep


def boot_ms() -> int:
    """Milliseconds on a clock that nobody sets and that goes on while the machine sleeps: what
    leases are dated by (PROTOCOL M4).
    """
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


@attrs.frozen(kw_only=True)
class MemberOptions:
    """One member. Times in milliseconds."""

    guarantee: str = attrs.field(default=AT_LEAST_ONCE, validator=fields.one_of(AT_LEAST_ONCE, EXACTLY_ONCE))
    """exactly_once: output, changelog and source offset of a task in one transaction.
    at_least_once: see docs/protocol.md, M6.
    """
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.name))
    """Where it is, for the assignor and, as `client.rack`, for brokers that let sources and
    changelogs be read from a near replica (KIP-392).
    """
    tags: Mapping[str, str] = attrs.field(factory=dict)
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    """Above the brokers' own failover time: below it, each failover fences the whole group."""
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """A limit of this member's own: a copy with at most this lag is ready to take its task over.
    None: the group's acceptable_recovery_lag and acceptable_recovery_ms, as they are at any moment.
    """
    declares_ready: bool = attrs.field(default=False, validator=fields.boolean)
    """The application declares by itself which copies are ready, with `Member.ready(task)`: no lag
    makes one ready without that. Implied by `Member(prepare=...)`, which declares a task ready when
    it returns."""

    eager: bool = attrs.field(default=False, validator=fields.boolean)
    """It cannot take up or give up a task beside others: before any change of what it runs it gives
    up everything, and then gets its complete set at once (PROTOCOL M3). Others of the group need
    not be."""

    state_directory: str | PathLike[str] | None = None
    """Where stores and the proof of death are. None: stores in memory, and who takes over an id
    waits for the old one's session.
    """
    open_store: OpenStore | None = None
    """None: RocksStore with a state directory, MemoryStore without."""
    restore_records_per_s: float | None = attrs.field(default=None, validator=fields.optional(fields.number()))
    """Of all copies together. None: as fast as it goes."""
    restore_bytes_per_s: float | None = attrs.field(default=None, validator=fields.optional(fields.number()))

    commit_interval_ms: int = attrs.field(default=100, validator=fields.integer())
    """What was processed is sent and committed so often at least."""
    most_uncommitted_records: int = attrs.field(default=1_000, validator=fields.integer(1))
    """And after this many records."""
    auto_offset_reset: str = attrs.field(default="earliest", validator=fields.one_of("earliest", "latest"))
    """Where a task begins that has no committed offset."""

    prefix: str = DEFAULT_PREFIX
    """Of the log's topics."""
    start_timeout_ms: int = attrs.field(default=60_000, validator=fields.integer())
    """How long to wait for a worker to make the log."""
    group_config: GroupConfigured | None = None
    """Sent when the group has no configuration yet. None: high_availability, with its defaults."""

    def __attrs_post_init__(self) -> None:
        if self.lease_margin_ms >= self.session_timeout_ms:
            raise FieldError("lease_margin_ms", f"{self.lease_margin_ms} leaves nothing of session_timeout_ms {self.session_timeout_ms}; lower it")
        if self.heartbeat_interval_ms * 2 > self.lease_ms:
            raise FieldError("heartbeat_interval_ms", f"{self.heartbeat_interval_ms} is over half of the lease, {self.lease_ms}; lower it")

    @property
    def lease_ms(self) -> int:
        return self.session_timeout_ms - self.lease_margin_ms

    @property
    def transactional(self) -> bool:
        return self.guarantee == EXACTLY_ONCE

    @property
    def stores(self) -> OpenStore:
        return self.open_store or (MemoryStore if self.state_directory is None else RocksStore)

    @property
    def request_timeout_ms(self) -> int:
        """For requests to brokers: one that hangs must leave time for two more within the lease."""
        return max(1_000, self.lease_ms // 3)
