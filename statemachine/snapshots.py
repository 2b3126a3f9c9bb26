"""The state as canonical bytes, and back (docs/protocol.md#l7). Every mapping is in key order, so
equal states give equal bytes.

Derived parts (the timers' heap, `incoming`) are left out and rebuilt.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs
import msgpack

from equipoise.assignors import Movement, MovementState, Revocations
from equipoise.events import codec
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import ChangePlanned, GroupConfigured, TopologyDeclared
from equipoise.events.tasks import PARSED_TASKS, Lag, LagSentinel, TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.snapshot_forms import UPCASTERS, upcast
from equipoise.statemachine.state import (
    Backoff,
    ChangeCounts,
    Crashes,
    FencedIncarnation,
    GroupState,
    Growth,
    Lent,
    Lost,
    MeasuredLoad,
    MemberState,
    Parked,
    Preparation,
    Refused,
    Restart,
    SlotBackoff,
    Warmup,
    WatchedChange,
    fenced_key,
)

T = TypeVar("T")

_task = PARSED_TASKS.__getitem__
_SENTINELS: Mapping[str, LagSentinel] = {sentinel.value: sentinel for sentinel in LagSentinel}

FORMAT = "equipoise-state"
FORM = 5
"""Form of the content. Raise it whenever the same state gives other bytes, including the bytes of
the configuration and topologies in it. `Checkpointed` names it beside its hash, and hashes of
another form are not compared (docs/protocol.md#l7). Earlier forms are read
(`equipoise.statemachine.snapshot_forms`). ``tests/data/logs`` has a log that shows a change.
"""


_LAST_JUDGED_IN_FOLD = 2
"""Version of the last `ChangePlanned` that the fold judged."""


class UnreadFormError(InputError):
    """A snapshot in a form that this build does not read. `form`: the form."""

    def __init__(self, form: object) -> None:
        super().__init__(f"the snapshot has form {form!r:.80}, this build reads forms {min(UPCASTERS)} to {FORM}; use the build that wrote it")
        self.form = form


def is_read(form: int) -> bool:
    """Returns whether this build reads snapshots in this form."""
    return form == FORM or form in UPCASTERS


def is_of_another_form(decision: object) -> bool:
    """Returns whether it is a `Checkpointed` whose hash this build cannot compare with its own."""
    return isinstance(decision, Checkpointed) and decision.form != FORM


def dump(state: GroupState) -> bytes:
    """Canonical bytes of `state`: msgpack of [FORMAT, FORM, CRC-32 of the content, content]; the
    content is msgpack too.
    """
    content = bytes(msgpack.packb(_state_to_wire(state)))
    return bytes(msgpack.packb([FORMAT, FORM, zlib.crc32(content), content]))


def load(checkpoint: bytes) -> GroupState:
    """The state from the bytes of `dump`, in this build's form or an earlier one. Raises InputError
    when the bytes are damaged, UnreadFormError when they have another form.
    """
    try:
        wire = msgpack.unpackb(checkpoint)
        if not isinstance(wire, list) or wire[:1] != [FORMAT]:
            raise InputError("these bytes are no checkpoint of a group")
        form = wire[1]
        if form.__class__ is not int or not is_read(form):
            raise UnreadFormError(form)
        checksum, content = wire[2:]
        if zlib.crc32(content) != checksum:
            raise InputError("the checkpoint is damaged: its bytes differ from their checksum; take an earlier one, or fold the log from its start")
        parts = msgpack.unpackb(content, strict_map_key=False, use_list=False)
        return _state_from_wire(parts if form == FORM else upcast(form, list(parts), FORM))
    except EquipoiseError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, msgpack.exceptions.ExtraData, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"the checkpoint is damaged: {error}") from error


def _expect(kind: type[T], event: object) -> T:
    if not isinstance(event, kind):
        raise InputError(f"the checkpoint is damaged: {event.__class__.__name__} found where {kind.__name__} is expected")
    return event


def _tasks(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]


def _task_map(values: Mapping[TaskId, Any]) -> dict[str, Any]:
    return {str(task): values[task] for task in sorted(values)}


def _from_task_map(wire: Mapping[str, Any]) -> dict[TaskId, Any]:
    return {_task(text): value for text, value in wire.items()}


def _memory_from_wire(key: str, value: int | tuple[str, ...]) -> int | tuple[str, ...] | tuple[TaskId, ...]:
    if isinstance(value, int):
        return value
    return tuple(map(_task, value)) if key.endswith("_tasks") else value


def _lag_to_wire(lag: Lag) -> int | str:
    return lag.value if isinstance(lag, LagSentinel) else lag


def _columns(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(kind))


_OF_LOADS, _OF_CRASHES, _OF_PARKED, _OF_PREPARATIONS, _OF_WARMUPS = map(_columns, (MeasuredLoad, Crashes, Parked, Preparation, Warmup))
_OF_RESTARTS, _OF_LENT, _OF_REFUSED = map(_columns, (Restart, Lent, Refused))


def _values(of: object, columns: tuple[str, ...]) -> list[Any]:
    return [getattr(of, name) for name in columns]


def _state_to_wire(state: GroupState) -> list[Any]:
    return [
        state.group,
        state.log_id,
        None if state.config is None else list(codec.encode(state.config)),
        [list(codec.encode(state.topologies[epoch])) for epoch in sorted(state.topologies)],
        {topic: dict(sorted(ends.items())) for topic, ends in sorted(state.end_offsets.items())},
        {topic: {number: list(names) for number, names in sorted(racks.items())} for topic, racks in sorted(state.racks.items())},
        {topic: dict(sorted(weights.items())) for topic, weights in sorted(state.weights.items())},
        {topic: {number: [g.observed_ms, g.records_per_s] for number, g in sorted(of.items())} for topic, of in sorted(state.growth.items())},
        {str(task): _values(state.loads[task], _OF_LOADS) for task in sorted(state.loads)},
        [_task_map(state.behind), {topic: dict(sorted(lags.items())) for topic, lags in sorted(state.source_lags.items())}],
        [state.now_ms, state.last_append_ms, state.last_offset, state.seq, state.number, state.generation, state.config_number],
        [_member_to_wire(state.members[member_id]) for member_id in sorted(state.members)],
        _task_map(state.owner),
        _task_map(state.tokens),
        _task_map(state.holds),
        [
            [fenced.member_id, fenced.incarnation, fenced.session_timeout_ms, fenced.lease_margin_ms, fenced.last_heard_ms, _tasks(fenced.tasks)]
            for _, fenced in sorted(state.fenced.items())
        ],
        _task_map(state.previous_owners),
        {str(task): [state.lost[task].since_ms, state.lost[task].until_ms] for task in sorted(state.lost)},
        [[str(task), m.source, m.destination, m.state.value] for task, m in sorted(state.in_flight.items())],
        [state.waiting, _task_map(state.queued)],
        [[str(task), member_id, b.until_ms, b.times, b.over] for (task, member_id), b in sorted(state.backoffs.items())],
        dict(sorted(state.nonces.items())),
        {name: _values(state.crashes[name], _OF_CRASHES) for name in sorted(state.crashes)},
        dict(sorted(state.asked.items())),
        [state.gathering_until_ms, state.probing_deadline_ms, state.scheduled_ms, state.awaiting_lags],
        [state.revocations.times, state.revocations.since_ms, state.revocations.until_ms],
        {key: value if isinstance(value, int) else [str(item) for item in value] for key, value in sorted(state.memory.items())},
        None if state.verdict is None else list(state.verdict),
        *_parts_of_later_builds(state),
    ]


def _parts_of_later_builds(state: GroupState) -> list[Any]:
    """Returns what earlier builds did not remember. Not written while it is empty, so the same
    state keeps its bytes.
    """
    parts: list[Any] = [
        {str(task): _values(state.parked[task], _OF_PARKED) for task in sorted(state.parked)},
        {name: _values(state.restarts[name], _OF_RESTARTS) for name in sorted(state.restarts)},
        {str(task): _values(state.lent[task], _OF_LENT) for task in sorted(state.lent)},
        dict(sorted(state.restart_times_ms.items())),
        {name: _values(state.refused[name], _OF_REFUSED) for name in sorted(state.refused)},
        [] if state.change is None else _change_to_wire(state.change),
    ]
    while parts and not parts[-1]:
        del parts[-1]
    return parts


_OF_COUNTS = ("begun_ms", "rest_since_ms", "unavailable_task_ms", "moves")


def _change_to_wire(change: WatchedChange) -> list[Any]:
    planned, counts = codec.encode(change.planned), change.counts or ChangeCounts()
    written: list[Any] = list(planned)
    if change.counts is not None:  # as builds did that know no other way
        written[1:] = [_LAST_JUDGED_IN_FOLD, msgpack.packb(msgpack.unpackb(planned.payload)[:-1])]
    return [
        written,
        list(codec.encode(change.former)),
        [change.offset, change.planned_ms, *_values(counts, _OF_COUNTS), change.configured, change.undoes, counts.looked_ms],
        _task_map(counts.standing),
        {str(task): list(counts.runners[task]) for task in sorted(counts.runners)},
        dict(sorted(counts.heard_ms.items())),
    ]


def _change_from_wire(encoded: Any, former: Any, values: Any, standing: Any, runners: Any, heard_ms: Any) -> WatchedChange:
    planned = _expect(ChangePlanned, codec.decode(*encoded))
    offset, planned_ms, *counted, configured, undoes, looked_ms = values
    counts = ChangeCounts(
        **dict(zip(_OF_COUNTS, counted, strict=True)),
        looked_ms=looked_ms,
        standing=_from_task_map(standing),
        runners=_from_task_map(runners),
        heard_ms=heard_ms,
    )
    return WatchedChange(
        planned=planned,
        former=_expect(GroupConfigured, codec.decode(*former)),
        offset=offset,
        planned_ms=planned_ms,
        configured=configured,
        undoes=undoes,
        counts=counts if planned.judged_by == "fold" else None,
    )


def _state_from_wire(wire: list[Any]) -> GroupState:
    group, log_id, config, topologies, ends, racks, weights, growth, loads, behind, numbers, members, owner, *rest = wire
    tokens, holds, fenced, previous_owners, lost, in_flight, waiting, backoffs, nonces, crashes, asked, timers, revocations, *rest = rest
    memory, verdict, *later = rest
    parked, restarts, lent, restart_times_ms, refused, change = later + [{}] * (6 - len(later))
    now_ms, last_append_ms, last_offset, seq, number, generation, config_number = numbers
    state = GroupState(
        group=group,
        log_id=log_id,
        config=None if config is None else _expect(GroupConfigured, codec.decode(*config)),
        topologies={each.epoch: each for each in (_expect(TopologyDeclared, codec.decode(*encoded)) for encoded in topologies)},
        end_offsets=ends,
        racks={topic: {partition: tuple(names) for partition, names in of_topic.items()} for topic, of_topic in racks.items()},
        weights=weights,
        growth={topic: {number: Growth(*values) for number, values in of_topic.items()} for topic, of_topic in growth.items()},
        loads={_task(text): MeasuredLoad(*values) for text, values in loads.items()},
        behind=_from_task_map(behind[0]),
        source_lags=behind[1],
        now_ms=now_ms,
        last_append_ms=last_append_ms,
        last_offset=last_offset,
        seq=seq,
        number=number,
        generation=generation,
        config_number=config_number,
        members={member.member_id: member for member in map(_member_from_wire, members)},
        owner=_from_task_map(owner),
        tokens=_from_task_map(tokens),
        holds=_from_task_map(holds),
        fenced={fenced_key(each.member_id, each.incarnation): each for each in map(_fenced_from_wire, fenced)},
        previous_owners=_from_task_map(previous_owners),
        lost={_task(text): Lost(since_ms=since_ms, until_ms=until_ms) for text, (since_ms, until_ms) in lost.items()},
        waiting=waiting[0],
        queued=_from_task_map(waiting[1]),
        backoffs={(_task(text), name): Backoff(until_ms=until_ms, times=times, over=over) for text, name, until_ms, times, over in backoffs},
        nonces=nonces,
        crashes={name: Crashes(*values) for name, values in crashes.items()},
        asked=asked,
        gathering_until_ms=timers[0],
        probing_deadline_ms=timers[1],
        scheduled_ms=timers[2],
        awaiting_lags=timers[3],
        revocations=Revocations(times=revocations[0], since_ms=revocations[1], until_ms=revocations[2]),
        memory={key: _memory_from_wire(key, value) for key, value in memory.items()},
        verdict=None if verdict is None else tuple(verdict),
        parked={_task(text): Parked(*values) for text, values in parked.items()},
        restarts={name: Restart(*values) for name, values in restarts.items()},
        lent={_task(text): Lent(*values) for text, values in lent.items()},
        restart_times_ms=restart_times_ms,
        refused={name: Refused(*values) for name, values in refused.items()},
        change=_change_from_wire(*change) if change else None,
    )
    for text, source, destination, what in in_flight:
        actions.begin_movement(state, Movement(task=_task(text), source=source, destination=destination, state=MovementState(what)))
    return state


def _fenced_from_wire(wire: list[Any]) -> FencedIncarnation:
    member_id, incarnation, session_timeout_ms, lease_margin_ms, last_heard_ms, tasks = wire
    return FencedIncarnation(member_id, incarnation, session_timeout_ms, lease_margin_ms, last_heard_ms, set(map(_task, tasks)))


def _slot_backoff_to_wire(backoff: SlotBackoff | None) -> list[Any] | None:
    return None if backoff is None else [backoff.until_ms, backoff.times, backoff.over, _tasks(backoff.exempt)]


def _slot_backoff_from_wire(wire: list[Any] | None) -> SlotBackoff | None:
    return None if wire is None else SlotBackoff(wire[0], wire[1], wire[2], set(map(_task, wire[3])))


def _member_to_wire(member: MemberState) -> list[Any]:
    return [
        [member.member_id, member.incarnation, member.capacity, member.rack, dict(sorted(member.tags.items())), member.eager],
        [member.readiness, member.ready_lag_records, *_of_later_joins(member)],
        [member.session_timeout_ms, member.lease_margin_ms, member.topology_epoch, member.last_heard_ms],
        {str(task): _lag_to_wire(member.lags[task]) for task in sorted(member.lags)},
        [member.issued_epoch, member.applied_epoch, member.report_number],
        _tasks(member.held),
        _tasks(member.ready),
        [{str(task): _values(member.preparing[task], _OF_PREPARATIONS) for task in sorted(member.preparing)}, _tasks(member.failed)],
        [member.restore_records_per_s, member.measured_records_per_s, _slot_backoff_to_wire(member.slot_backoff)],
        [member.leaving, member.drain_deadline_ms, member.drain_expired, member.released, member.intends],
        _task_map(member.active),
        {str(task): list(member.revoking[task]) for task in sorted(member.revoking)},
        _task_map(member.eager_regrants),
        _tasks(member.standby),
        {str(task): _values(member.warmup[task], _OF_WARMUPS) for task in sorted(member.warmup)},
    ]


def _of_later_joins(member: MemberState) -> list[Any]:
    """Returns what earlier builds did not remember of a member, as in `_parts_of_later_builds`."""
    later: list[Any] = [member.advertised, member.tells_topology, list(member.troubles)]
    while later and not later[-1]:
        del later[-1]
    return later


def _member_from_wire(wire: list[Any]) -> MemberState:
    who, readiness, session, lags, epochs, held, ready, preparing, speed, leave, active, revoking, eager_regrants, standby, warmup = wire
    return MemberState(
        member_id=who[0],
        incarnation=who[1],
        capacity=who[2],
        rack=who[3],
        tags=who[4],
        eager=who[5],
        readiness=readiness[0],
        ready_lag_records=readiness[1],
        advertised=readiness[2] if readiness[2:] else None,
        tells_topology=bool(readiness[3:] and readiness[3]),
        troubles=tuple(readiness[4]) if readiness[4:] else (),
        session_timeout_ms=session[0],
        lease_margin_ms=session[1],
        topology_epoch=session[2],
        last_heard_ms=session[3],
        lags={_task(text): lag if lag.__class__ is int else _SENTINELS[lag] for text, lag in lags.items()},
        issued_epoch=epochs[0],
        applied_epoch=epochs[1],
        report_number=epochs[2],
        held=tuple(map(_task, held)),
        ready=frozenset(map(_task, ready)),
        preparing={_task(text): Preparation(*values) for text, values in preparing[0].items()},
        failed=frozenset(map(_task, preparing[1])),
        restore_records_per_s=speed[0],
        measured_records_per_s=speed[1],
        slot_backoff=_slot_backoff_from_wire(speed[2]),
        leaving=leave[0],
        drain_deadline_ms=leave[1],
        drain_expired=leave[2],
        released=leave[3],
        intends=leave[4],
        active=_from_task_map(active),
        revoking={_task(text): (epoch, since_ms) for text, (epoch, since_ms) in revoking.items()},
        eager_regrants=_from_task_map(eager_regrants),
        standby=set(map(_task, standby)),
        warmup={_task(text): Warmup(*values) for text, values in warmup.items()},
    )
