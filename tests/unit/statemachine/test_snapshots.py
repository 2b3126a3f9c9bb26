"""A snapshot holds every part of the state, and equal states have equal bytes
(docs/protocol.md#l7).
"""

from __future__ import annotations

import zlib
from typing import Any

import attrs
import msgpack
import pytest

from equipoise.assignors import Movement, MovementState, Revocations
from equipoise.events import codec
from equipoise.events.decisions import Checkpointed, EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine import snapshots
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
)
from tests.groups import configured, topology

A, B, C, D, E = (TaskId(0, partition) for partition in range(5))


def of_member() -> MemberState:
    return MemberState(
        member_id="m1",
        incarnation=2,
        capacity=3,
        rack="r1",
        tags={"zone": "z1", "cluster": "c1"},
        session_timeout_ms=30_000,
        lease_margin_ms=3_000,
        topology_epoch=4,
        last_heard_ms=5,
        lags={B: 7, A: LagSentinel.ACTIVE, C: LagSentinel.UNKNOWN},
        eager=True,
        readiness="lag",
        ready_lag_records=8,
        advertised="host-1:80",
        tells_topology=True,
        troubles=("quotas",),
        issued_epoch=9,
        applied_epoch=10,
        report_number=11,
        held=(A, B),
        ready=frozenset({C, D}),
        preparing={D: Preparation(500, 12), C: Preparation(400, 13)},
        failed=frozenset({C, E}),
        restore_records_per_s=14,
        measured_records_per_s=15,
        slot_backoff=SlotBackoff(until_ms=16, times=17, over=True, exempt={C, D}),
        intends=True,
        leaving=True,
        drain_deadline_ms=18,
        drain_expired=True,
        released=True,
        active={A: 19, E: 20},
        revoking={B: (21, 22), D: (23, 24)},
        standby={D, C},
        warmup={E: Warmup(25, 26, True, 27, 28, 29), D: Warmup(None, 30, False, None, 31)},
        incoming={C},
        eager_regrants={D: True, C: False},
    )


def of_group() -> GroupState:
    """A state without any default value."""
    other = attrs.evolve(of_member(), member_id="m2", slot_backoff=None, incoming=set(), intends=False, drain_expired=False)
    return GroupState(
        group="orders",
        log_id="log-1",
        config=configured(),
        topologies={2: topology(2, stateful=5), 1: topology(1, stateful=4)},
        end_offsets={"log": {1: 2, 0: 1}, "b": {0: 3}},
        racks={"log": {1: ("r2", "r1"), 0: ("r1",)}, "in": {0: ()}},
        weights={"in": {1: 5, 0: 4}, "b": {0: 1}},
        growth={"log": {1: Growth(6, 7), 0: Growth(8)}, "b": {0: Growth(9, 10)}},
        loads={B: MeasuredLoad(1, 2, 3, 4, 5), A: MeasuredLoad(6, 7, 8, 9, 10)},
        behind={B: 11, A: 12},
        source_lags={"in": {1: 13, 0: 14}, "b": {0: 15}},
        parked={B: Parked("m1", 12, "in", 1, 13, "E: x"), A: Parked("m2", 14, "", 0, 0, "E: y")},
        now_ms=16,
        last_append_ms=17,
        last_offset=18,
        seq=19,
        number=20,
        generation=21,
        config_number=63,
        members={"m2": other, "m1": of_member()},
        owner={B: "m1", A: "m2"},
        tokens={B: 22, A: 23},
        holds={B: 24, A: 25},
        fenced={"m3#2": FencedIncarnation("m3", 2, 26, 27, 28, {B, A}), "m3#1": FencedIncarnation("m3", 1, 29, 30, 31, {A})},
        previous_owners={B: "m4", A: "m5"},
        change=WatchedChange(
            planned=ChangePlanned(change_id="c1", kind="join", what="1 more member", judged_by="fold"),
            former=configured(max_warmups=9),
            offset=61,
            planned_ms=62,
            configured=67,
            undoes=True,
            counts=ChangeCounts(
                begun_ms=63,
                rest_since_ms=64,
                unavailable_task_ms=65,
                moves=66,
                looked_ms=72,
                standing={B: 68, A: 69},
                runners={B: ("m1", 2), A: ("m2", 1)},
                heard_ms={"m2": 70, "m1": 71},
            ),
        ),
        lost={B: Lost(32, 33), A: Lost(34)},
        in_flight={C: Movement(task=C, source="m2", destination="m1", state=MovementState.REVOKING)},
        waiting=35,
        queued={E: "m2", D: "m1"},
        backoffs={(B, "m1"): Backoff(36, 37, True), (A, "m2"): Backoff(38, 39), (A, "m1"): Backoff(40, 41)},
        nonces={"n2": 42, "n1": 43},
        crashes={"m4": Crashes(44, 45, 46, 47), "m1": Crashes(48, 49, 50)},
        asked={"m4": 51, "m1": None},
        restarts={"m2": Restart(63, 64, True, False, True, True, 65), "m1": Restart(66, None, False, True)},
        lent={B: Lent("m1", "m2", True), A: Lent("m2", "m1", False)},
        restart_times_ms={"m2": 67, "m1": 68},
        refused={"m7": Refused(69, "sources_differ", (1, 0, 2, 2)), "m6": Refused(70, "tasks_missing", (1, 0, 2, 1))},
        revocations=Revocations(times=52, since_ms=53, until_ms=54),
        memory={"turn": 55, "next_tasks": (A, B), "their_members": ("m1", "m2")},
        gathering_until_ms=56,
        awaiting_lags=True,
        probing_deadline_ms=57,
        scheduled_ms=58,
        verdict=("warming", 59, 60, 61, 62),
    )


def test_state_of_the_test_has_a_value_of_its_own_in_each_field() -> None:
    """Else a field could be lost without a test that fails."""
    for made in (of_group(), of_group().members["m1"]):
        fields = [field for field in attrs.fields(type(made)) if field.init]
        plain = [field for field in fields if field.default is not attrs.NOTHING and not isinstance(field.default, type(attrs.Factory(dict)))]
        assert [field.name for field in plain if getattr(made, field.name) == field.default] == []
        assert [field.name for field in fields if not isinstance(getattr(made, field.name), int) and not getattr(made, field.name)] == []


def test_load_returns_the_state_that_was_dumped() -> None:
    loaded = snapshots.load(snapshots.dump(of_group()))
    assert loaded == of_group()
    kinds = {type(value) for value in loaded.racks["log"].values()} | {type(loaded.members["m1"].held), type(loaded.verdict)}
    assert kinds == {tuple}


LATER = ("parked", "restarts", "lent", "restart_times_ms", "refused", "change")
"""What former builds do not remember, in the order of the bytes."""


def test_state_without_what_later_builds_remember_has_the_bytes_that_it_always_had() -> None:
    """So their form has the same number, and a former build reads them."""
    some, none = (msgpack.unpackb(msgpack.unpackb(snapshots.dump(each))[3], strict_map_key=False) for each in (of_group(), GroupState()))
    assert len(some) == len(none) + len(LATER)
    for name in LATER:
        without = of_group()
        setattr(without, name, None if name == "change" else {})
        assert snapshots.load(snapshots.dump(without)) == without
    assert len(msgpack.unpackb(msgpack.unpackb(snapshots.dump(without))[3], strict_map_key=False)) == len(some) - 1


def test_load_of_an_empty_state_returns_it() -> None:
    assert snapshots.load(snapshots.dump(GroupState())) == GroupState()


def backwards(value: Any) -> Any:
    """The same value with its mappings and sets filled in the opposite order."""
    if isinstance(value, dict):
        return {key: backwards(each) for key, each in reversed(value.items())}
    if isinstance(value, set | frozenset):
        return type(value)(sorted(value, reverse=True))
    if isinstance(value, MemberState):
        return attrs.evolve(value, **{field.name: backwards(getattr(value, field.name)) for field in attrs.fields(MemberState) if field.init})
    return value


def test_dump_of_equal_states_is_equal() -> None:
    state = of_group()
    other = attrs.evolve(state, **{field.name: backwards(getattr(state, field.name)) for field in attrs.fields(GroupState) if field.init})
    assert (other, list(other.owner)) == (state, [A, B])
    assert snapshots.dump(other) == snapshots.dump(state)


def rewritten(place: int, value: object) -> bytes:
    """A snapshot whose content has another value at this place, with a checksum that fits."""
    wire = msgpack.unpackb(snapshots.dump(of_group()))
    content = msgpack.unpackb(wire[3], strict_map_key=False)
    content[place] = value
    packed = msgpack.packb(content)
    return bytes(msgpack.packb([*wire[:2], zlib.crc32(packed), packed]))


@pytest.mark.parametrize(
    ("checkpoint", "problem_text"),
    [
        (b"", "the checkpoint is damaged: "),
        (bytes(msgpack.packb("equipoise-state")), "these bytes are no checkpoint of a group"),
        (bytes(msgpack.packb(["another", snapshots.FORM, 0, b""])), "these bytes are no checkpoint of a group"),
        (bytes(msgpack.packb(["equipoise-state", 6, 0, b""])), "the snapshot has form 6, this build reads forms 1 to 5; use the build that wrote it"),
        (bytes(msgpack.packb(["equipoise-state", "x" * 99, 0, b""])), f"the snapshot has form '{'x' * 79}, this build reads forms 1 to 5; "),
        (bytes(msgpack.packb(["equipoise-state", snapshots.FORM, 1, b""])), "the checkpoint is damaged: its bytes differ from their checksum; "),
        (bytes(msgpack.packb(["equipoise-state", snapshots.FORM])), "the checkpoint is damaged: "),
        (rewritten(2, list(codec.encode(topology(1)))), "the checkpoint is damaged: TopologyDeclared found where GroupConfigured is expected"),
        (rewritten(3, [list(codec.encode(configured()))]), "the checkpoint is damaged: GroupConfigured found where TopologyDeclared is expected"),
        (rewritten(5, 5), "the checkpoint is damaged: "),
    ],
)
def test_load_of_other_bytes_names_what_is_wrong(checkpoint: bytes, problem_text: str) -> None:
    with pytest.raises(InputError) as caught:
        snapshots.load(checkpoint)
    assert str(caught.value).startswith(problem_text)


def test_hash_of_a_state_in_another_form_is_not_comparable() -> None:
    hashes = [Checkpointed(state_sha256="a" * 64, seq=3, form=form) for form in (snapshots.FORM - 1, snapshots.FORM, snapshots.FORM + 1)]
    assert [snapshots.is_of_another_form(each) for each in hashes] == [True, False, True]
    assert not snapshots.is_of_another_form(EventRejected(kind=6, code="epoch_went_back"))


def test_member_that_advertises_nothing_has_the_bytes_that_it_always_had() -> None:
    none = attrs.evolve(of_member(), advertised=None, tells_topology=False, troubles=())
    assert snapshots._member_to_wire(none)[1] == ["lag", 8]
    assert snapshots._member_from_wire(snapshots._member_to_wire(none)).advertised is None
