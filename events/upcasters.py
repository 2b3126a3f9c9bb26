"""Schema versions that are read but no longer written: one step per version, applied to the wire
form before any class reads it.

To change the wire form of a kind: say here what its past shape lacked, add the step from it, raise
its version in `equipoise.events.codec.KINDS`, and keep bytes of the past version under
``tests/data/events``. A shape that differs in more than fields that it lacked is a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import UnsoundError
from equipoise.events.facts import ChangePlanned, GroupConfigured, LagReported, LeaveRequested, Load, MemberJoined, PartitionsObserved, RoundAsked
from equipoise.events.settings import GroupSettings

GROUP_CONFIGURED = 2
PARTITIONS_OBSERVED = 4
MEMBER_JOINED = 5
LAG_REPORTED = 6
LEAVE_REQUESTED = 15
ROUND_ASKED = 22
CHANGE_PLANNED = 25
CHANGE_MEASURED = 26
CHECKPOINTED = 106


def _before(name: str, later: type[Any], *lacks: str, **instead: Any) -> Any:
    """Returns the class of a past version, which is named `name`: it has the fields of `later`, the
    version after it, but for `lacks`. `instead`: the fields of other types.
    """
    attrs.resolve_types(later)
    kept = {each.name: instead.get(each.name, _field_as(each)) for each in attrs.fields(later) if each.name not in lacks}
    return attrs.make_class(name, kept, frozen=True, kw_only=True, slots=True, order=False)


def _field_as(field: attrs.Attribute[Any]) -> Any:
    validator = field.validator or field.metadata.get("validator")  # LagReported calls its own in one place
    return attrs.field(default=field.default, validator=validator, converter=field.converter, type=field.type)


GroupSettingsV1 = _before("GroupSettingsV1", GroupSettings, "join_delay_ms")
GroupConfiguredV2 = _before("GroupConfiguredV2", GroupConfigured, "made_from", "change_id", "by")
GroupConfiguredV1 = _before(
    "GroupConfiguredV1",
    GroupConfiguredV2,
    knobs=attrs.field(factory=GroupSettingsV1, validator=fields.instance_of(GroupSettingsV1), type=GroupSettingsV1),
)
PartitionsObservedV2 = _before("PartitionsObservedV2", PartitionsObserved, "source_lags")
PartitionsObservedV1 = _before("PartitionsObservedV1", PartitionsObservedV2, "weights")
MemberJoinedV5 = _before("MemberJoinedV5", MemberJoined, "subtopologies")
MemberJoinedV4 = _before("MemberJoinedV4", MemberJoinedV5, "advertised")
MemberJoinedV3 = _before("MemberJoinedV3", MemberJoinedV4, "readiness", "ready_lag_records")
MemberJoinedV2 = _before("MemberJoinedV2", MemberJoinedV3, "eager")
MemberJoinedV1 = _before("MemberJoinedV1", MemberJoinedV2, "tags", "lags")
LoadV1 = _before("LoadV1", Load, "busy")
LagReportedV2 = _before("LagReportedV2", LagReported, "preparing", "failed")
_load: Any = LoadV1 | None
LagReportedV1 = _before(
    "LagReportedV1",
    LagReportedV2,
    load=attrs.field(default=None, validator=fields.optional(fields.instance_of(LoadV1)), type=_load),
)
RoundAskedV1 = _before("RoundAskedV1", RoundAsked, "due_by_copies")
LeaveRequestedV2 = _before("LeaveRequestedV2", LeaveRequested, "staying")
LeaveRequestedV1 = _before("LeaveRequestedV1", LeaveRequestedV2, "incarnations")
ChangePlannedV2 = _before("ChangePlannedV2", ChangePlanned, "judged_by")
ChangePlannedV1 = _before("ChangePlannedV1", ChangePlannedV2, "made_from")
CheckpointedV1 = _before("CheckpointedV1", Checkpointed, "form")


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


def _member_joined_2(wire: list[Any]) -> list[Any]:
    """Inserts empty `tags` between `rack` and `session_timeout_ms`; appends empty `lags`."""
    return [*wire[:4], {}, *wire[4:], {}]


def _lag_reported_2(wire: list[Any]) -> list[Any]:
    """Appends empty `busy` to the load."""
    *rest, load = wire
    return [*rest, [*load, []] if load.__class__ is list else load]


def _change_measured_2(wire: list[Any]) -> list[Any]:
    """Puts whether it is over in place of the verdict: the fold judges by the costs."""
    change_id, *costs, is_over = wire
    return [change_id, "at_rest" if is_over else "late", *costs, [], []]


Step = Callable[[list[Any]], list[Any]]

_PAST: Mapping[tuple[int, int], tuple[type[Any], Step]] = {
    (GROUP_CONFIGURED, 1): (GroupConfiguredV1, _group_configured_2),
    (GROUP_CONFIGURED, 2): (GroupConfiguredV2, lambda wire: [*wire, None, "", ""]),  # no plan and nobody: it holds whatever is in force
    (PARTITIONS_OBSERVED, 1): (PartitionsObservedV1, lambda wire: [*wire, {}]),
    (PARTITIONS_OBSERVED, 2): (PartitionsObservedV2, lambda wire: [*wire, {}]),
    (MEMBER_JOINED, 1): (MemberJoinedV1, _member_joined_2),
    (MEMBER_JOINED, 2): (MemberJoinedV2, lambda wire: [*wire, False]),
    # by this readiness the member's word counts like its lag: its limit is unknown
    (MEMBER_JOINED, 3): (MemberJoinedV3, lambda wire: [*wire, "word_or_lag", None]),
    (MEMBER_JOINED, 4): (MemberJoinedV4, lambda wire: [*wire, None]),
    (MEMBER_JOINED, 5): (MemberJoinedV5, lambda wire: [*wire, None]),  # it does not say which tasks it knows
    (LAG_REPORTED, 1): (LagReportedV1, _lag_reported_2),
    (LAG_REPORTED, 2): (LagReportedV2, lambda wire: [*wire, [], []]),
    (ROUND_ASKED, 1): (RoundAskedV1, lambda wire: [*wire, False]),  # what was answered then is computed again as it was
    (LEAVE_REQUESTED, 1): (LeaveRequestedV1, lambda wire: [*wire, []]),  # it asks whichever incarnations they are
    (LEAVE_REQUESTED, 2): (LeaveRequestedV2, lambda wire: [*wire, None]),  # it asks however few stay
    (CHANGE_PLANNED, 1): (ChangePlannedV1, lambda wire: [*wire, None]),  # it is planned whatever is in force
    (CHANGE_PLANNED, 2): (ChangePlannedV2, lambda wire: [*wire, "fold"]),
    (CHANGE_MEASURED, 1): (ChangeMeasuredV1, _change_measured_2),
    (CHECKPOINTED, 1): (CheckpointedV1, lambda wire: [*wire, 0]),  # of an unknown form
}
"""(kind, version n) -> the class of that version, and the step from wire form n to n + 1."""

PAST_SHAPES: Mapping[tuple[int, int], type[Any]] = {place: shape for place, (shape, _) in _PAST.items()}
"""(kind, version) -> the class of that version, which reads its JSON Lines."""


def upcast(kind: int, version: int, newest: int, wire: Any) -> Any:
    """Returns the wire form of version `newest` for one of `version`. Raises UnsoundError when the
    number of fields is not that of `version`.
    """
    for past in range(version, newest):
        shape, step = _PAST[kind, past]
        if wire.__class__ is not list or len(wire) != len(attrs.fields(shape)):
            raise UnsoundError("misshapen", shape.__name__, f"{wire!r:.80} is not an array of its {len(attrs.fields(shape))} fields")
        wire = step(wire)
    return wire
