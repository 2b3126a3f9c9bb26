"""Rounds that another leader asks for (docs/protocol.md#d12)."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.assignors import registry
from equipoise.assignors.common.carrier import KAFKA_STREAMS, Carrier
from equipoise.events.codec import make_record
from equipoise.events.decisions import EventRejected, ProposedMember, RoundPlanned
from equipoise.events.facts import (
    GroupConfigured,
    LagReported,
    Load,
    LogOpened,
    MemberJoined,
    PartitionsObserved,
    PresentMember,
    RoundAsked,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine.machine import GroupMachine

TASKS = tuple(TaskId(0, number) for number in range(4))
RECORDS = 50_000
RUNS = LagSentinel.ACTIVE


class Application:
    """A group that something else carries out. Each round begins with what its members report."""

    def __init__(self, carrier: Carrier = KAFKA_STREAMS, **settings: Any) -> None:
        self.carrier = carrier
        self.machine = GroupMachine()
        self.now_ms = 0
        self.numbers: dict[str, int] = {}
        self._offset = 0
        assignor = registry.latest("high_availability")
        wide = {"acceptable_recovery_lag": 100, "max_warmups": 20, "max_warmups_per_member": 20, "max_step_ms": 3_600_000, **settings}
        self.say("", LogOpened(log_id="log", partitions=1))
        self.say(
            "g",
            GroupConfigured(
                assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, led_by="external", knobs=GroupSettings(**wide)
            ),
        )
        topology = Subtopology(subtopology=0, partitions=len(TASKS), stateful=True, source_topics=("in",), changelog_topics=("log",))
        self.say("g", TopologyDeclared(epoch=1, subtopologies=(topology,)))
        self.say("g", PartitionsObserved(end_offsets={"log": {task.partition: RECORDS for task in TASKS}}))

    def say(self, group: str, fact: Any) -> list[Any]:
        decisions = self.machine.step(make_record(group, self._offset, self.now_ms, fact))
        self._offset += 1
        return [each.decision for each in decisions]

    def join(self, name: str, incarnation: int = 1) -> None:
        self.numbers[name] = 0
        joined = MemberJoined(
            member_id=name,
            incarnation=incarnation,
            session_timeout_ms=86_400_000,
            lease_margin_ms=3_600_000,
            topology_epoch=1,
            join_nonce=f"{name}.{incarnation}",
        )
        assert self.say("g", joined) == []

    def report(
        self, name: str, held: tuple[TaskId, ...] = (), copies: dict[TaskId, Lag] | None = None, *, restores_per_s: float = 0, incarnation: int = 1
    ) -> None:
        self.numbers[name] += 1
        lags: dict[TaskId, Lag] = {**dict.fromkeys(held, RUNS), **(copies or {})}
        report = LagReported(
            member_id=name,
            incarnation=incarnation,
            number=self.numbers[name],
            assignment_epoch=0,
            held=held,
            lags=lags,
            load=Load(restored_records_per_s=restores_per_s) if restores_per_s else None,
        )
        assert self.say("g", report) == []

    def ask(self, round_id: str, *names: str, incarnation: int = 1, incarnations: dict[str, int] | None = None, due_by_copies: bool = True) -> Any:
        members = tuple(PresentMember(member_id=name, incarnation=(incarnations or {}).get(name, incarnation)) for name in names)
        asked = RoundAsked(round_id=round_id, members=members, carrier=self.carrier.name, due_by_copies=due_by_copies)
        answers = [each for each in self.say("g", asked) if isinstance(each, RoundPlanned | EventRejected)]
        assert len(answers) == 1
        return answers[0]


def member(planned: RoundPlanned, name: str) -> ProposedMember:
    return next(each for each in planned.members if each.member_id == name)


def joined_by_second(*, due_by_copies: bool = True, **settings: Any) -> tuple[Application, RoundPlanned]:
    """m1 runs everything, and m2 has joined."""
    application = Application(**settings)
    application.join("m1")
    application.report("m1")
    first = application.ask("r1", "m1")
    assert member(first, "m1").active == TASKS
    application.now_ms += 60_000
    application.join("m2")
    application.report("m1", TASKS)
    application.report("m2")
    return application, application.ask("r2", "m1", "m2", due_by_copies=due_by_copies)


def test_round_of_one_id_is_answered_once() -> None:
    application, second = joined_by_second()
    again = application.ask("r2", "m1", "m2")
    assert isinstance(again, EventRejected)
    assert again.code == "round_repeated"
    assert application.machine.state.generation == second.generation


def test_round_names_members_that_are_there() -> None:
    application, second = joined_by_second()
    unknown, stale = application.ask("r3", "m1", "m9"), application.ask("r4", "m1", "m2", incarnation=7)
    assert (unknown.code, stale.code, stale.numbers) == ("unknown_member", "stale_incarnation", (7, 1))
    assert application.machine.state.members.keys() == {"m1", "m2"}
    assert application.machine.state.generation == second.generation


def test_member_that_a_round_does_not_name_is_gone() -> None:
    application, _ = joined_by_second()
    application.report("m2")
    planned = application.ask("r3", "m2")
    assert member(planned, "m2").active == TASKS
    assert application.machine.state.members.keys() == {"m2"}
    assert not application.machine.state.fenced, "its leader knows that it is gone"
    assert {(move.task, move.source, move.destination) for move in planned.moves} >= {(task, "m1", "m2") for task in TASKS}


def test_copies_begin_before_anything_moves_and_an_unmeasured_member_is_looked_at_soon() -> None:
    _, second = joined_by_second()
    assert member(second, "m1").active == TASKS
    assert len(member(second, "m2").warmup) == 2
    assert second.follow_up_ms == KAFKA_STREAMS.look_ms


@pytest.mark.parametrize("due_by_copies", [True, False])
def test_next_round_where_a_standby_takes_over_is_due_when_that_is_ready(due_by_copies: bool) -> None:
    application, second = joined_by_second(num_standbys=1, due_by_copies=due_by_copies)
    assert member(second, "m2").warmup == ()
    assert set(application.machine.state.in_flight) <= set(member(second, "m2").standby)
    assert second.follow_up_ms == (KAFKA_STREAMS.look_ms if due_by_copies else 600_000), "a log of before replays as it was"


@pytest.mark.parametrize(("due_by_copies", "due_ms"), [(True, KAFKA_STREAMS.look_ms), (False, 33_334)])
def test_next_round_with_copies_within_the_limit_is_due_soon_whatever_the_rate(due_by_copies: bool, due_ms: int) -> None:
    application, second = joined_by_second(acceptable_recovery_lag=RECORDS)
    application.report("m1", TASKS)
    application.report("m2", restores_per_s=3_000)  # of a copy that had little to restore
    planned = application.ask("r3", "m1", "m2", due_by_copies=due_by_copies)
    assert member(planned, "m2").warmup == member(second, "m2").warmup
    assert planned.follow_up_ms == due_ms


@pytest.mark.parametrize("num_standbys", [0, 1])
def test_copy_that_is_never_reported_is_asked_for_ever_more_seldom(num_standbys: int) -> None:
    application, planned = joined_by_second(acceptable_recovery_lag=RECORDS, num_standbys=num_standbys)
    waits_ms = []
    for number in range(12):
        waits_ms.append(planned.follow_up_ms)
        application.now_ms += planned.follow_up_ms or 0
        application.report("m1", TASKS)
        application.report("m2")
        planned = application.ask(f"n{number}", "m1", "m2")
    assert waits_ms == [5_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000, 600_000, 600_000]
    moving = sorted(application.machine.state.in_flight)
    application.report("m2", copies=dict.fromkeys(moving, 20))
    goes = application.ask("goes", "m1", "m2")
    assert member(goes, "m2").active == tuple(moving)


def test_copy_within_the_limit_does_not_wait_for_a_large_one() -> None:
    application = Application(acceptable_recovery_lag=100)
    application.join("m1")
    application.report("m1")
    application.ask("r1", "m1")
    application.say("g", PartitionsObserved(end_offsets={"log": {TASKS[1].partition: 1, TASKS[3].partition: 900_000}}))
    application.join("m2")
    application.report("m1", TASKS)
    application.report("m2", restores_per_s=10)
    planned = application.ask("r2", "m1", "m2")
    assert len(member(planned, "m2").warmup) == 2
    assert planned.follow_up_ms == KAFKA_STREAMS.look_ms


def test_ready_copies_wait_for_those_that_will_be_ready_soon_and_go_over_together() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.now_ms += 5_000
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20_000}, restores_per_s=5_000)
    waits = application.ask("r3", "m1", "m2")
    assert member(waits, "m1").active == TASKS
    assert waits.follow_up_ms == 4_000  # 20,000 records at 5,000 a second
    application.now_ms += 4_000
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20})
    goes = application.ask("r4", "m1", "m2")
    assert set(member(goes, "m2").active) == {one, other}
    assert set(member(goes, "m1").active) == set(TASKS) - {one, other}
    assert goes.follow_up_ms is None  # who stops a task begins the next round


def test_ready_copies_wait_no_longer_than_the_carriers_patience() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    for number in range(2):
        application.now_ms += KAFKA_STREAMS.patience_ms
        application.report("m1", TASKS)
        application.report("m2", copies={one: 20, other: 20_000}, restores_per_s=5_000)
        planned = application.ask(f"w{number}", "m1", "m2")
    assert member(planned, "m2").active == (one,)
    assert member(planned, "m2").warmup == (other,)


def test_ready_copies_do_not_wait_for_those_that_take_long() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.now_ms += 5_000
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 40_000}, restores_per_s=100)
    assert member(application.ask("r3", "m1", "m2"), "m2").active == (one,)


def test_nothing_else_is_handed_over_while_an_owner_does_not_run_its_task_yet() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20})
    application.ask("r3", "m1", "m2")
    left = tuple(task for task in TASKS if task not in (one, other))
    application.report("m1", left)  # has stopped both, and m2 has not begun
    application.report("m2", copies={one: 20, other: 20})
    application.join("m3")
    application.report("m3", copies=dict.fromkeys(left, 0))
    planned = application.ask("r4", "m1", "m2", "m3")
    assert set(member(planned, "m2").active) == {one, other}
    assert member(planned, "m3").active == ()
    application.report("m1", left)
    application.report("m2", (one, other))
    application.report("m3", copies=dict.fromkeys(left, 0))
    assert len(member(application.ask("r5", "m1", "m2", "m3"), "m3").active) == 1


def test_task_that_a_member_runs_is_its_own_whatever_was_decided() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20})
    application.ask("r3", "m1", "m2")
    application.report("m1", TASKS)  # the answer was lost: something else decided that nothing moves
    application.report("m2", copies={one: 50_000, other: 50_000})
    planned = application.ask("r4", "m1", "m2")
    assert member(planned, "m1").active == TASKS
    assert set(member(planned, "m2").warmup) == {one, other}


def test_task_whose_new_owner_lost_its_copy_is_free() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20})
    application.ask("r3", "m1", "m2")
    application.report("m1", tuple(task for task in TASKS if task not in (one, other)), {one: 0, other: 0})
    application.report("m2")  # its disk is gone
    planned = application.ask("r4", "m1", "m2")
    assert set(member(planned, "m1").active) == set(TASKS)
    assert set(member(planned, "m2").warmup) == {one, other}


def test_former_owner_keeps_a_standby_that_no_other_member_has() -> None:
    application, second = joined_by_second(num_standbys=1)
    copies = {*member(second, "m2").warmup, *member(second, "m2").standby}
    application.report("m1", TASKS)
    application.report("m2", copies=dict.fromkeys(copies, 0))
    planned = application.ask("r3", "m1", "m2")
    gone_over = set(member(planned, "m2").active)
    assert gone_over
    assert gone_over <= set(member(planned, "m1").standby)


def test_movement_of_a_task_that_is_gone_is_cancelled() -> None:
    application, second = joined_by_second()
    assert TASKS[-1] in member(second, "m2").warmup
    fewer = Subtopology(subtopology=0, partitions=len(TASKS) - 1, stateful=True, source_topics=("in",), changelog_topics=("log",))
    application.say("g", TopologyDeclared(epoch=2, subtopologies=(fewer,)))
    application.report("m1", TASKS[:-1])
    application.report("m2")
    planned = application.ask("r3", "m1", "m2")
    assert member(planned, "m1").active == TASKS[:-1]
    assert TASKS[-1] not in application.machine.state.in_flight


def test_movement_from_a_member_that_does_not_run_the_task_is_cancelled() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.join("m3")
    application.report("m1", tuple(task for task in TASKS if task != one))
    application.report("m2", copies={one: 40_000, other: 40_000})
    application.report("m3", (one,))  # another assignor gave it the task
    planned = application.ask("r3", "m1", "m2", "m3")
    assert member(planned, "m3").active == (one,)
    assert ("cancelled", one) in {(move.state, move.task) for move in planned.moves}


def test_movements_beyond_the_slots_wait() -> None:
    application, second = joined_by_second(max_warmups=1, max_warmups_per_member=1)
    assert len(member(second, "m2").warmup) == 1
    assert application.machine.state.waiting == 1


def test_ready_copy_that_waits_with_a_former_owner_stays_a_warm_up() -> None:
    application, second = joined_by_second()
    one, other = member(second, "m2").warmup
    application.report("m1", TASKS)
    application.report("m2", copies={one: 20, other: 20_000}, restores_per_s=5_000)
    waits = application.ask("r3", "m1", "m2")
    assert set(member(waits, "m2").warmup) == {one, other}
    assert set(application.machine.state.in_flight) == {one, other}
