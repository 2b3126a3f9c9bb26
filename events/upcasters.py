"""Schema versions that are read but no longer written: one step per version, applied to the wire
form before any class reads it.

To change the wire form of a kind: keep its past shape here as a class, add the step from it, raise
its version in `equipoise.events.codec.KINDS`, and keep bytes of the past version under
``tests/data/events``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.errors import UnsoundError
from equipoise.events.facts import CHANGE_KINDS, MOST_QUIET_MS, ExpectedCost
from equipoise.events.settings import GroupSettings, Scalar
from equipoise.events.tasks import Lag, TaskId

GROUP_CONFIGURED = 2
PARTITIONS_OBSERVED = 4
MEMBER_JOINED = 5
LAG_REPORTED = 6
LEAVE_REQUESTED = 15
ROUND_ASKED = 22
CHANGE_PLANNED = 25
CHANGE_MEASURED = 26
CHECKPOINTED = 106


@attrs.frozen(kw_only=True)
class GroupSettingsV1:
    """GroupSettings before `join_delay_ms`."""

    acceptable_recovery_lag: int = attrs.field(default=10_000, validator=fields.integer())
    acceptable_recovery_ms: int = attrs.field(default=0, validator=fields.integer(0, 86_400_000))
    balance_factor: int = attrs.field(default=1, validator=fields.integer(1))
    num_standbys: int = attrs.field(default=0, validator=fields.integer(0, 1_000))
    max_warmups: int = attrs.field(default=2, validator=fields.integer(1))
    max_warmups_per_member: int = attrs.field(default=2, validator=fields.integer(1))
    probing_interval_ms: int = attrs.field(default=600_000, validator=fields.integer(1))
    rack_aware_strategy: str = attrs.field(default="none", validator=fields.one_of("none", "min_cost", "balanced_min_cost"))
    rack_traffic_cost: int = attrs.field(default=10, validator=fields.integer(0, 100_000))
    rack_non_overlap_cost: int = attrs.field(default=1, validator=fields.integer(0, 100_000))
    rack_changelog_cost: int = attrs.field(default=0, validator=fields.integer(0, 100_000))
    rack_standby_strategy: str = attrs.field(default="balance", validator=fields.one_of("balance", "greedy"))
    rack_standbys_apart: int = attrs.field(default=1, validator=fields.integer(0, 1_000))
    rack_aware_tags: tuple[str, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.text(1, 20), most_items=5, distinct=True))
    max_step_ms: int = attrs.field(default=1_000, validator=fields.integer(1))
    initial_delay_ms: int = attrs.field(default=3_000, validator=fields.integer())
    revocation_timeout_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    warmup_stall_ms: int = attrs.field(default=300_000, validator=fields.integer(1))
    drain_timeout_ms: int = attrs.field(default=600_000, validator=fields.integer())
    load_window_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    checkpoint_every_records: int = attrs.field(default=10_000, validator=fields.integer(0))
    options: dict[str, Scalar] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.scalar))


@attrs.frozen(kw_only=True)
class GroupConfiguredV1:
    """GroupConfigured with GroupSettingsV1."""

    assignor: str = attrs.field(default="high_availability", validator=fields.text())
    behaviour_version: int = attrs.field(default=1, validator=fields.integer(1))
    solver: str = attrs.field(default="", validator=fields.text(0))
    led_by: str = attrs.field(default="equipoise", validator=fields.one_of("equipoise", "external"))
    knobs: GroupSettingsV1 = attrs.field(factory=GroupSettingsV1, validator=fields.instance_of(GroupSettingsV1))


@attrs.frozen(kw_only=True)
class GroupConfiguredV2:
    """GroupConfigured before it named what it was made from, and who made it."""

    assignor: str = attrs.field(default="high_availability", validator=fields.text())
    behaviour_version: int = attrs.field(default=1, validator=fields.integer(1))
    solver: str = attrs.field(default="", validator=fields.text(0))
    led_by: str = attrs.field(default="equipoise", validator=fields.one_of("equipoise", "external"))
    knobs: GroupSettings = attrs.field(factory=GroupSettings, validator=fields.instance_of(GroupSettings))


@attrs.frozen(kw_only=True)
class PartitionsObservedV1:
    """PartitionsObserved before partitions had weights."""

    end_offsets: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer())),
    )
    racks: dict[str, dict[int, tuple[str, ...]]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.tuple_of(fields.text()))),
    )


@attrs.frozen(kw_only=True)
class PartitionsObservedV2:
    """PartitionsObserved before source lags (KIP-169)."""

    end_offsets: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer())),
    )
    racks: dict[str, dict[int, tuple[str, ...]]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.tuple_of(fields.text()))),
    )
    weights: dict[str, dict[int, int]] = attrs.field(
        factory=dict,
        converter=fields.sorted_mapping,
        validator=fields.mapping_of(fields.text(), fields.mapping_of(fields.integer(0, 1_000_000), fields.integer(0, 1_000_000))),
    )


@attrs.frozen(kw_only=True)
class MemberJoinedV1:
    """MemberJoined before tags (KIP-708) and copies found on disk."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))


@attrs.frozen(kw_only=True)
class MemberJoinedV2:
    """MemberJoined before `eager` (KIP-415)."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    tags: dict[str, str] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.text()))
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)


@attrs.frozen(kw_only=True)
class MemberJoinedV3:
    """MemberJoined before `readiness` and `ready_lag_records`."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    tags: dict[str, str] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.text()))
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    eager: bool = attrs.field(default=False, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class MemberJoinedV4:
    """MemberJoined before `advertised`."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    tags: dict[str, str] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.text()))
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    eager: bool = attrs.field(default=False, validator=fields.boolean)
    readiness: str = attrs.field(default="word_or_lag", validator=fields.one_of("lag", "word_and_lag", "word_or_lag"))
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))


@attrs.frozen(kw_only=True)
class MemberJoinedV5:
    """MemberJoined before `subtopologies`."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    capacity: int = attrs.field(default=1, validator=fields.integer(1, 1_000_000))
    rack: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))
    tags: dict[str, str] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.text()))
    session_timeout_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=3_000, validator=fields.integer())
    topology_epoch: int = attrs.field(default=0, validator=fields.integer())
    join_nonce: str = attrs.field(validator=fields.text())
    ended_incarnation: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    eager: bool = attrs.field(default=False, validator=fields.boolean)
    readiness: str = attrs.field(default="word_or_lag", validator=fields.one_of("lag", "word_and_lag", "word_or_lag"))
    ready_lag_records: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    advertised: str | None = attrs.field(default=None, validator=fields.optional(fields.text()))


@attrs.frozen(kw_only=True)
class LoadV1:
    """Load before `busy`."""

    cpu: float = attrs.field(default=0.0, validator=fields.number())
    memory: float = attrs.field(default=0.0, validator=fields.number())
    disk: float = attrs.field(default=0.0, validator=fields.number())
    records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    restored_records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    tasks: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    behind: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))


@attrs.frozen(kw_only=True)
class LagReportedV1:
    """LagReported with LoadV1."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    number: int = attrs.field(validator=fields.integer())
    assignment_epoch: int = attrs.field(validator=fields.integer())
    held: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    ready: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    base: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    forgotten: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    leaving: bool = attrs.field(default=False, validator=fields.boolean)
    load: LoadV1 | None = attrs.field(default=None, validator=fields.optional(fields.instance_of(LoadV1)))


@attrs.frozen(kw_only=True)
class LoadV2:
    """Load as LagReportedV2 has it."""

    cpu: float = attrs.field(default=0.0, validator=fields.number())
    memory: float = attrs.field(default=0.0, validator=fields.number())
    disk: float = attrs.field(default=0.0, validator=fields.number())
    records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    restored_records_per_s: float = attrs.field(default=0.0, validator=fields.number())
    tasks: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    behind: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))
    busy: dict[TaskId, int] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.task, fields.integer()))


@attrs.frozen(kw_only=True)
class LagReportedV2:
    """LagReported before `preparing` and `failed`."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())
    number: int = attrs.field(validator=fields.integer())
    assignment_epoch: int = attrs.field(validator=fields.integer())
    held: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    ready: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    lags: dict[TaskId, Lag] = attrs.field(factory=dict, validator=fields.lags)
    base: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    forgotten: tuple[TaskId, ...] = attrs.field(default=(), validator=fields.task_set)
    leaving: bool = attrs.field(default=False, validator=fields.boolean)
    load: LoadV2 | None = attrs.field(default=None, validator=fields.optional(fields.instance_of(LoadV2)))


@attrs.frozen(kw_only=True)
class PresentMemberV1:
    """PresentMember in RoundAskedV1."""

    member_id: str = attrs.field(validator=fields.text())
    incarnation: int = attrs.field(validator=fields.integer())


@attrs.frozen(kw_only=True)
class RoundAskedV1:
    """RoundAsked before `due_by_copies`."""

    round_id: str = attrs.field(validator=fields.text())
    members: tuple[PresentMemberV1, ...] = attrs.field(validator=fields.tuple_of(fields.instance_of(PresentMemberV1)))
    carrier: str = attrs.field(default="kafka_streams", validator=fields.one_of("kafka_streams", "faust"))


@attrs.frozen(kw_only=True)
class LeaveRequestedV1:
    """LeaveRequested before `incarnations`."""

    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))
    withdrawn: bool = attrs.field(default=False, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class LeaveRequestedV2(LeaveRequestedV1):
    """LeaveRequested before `staying`."""

    incarnations: tuple[int, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.integer()))


@attrs.frozen(kw_only=True)
class ChangePlannedV1:
    """ChangePlanned before `made_from`."""

    change_id: str = attrs.field(validator=fields.text())
    kind: str = attrs.field(validator=fields.one_of(*CHANGE_KINDS))
    what: str = attrs.field(validator=fields.text())
    why: str = attrs.field(default="", validator=fields.text(0))
    expected: tuple[ExpectedCost, ...] = attrs.field(default=(), validator=fields.tuple_of(fields.instance_of(ExpectedCost)))
    quiet_ms: int = attrs.field(default=15_000, validator=fields.integer(1, MOST_QUIET_MS))
    judge_within_ms: int = attrs.field(default=3_600_000, validator=fields.integer(1))
    most_unavailable_task_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    or_undo: bool = attrs.field(default=False, validator=fields.boolean)


@attrs.frozen(kw_only=True)
class ChangePlannedV2(ChangePlannedV1):
    """ChangePlanned before `judged_by`."""

    made_from: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))


@attrs.frozen(kw_only=True)
class CheckpointedV1:
    """Checkpointed before `form`."""

    state_sha256: str = attrs.field(validator=fields.text(64, 64))
    seq: int = attrs.field(validator=fields.integer())


@attrs.frozen(kw_only=True)
class ChangeMeasuredV1:
    """ChangeMeasured before its verdict."""

    change_id: str = attrs.field(validator=fields.text())
    unavailable_task_ms: int = attrs.field(validator=fields.integer())
    moves: int = attrs.field(validator=fields.integer())
    rest_ms: int = attrs.field(validator=fields.integer())
    is_over: bool = attrs.field(default=True, validator=fields.boolean)


def _group_configured_2(wire: list[Any]) -> list[Any]:
    """Inserts `join_delay_ms` 0 behind `initial_delay_ms`: each join was decided at once."""
    *rest, knobs = wire
    at = [field.name for field in attrs.fields(GroupSettingsV1)].index("initial_delay_ms") + 1
    return [*rest, [*knobs[:at], 0, *knobs[at:]] if knobs.__class__ is list else knobs]


def _group_configured_3(wire: list[Any]) -> list[Any]:
    """Appends `made_from` None, and no plan and nobody: it holds whatever is in force."""
    return [*wire, None, "", ""]


def _lag_reported_2(wire: list[Any]) -> list[Any]:
    """Appends empty `busy` to the load."""
    *rest, load = wire
    return [*rest, [*load, []] if load.__class__ is list else load]


def _lag_reported_3(wire: list[Any]) -> list[Any]:
    """Appends empty `preparing` and `failed`."""
    return [*wire, [], []]


def _partitions_observed_2(wire: list[Any]) -> list[Any]:
    """Appends empty `weights`."""
    return [*wire, {}]


def _partitions_observed_3(wire: list[Any]) -> list[Any]:
    """Appends empty `source_lags`."""
    return [*wire, {}]


def _member_joined_2(wire: list[Any]) -> list[Any]:
    """Inserts empty `tags` between `rack` and `session_timeout_ms`; appends empty `lags`."""
    return [*wire[:4], {}, *wire[4:], {}]


def _member_joined_3(wire: list[Any]) -> list[Any]:
    """Appends `eager` false."""
    return [*wire, False]


def _member_joined_4(wire: list[Any]) -> list[Any]:
    """Appends a readiness by which the member's word counts like its lag, because its limit is
    unknown.
    """
    return [*wire, "word_or_lag", None]


def _member_joined_5(wire: list[Any]) -> list[Any]:
    """Appends `advertised` None."""
    return [*wire, None]


def _member_joined_6(wire: list[Any]) -> list[Any]:
    """Appends `subtopologies` None: such a member does not say which tasks it knows."""
    return [*wire, None]


def _round_asked_2(wire: list[Any]) -> list[Any]:
    """Appends `due_by_copies` false: what was answered then is computed again as it was."""
    return [*wire, False]


def _leave_requested_2(wire: list[Any]) -> list[Any]:
    """Appends no `incarnations`: it asks whichever they are."""
    return [*wire, []]


def _leave_requested_3(wire: list[Any]) -> list[Any]:
    """Appends `staying` None: it asks however few stay."""
    return [*wire, None]


def _change_planned_2(wire: list[Any]) -> list[Any]:
    """Appends `made_from` None: it is planned whatever is in force."""
    return [*wire, None]


def _change_planned_3(wire: list[Any]) -> list[Any]:
    """Appends that the fold judges it."""
    return [*wire, "fold"]


def _change_measured_2(wire: list[Any]) -> list[Any]:
    """Puts whether it is over in place of the verdict: the fold judges by the costs."""
    change_id, *costs, is_over = wire
    return [change_id, "at_rest" if is_over else "late", *costs, [], []]


def _checkpointed_2(wire: list[Any]) -> list[Any]:
    """Appends `form` 0, unknown."""
    return [*wire, 0]


PAST_SHAPES: Mapping[tuple[int, int], type] = {
    (GROUP_CONFIGURED, 1): GroupConfiguredV1,
    (GROUP_CONFIGURED, 2): GroupConfiguredV2,
    (PARTITIONS_OBSERVED, 1): PartitionsObservedV1,
    (PARTITIONS_OBSERVED, 2): PartitionsObservedV2,
    (MEMBER_JOINED, 1): MemberJoinedV1,
    (MEMBER_JOINED, 2): MemberJoinedV2,
    (MEMBER_JOINED, 3): MemberJoinedV3,
    (MEMBER_JOINED, 4): MemberJoinedV4,
    (MEMBER_JOINED, 5): MemberJoinedV5,
    (LAG_REPORTED, 1): LagReportedV1,
    (LAG_REPORTED, 2): LagReportedV2,
    (ROUND_ASKED, 1): RoundAskedV1,
    (LEAVE_REQUESTED, 1): LeaveRequestedV1,
    (LEAVE_REQUESTED, 2): LeaveRequestedV2,
    (CHANGE_PLANNED, 1): ChangePlannedV1,
    (CHANGE_PLANNED, 2): ChangePlannedV2,
    (CHANGE_MEASURED, 1): ChangeMeasuredV1,
    (CHECKPOINTED, 1): CheckpointedV1,
}
"""(kind, version) -> the class of that version, which reads its JSON Lines."""

STEPS: Mapping[tuple[int, int], Callable[[list[Any]], list[Any]]] = {
    (GROUP_CONFIGURED, 1): _group_configured_2,
    (GROUP_CONFIGURED, 2): _group_configured_3,
    (PARTITIONS_OBSERVED, 1): _partitions_observed_2,
    (PARTITIONS_OBSERVED, 2): _partitions_observed_3,
    (MEMBER_JOINED, 1): _member_joined_2,
    (MEMBER_JOINED, 2): _member_joined_3,
    (MEMBER_JOINED, 3): _member_joined_4,
    (MEMBER_JOINED, 4): _member_joined_5,
    (MEMBER_JOINED, 5): _member_joined_6,
    (LAG_REPORTED, 1): _lag_reported_2,
    (LAG_REPORTED, 2): _lag_reported_3,
    (ROUND_ASKED, 1): _round_asked_2,
    (LEAVE_REQUESTED, 1): _leave_requested_2,
    (LEAVE_REQUESTED, 2): _leave_requested_3,
    (CHANGE_PLANNED, 1): _change_planned_2,
    (CHANGE_PLANNED, 2): _change_planned_3,
    (CHANGE_MEASURED, 1): _change_measured_2,
    (CHECKPOINTED, 1): _checkpointed_2,
}
"""(kind, version n) -> the step from wire form n to n + 1."""


def upcast(kind: int, version: int, newest: int, wire: Any) -> Any:
    """Returns the wire form of version `newest` for one of `version`. Raises UnsoundError when the
    number of fields is not that of `version`.
    """
    for past in range(version, newest):
        shape = PAST_SHAPES[kind, past]
        if wire.__class__ is not list or len(wire) != len(attrs.fields(shape)):
            raise UnsoundError("misshapen", shape.__name__, f"{wire!r:.80} is not an array of its {len(attrs.fields(shape))} fields")
        wire = STEPS[kind, past](wire)
    return wire
