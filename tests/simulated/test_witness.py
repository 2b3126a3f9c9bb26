"""Members of a simulated group with a witness: what it proves, and what it does not."""

from __future__ import annotations

from typing import Any

from equipoise import Record, TaskContext
from equipoise.testing import Group

LONG: Any = {"session_timeout_ms": 60_000, "lease_margin_ms": 3_000, "heartbeat_interval_ms": 1_000}
SOON_S = 5.0


def count(record: Record, context: TaskContext) -> None:
    number = int(context.state.get(record.key) or b"0") + 1
    context.state.put(record.key, b"%d" % number)


def running(group: Group) -> set[str]:
    return set(group.running.values())


def begin(group: Group) -> None:
    group.join("m1", "m2")
    for number in range(40):
        group.send(b"x", key=b"k%d" % (number % 10))
    group.settle()
    assert running(group) == {"m1", "m2"}


def test_tasks_of_a_killed_member_run_elsewhere_at_once() -> None:
    with Group(count, sources="orders", state="counts", witness=True, **LONG) as group:
        begin(group)
        group.crash("m1")
        group.advance(SOON_S)
        assert running(group) == {"m2"}
        assert len(group.running) == 4
        group.join("m1")
        group.advance(60.0)
        assert running(group) == {"m1", "m2"}
        group.recount()


def test_without_a_witness_they_wait_for_the_session() -> None:
    with Group(count, sources="orders", state="counts", **LONG) as group:
        begin(group)
        group.crash("m1")
        group.advance(SOON_S)
        assert len(group.running) == 2
        group.settle()
        group.recount()


def test_witness_of_a_machine_that_fails_proves_nothing() -> None:
    with Group(count, sources="orders", state="counts", witness=True, **LONG) as group:
        begin(group)
        group._seats["m1"].machine.has_failed = True
        group.crash("m1")
        group.advance(SOON_S)
        assert len(group.running) == 2


def test_stopped_member_is_not_dead() -> None:
    with Group(count, sources="orders", state="counts", witness=True, **LONG) as group:
        begin(group)
        _, process = group._running("m1")
        process.pause()
        group.advance(20.0)
        process.resume()
        group.advance(SOON_S)
        assert running(group) == {"m1", "m2"}
        group.settle()
        group.recount()


def test_member_that_leaves_proves_nothing() -> None:
    with Group(count, sources="orders", state="counts", witness=True, **LONG) as group:
        begin(group)
        group.leave("m1")
        group.advance(SOON_S)
        group.settle()
        assert running(group) == {"m2"}
        group.recount()
