"""Hypothesis strategies for every event, built from the classes: each field is drawn from what its
validator accepts.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import attrs
from hypothesis import strategies as st

from equipoise.events import codec, decisions, facts, fields
from equipoise.events.tasks import LagSentinel, TaskId

MOST_ITEMS = 4
MOST_CHARS = 12

_FEW = st.integers(0, 12)


def tasks() -> st.SearchStrategy[TaskId]:
    """A task: mostly of a small group, sometimes any."""
    anywhere = st.integers(0, fields.MOST_TASK_NUMBER)
    return st.builds(TaskId, st.one_of(st.integers(0, 3), anywhere), st.one_of(_FEW, anywhere))


def task_sets() -> st.SearchStrategy[tuple[TaskId, ...]]:
    """Tasks in rising order, each once."""
    return st.frozensets(tasks(), max_size=MOST_ITEMS).map(sorted).map(tuple)


def lags() -> st.SearchStrategy[dict[TaskId, Any]]:
    """Task -> lag, in any order."""
    return st.dictionaries(tasks(), st.one_of(st.integers(0, fields.INT64_MAX), st.sampled_from(LagSentinel)), max_size=MOST_ITEMS)


def texts(least: int = 0, most: int = MOST_CHARS) -> st.SearchStrategy[str]:
    """Any text that UTF-8 can encode."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=min(most, max(least, MOST_CHARS)))


def scalars() -> st.SearchStrategy[Any]:
    """An option of a third-party assignor."""
    numbers = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
    return st.one_of(st.booleans(), texts(), st.integers(-(2**63), fields.INT64_MAX), numbers)


def allowed_by(validator: Any) -> st.SearchStrategy[Any]:
    """Values that a validator of `equipoise.events.fields` accepts."""
    plain = {
        fields.boolean: st.booleans(),
        fields.task: tasks(),
        fields.task_set: task_sets(),
        fields.lags: lags(),
        fields.scalar: scalars(),
    }
    if validator in plain:
        return plain[validator]
    given_ = dict(inspect.getclosurevars(validator).nonlocals)
    match validator.__qualname__.split(".")[0]:
        case "integer":
            near = st.integers(given_["least"], min(given_["most"], given_["least"] + 300))
            return st.one_of(near, st.integers(given_["least"], given_["most"]))
        case "number":
            return st.floats(given_["least"], allow_nan=False, allow_infinity=False)
        case "text":
            return texts(given_["least_chars"], given_["most_chars"])
        case "one_of":
            return st.sampled_from(given_["allowed"])
        case "optional":
            return st.none() | allowed_by(given_["inner"])
        case "tuple_of":
            most = min(MOST_ITEMS, MOST_ITEMS if given_["most_items"] is None else given_["most_items"])
            return st.lists(allowed_by(given_["item"]), max_size=most, unique=given_["distinct"]).map(tuple)
        case "mapping_of":
            return st.dictionaries(allowed_by(given_["key"]), allowed_by(given_["item"]), max_size=MOST_ITEMS)
        case "instance_of":
            return instances(given_["kind"])
    raise NotImplementedError(f"no strategy for {validator.__qualname__}; add one here")


@cache
def instances(kind: type) -> st.SearchStrategy[Any]:
    """Valid instances of an event class, or of a class that events are made of."""
    if kind is facts.TopologyDeclared:
        return _topologies()
    if kind is decisions.MemberAssigned:
        return _assigned()
    if kind is facts.LeaveRequested:
        return _requests()
    if kind is facts.RoundAsked:
        return _rounds()
    if kind is facts.GroupRejoined:
        return _generations()
    if kind is facts.ChangePlanned:
        return _planned_changes()
    if kind is facts.ExpectedCost:
        return _expected_costs(st.sampled_from(facts.JUDGED_METRICS))
    if kind in (decisions.MemberAssignedPart, decisions.AssignmentProposedPart):
        return _parts(kind)
    return st.builds(kind, **_fields(kind))


def _fields(kind: Any, *without: str) -> dict[str, st.SearchStrategy[Any]]:
    return {field.name: allowed_by(fields.validator_of(field)) for field in attrs.fields(kind) if field.name not in without}


@st.composite
def _topologies(draw: st.DrawFn) -> facts.TopologyDeclared:
    parts = draw(st.lists(instances(facts.Subtopology), max_size=MOST_ITEMS, unique_by=lambda part: part.subtopology))
    most = facts.MOST_TASKS // MOST_ITEMS
    fitting = [attrs.evolve(part, partitions=min(part.partitions, most)) for part in sorted(parts, key=lambda part: part.subtopology)]
    return facts.TopologyDeclared(epoch=draw(_FEW), subtopologies=tuple(fitting))


@st.composite
def _parts(draw: st.DrawFn, kind: Any) -> Any:
    parts = draw(st.one_of(st.integers(2, 300), st.integers(2, fields.INT64_MAX)))
    others = {name: draw(of) for name, of in _fields(kind, "part", "parts", "member_id", "incarnation").items()}
    if kind is decisions.MemberAssignedPart:
        others |= {"member_id": others["assigned"].member_id, "incarnation": others["assigned"].incarnation}
    return kind(part=draw(st.integers(1, parts)), parts=parts, **others)


@st.composite
def _expected_costs(draw: st.DrawFn, metric: st.SearchStrategy[str]) -> facts.ExpectedCost:
    low_95, low_50, high_50, high_95 = sorted(draw(st.lists(st.integers(0, fields.INT64_MAX), min_size=4, max_size=4)))
    median = draw(st.integers(0, fields.INT64_MAX))
    return facts.ExpectedCost(metric=draw(metric), median=median, low_50=low_50, high_50=high_50, low_95=low_95, high_95=high_95)


@st.composite
def _planned_changes(draw: st.DrawFn) -> facts.ChangePlanned:
    others = {name: draw(of) for name, of in _fields(facts.ChangePlanned, "kind", "expected", "or_undo").items()}
    metrics = [metric for metric in facts.JUDGED_METRICS if draw(st.booleans())]
    expected = tuple(draw(_expected_costs(st.just(metric))) for metric in metrics)
    kind = draw(st.sampled_from(facts.CHANGE_KINDS))
    may_undo = kind == "configure" and (expected or others["most_unavailable_task_ms"] is not None)
    return facts.ChangePlanned(**others, kind=kind, expected=expected, or_undo=bool(may_undo) and draw(st.booleans()))


@st.composite
def _requests(draw: st.DrawFn) -> facts.LeaveRequested:
    names = draw(st.lists(_fields(facts.LeaveIntended)["member_id"], min_size=1, max_size=MOST_ITEMS, unique=True))
    incarnations = st.lists(_fields(facts.LeaveIntended)["incarnation"], min_size=len(names), max_size=len(names)).map(tuple)
    return facts.LeaveRequested(
        members=tuple(sorted(names)),
        withdrawn=draw(st.booleans()),
        incarnations=draw(st.just(()) | incarnations),
        staying=draw(st.none() | st.integers(0, MOST_ITEMS)),
    )


@st.composite
def _rounds(draw: st.DrawFn) -> facts.RoundAsked:
    present = draw(st.lists(instances(facts.PresentMember), min_size=1, max_size=MOST_ITEMS, unique_by=lambda each: each.member_id))
    others = {name: draw(strategy) for name, strategy in _fields(facts.RoundAsked, "members").items()}
    return facts.RoundAsked(members=tuple(sorted(present, key=lambda each: each.member_id)), **others)


@st.composite
def _generations(draw: st.DrawFn) -> facts.GroupRejoined:
    """Names rise and are there once, no task has two holders, and epochs rise."""
    members = draw(st.lists(instances(facts.RejoinedMember), max_size=MOST_ITEMS, unique_by=lambda member: member.member_id))
    absent = draw(st.lists(instances(facts.AbsentMember), max_size=MOST_ITEMS, unique_by=lambda member: member.member_id))
    here, held = {member.member_id for member in members}, set[TaskId]()
    apart = []
    for member in sorted(members, key=lambda member: member.member_id):
        apart.append(attrs.evolve(member, held=tuple(task for task in member.held if task not in held)))
        held.update(member.held)
    topologies = draw(st.lists(_topologies(), max_size=2, unique_by=lambda topology: topology.epoch))
    return facts.GroupRejoined(
        members=tuple(apart),
        absent=tuple(sorted((each for each in absent if each.member_id not in here), key=lambda member: member.member_id)),
        topologies=tuple(sorted(topologies, key=lambda topology: topology.epoch)),
        **{name: draw(of) for name, of in _fields(facts.GroupRejoined, "members", "absent", "topologies").items()},
    )


@st.composite
def _assigned(draw: st.DrawFn) -> decisions.MemberAssigned:
    others = {name: draw(strategy) for name, strategy in _fields(decisions.MemberAssigned, "active", "tokens", "hold_ms").items()}
    active = draw(task_sets())
    number = st.integers(1, fields.INT64_MAX)
    held = [task for task in active if draw(st.booleans())]
    return decisions.MemberAssigned(
        **others, active=active, tokens=tuple(draw(number) for _ in active), hold_ms={task: draw(st.one_of(st.just(30_000), number)) for task in held}
    )


FACTS = [shape for code, (_, shape) in codec.KINDS.items() if code < codec.FIRST_DECISION_KIND]
DECISIONS = [shape for code, (_, shape) in codec.KINDS.items() if code >= codec.FIRST_DECISION_KIND]


@cache
def any_fact() -> st.SearchStrategy[Any]:
    """Any valid fact."""
    return st.one_of([instances(kind) for kind in FACTS])


@cache
def any_decision() -> st.SearchStrategy[Any]:
    """Any valid decision."""
    return st.one_of([instances(kind) for kind in DECISIONS])


@cache
def any_event() -> st.SearchStrategy[Any]:
    """Any valid event."""
    return st.one_of(any_fact(), any_decision())
