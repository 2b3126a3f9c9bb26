"""Recorded inputs of a group: the part of its log that does not depend on who led it.

Joins, ends, configuration, topology and the growth of changelogs are inputs. Lags, readiness and
acknowledgements are not: under another assignment they would have been different.
`equipoise.replay.inputs_reader` finds them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

import attrs

from equipoise.events.facts import (
    GroupConfigured,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    MemberLeft,
    MemberUnchanged,
    PartitionsObserved,
    RestartIntended,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
    TroublesReported,
)
from equipoise.events.tasks import Lag, TaskId

HOLLOW_MS = 60_000
"""A task that wrote nothing for up to this long was stopped, not idle."""
TAIL_MS = 60_000
"""After its last sample a curve grows as it did during this much time before."""
Heard = (
    LagReported
    | MemberUnchanged
    | TaskReady
    | TasksRevoked
    | TaskParked
    | TroublesReported
    | LeaveIntended
    | RestartIntended
    | LeaveCancelled
    | MemberLeft
)
"""What only a living member says, after its join."""
FORCED = frozenset({"killed", "witnessed"})
"""Ends of a process that gave nothing up."""
KEPT = FORCED | {"restarting"}
"""Ends that `RecordedInputs.with_closes` leaves as they are."""


@attrs.frozen
class Curve:
    """End offset of one partition over time. `samples`: (append_ms, end offset) in rising time, at
    least one.
    """

    samples: tuple[tuple[int, int], ...]
    _times: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_times", tuple(at_ms for at_ms, _ in self.samples))

    def at(self, ms: int) -> int:
        """End offset at `ms`: interpolated between samples, constant before the first, and growing
        at the rate of the last TAIL_MS after the last.
        """
        index = bisect.bisect_right(self._times, ms)
        if index == 0:
            return self.samples[0][1]
        before_ms, before = self.samples[index - 1]
        if index < len(self.samples):
            after_ms, after = self.samples[index]
            return before + (after - before) * (ms - before_ms) // (after_ms - before_ms)
        tail = bisect.bisect_left(self._times, before_ms - TAIL_MS)
        start_ms, start = self.samples[tail]
        if start_ms == before_ms:
            return before
        return before + max(0, before - start) * (ms - before_ms) // (before_ms - start_ms)

    def filled(self, hollow_ms: int = HOLLOW_MS) -> Curve:
        """The curve without hollows of up to `hollow_ms`.

        A stopped task writes nothing, and afterwards everything that arrived meanwhile. The
        arrivals are inputs, the stop is the leader's. So a sample below the line between two others
        that are no further apart is removed. A lasting rise of the rate is spread over as much
        time.
        """
        kept: list[tuple[int, int]] = []
        for at_ms, end in self.samples:
            while len(kept) >= 2 and at_ms - kept[-2][0] <= hollow_ms:
                (first_ms, first), (middle_ms, middle) = kept[-2], kept[-1]
                if (middle - first) * (at_ms - first_ms) >= (end - first) * (middle_ms - first_ms):
                    break
                kept.pop()
            kept.append((at_ms, end))
        return Curve(tuple(kept))


@attrs.frozen(kw_only=True)
class GroupStart:
    """The start of the group. `curves`: (topic, partition) -> end offsets over time."""

    at_ms: int
    group: str
    config: GroupConfigured
    topology: TopologyDeclared
    curves: Mapping[tuple[str, int], Curve]

    def end_offset(self, task: TaskId, ms: int) -> int:
        """Records in the task's changelogs at `ms`; 0 for a stateless task or one of another
        topology.
        """
        for part in self.topology.subtopologies:
            if part.subtopology == task.subtopology:
                curves = (self.curves.get((topic, task.partition)) for topic in part.changelog_topics)
                return sum(curve.at(ms) for curve in curves if curve is not None)
        return 0


@attrs.frozen(kw_only=True)
class ProcessStarted:
    """A process began at `at_ms`, in wall time."""

    at_ms: int
    member_id: str
    incarnation: int
    identity: str
    """Identity of its state directory: Kafka's process id; for members of equipoise the member id.
    """
    capacity: int
    rack: str | None
    tags: Mapping[str, str]
    eager: bool
    ready_lag_records: int | None
    """Its own limit for ready copies; None: the group's."""
    prepare_ms: int | None
    """How long its application prepared a task: the median of this process, else of the group, else
    0. None: it did not prepare tasks.
    """
    session_timeout_ms: int
    lease_margin_ms: int
    state_kept: bool
    """Its disk still has the state of an earlier process of that name."""
    lags: Mapping[TaskId, Lag]
    """Copies it reported when it joined."""
    joined_ms: int
    """When it joined: its start, plus the time to start and to be admitted."""
    supplied: bool
    """An operator recorded `at_ms`; else it is `joined_ms`."""
    pause_ms: int | None
    """Time from the end of its predecessor to its start; None: no predecessor, or not recorded."""


@attrs.frozen(kw_only=True)
class ProcessEnded:
    """A process ended. `at_ms`: wall time at which its end began."""

    at_ms: int
    member_id: str
    incarnation: int
    how: str
    """``killed``: it stopped without any message. ``witnessed``: so too, and its end was proven at
    once (MemberEnded). ``silent``: it closed its tasks and sent nothing, the default close of Kafka
    Streams (a member leaves its group only by
    ``KafkaStreams.close(CloseOptions.leaveGroup(true))``, KIP-812). ``closed``: it stopped and sent
    MemberLeft. ``announced``: it asked to leave and waited for its release. ``restarting``: so too,
    and it said that it will be back (RestartIntended).
    """
    inferred: bool
    done_ms: int | None
    """When it was gone; None: not recorded."""
    back_within_ms: int | None = None
    """Of ``restarting``: the time that it stated; None: it stated none."""


@attrs.frozen(kw_only=True)
class ConfigurationChanged:
    """A later GroupConfigured."""

    at_ms: int
    config: GroupConfigured


@attrs.frozen(kw_only=True)
class TopologyChanged:
    """A later TopologyDeclared."""

    at_ms: int
    topology: TopologyDeclared


@attrs.frozen(kw_only=True)
class PartitionsPlaced:
    """Racks, weights and source lags of some partitions changed. End offsets are curves instead.
    Source lags depend on the leader too, but nothing else in the log has them.
    """

    at_ms: int
    observed: PartitionsObserved


Happening = ProcessStarted | ProcessEnded | ConfigurationChanged | TopologyChanged | PartitionsPlaced


@attrs.frozen(kw_only=True)
class Window:
    """A marked span of the log, for tables. `measured`: its cost under the group's own leader, from
    the manifest.
    """

    label: str
    start_ms: int
    end_ms: int
    measured: Mapping[str, Any] | None


@attrs.frozen(kw_only=True)
class RecordedInputs:
    """The recorded inputs of a group, in time order. At equal times, ends come before starts."""

    start: GroupStart
    happenings: tuple[Happening, ...]
    windows: tuple[Window, ...]
    end_ms: int
    """End of the log, or of what operators recorded about it."""
    imported: bool
    """Whether something else led this group."""
    settings: Mapping[str, Any]
    """For an imported group, the settings supplied with its dump
    (`equipoise.replay.importers.kafka_streams.import_options.ImportOptions`); else empty.
    """
    first_leader: str
    """For an imported group, the `identity` of the first process that joined, which led; else "".
    """
    carrier: str | None
    """What carried equipoise's rounds out (`equipoise.assignors.common.carrier`); None: members
    that embed equipoise, or another leader.
    """
    announce_closes: bool | None
    """True: every orderly close is ``announced``. False: every orderly close is ``closed``. None:
    as recorded.
    """

    def with_closes(self, announce_closes: bool | None) -> RecordedInputs:
        """Returns the same inputs with all orderly closes announced (True) or not (False). None:
        unchanged.
        """
        if announce_closes is None:
            return self
        how = "announced" if announce_closes else "closed"
        happenings = tuple(
            attrs.evolve(each, how=how) if isinstance(each, ProcessEnded) and each.how not in KEPT else each for each in self.happenings
        )
        return attrs.evolve(self, happenings=happenings, announce_closes=announce_closes)

    def with_restarts(self, within_ms: int) -> RecordedInputs:
        """Returns the same inputs with each orderly close as a restart if the member's next process
        starts within that time. They state that they will be back within `within_ms`.
        """
        starts = {(each.member_id, each.incarnation): each.at_ms for each in self.happenings if isinstance(each, ProcessStarted)}

        def restarted(each: ProcessEnded) -> ProcessEnded:
            later = [at_ms for (name, _), at_ms in starts.items() if name == each.member_id and at_ms >= each.at_ms]
            ended_ms = each.at_ms if each.done_ms is None else each.done_ms
            is_restart = each.how not in FORCED and min(later, default=ended_ms + within_ms + 1) <= ended_ms + within_ms
            return attrs.evolve(each, how="restarting", back_within_ms=within_ms) if is_restart else each

        happenings = tuple(restarted(each) if isinstance(each, ProcessEnded) else each for each in self.happenings)
        return attrs.evolve(self, happenings=happenings)
