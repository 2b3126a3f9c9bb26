"""What each movement waits for: a hand-over at once, a copy that restores, a slot."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, IndexedProblem
from equipoise.assignors.common.movements import Movements, WarmupSlots, get_movements, keep_ready
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Movement, Task
from equipoise.events.tasks import Lag, TaskId, parse_task
from tests.unit.assignors.build import in_flight, member, numbered, problem, tasks

A = TaskId(0, 0)
BEHIND = 50_000
"""Records to restore; up to 100 a copy counts as caught up."""


def owners(text: str) -> dict[TaskId, str]:
    """``"0_0 m1, 0_1 m2"``."""
    return {parse_task(task): owner for task, owner in (each.split() for each in text.split(", ") if each)}


def slots_of(indexed: IndexedProblem, *, full: bool) -> WarmupSlots:
    """`full`: m1 has taken every slot of the group."""
    slots = WarmupSlots(indexed)
    while full and slots.left:
        slots.hold("m1")
    return slots


def moved(question: AssignmentProblem, now: str, target: str, *, full: bool = False, version_1: bool = False) -> Movements:
    indexed = IndexedProblem(question, behaviour=VERSION_1 if version_1 else NEWEST)
    return get_movements(indexed, owners(now), owners(target), slots_of(indexed, full=full))


def told(movements: Movements) -> list[str]:
    """``"0_0 warming balance"``, ``"0_0 waiting slot_full (balance)"`` with why it moves."""
    lines = []
    for each in movements.planned:
        reason = movements.reasons[each.task]
        because = "" if reason.because == reason.code else f" ({reason.because})"
        lines.append(f"{each.task} {each.state.value} {reason.code}{because}")
    return lines


def pairs(given: Any) -> list[str]:
    return sorted(f"{task} {name}" for task, name in given)


STATEFUL, STATELESS = tasks("0_0"), tasks("", "0_0")
OWNS = member("m1", "0_0")
LEAVES = member("m1", "0_0", leaving=True)
OVERDUE = member("m1", "0_0", leaving=True, drain_expired=True)
WARMING, REVOKING = (in_flight("0_0", "m1", "m2", state) for state in ("warming", "revoking"))


def m2(lag: int | None = None, **fields: Any) -> MemberSpec:
    return member("m2", lags={} if lag is None else {"0_0": lag}, **fields)


@pytest.mark.parametrize(
    ("given", "members", "flight", "settings", "line", "warms_up", "by_chance"),
    [
        # new movements
        (STATELESS, (OWNS, m2()), None, {}, "0_0 revoking balance", False, False),
        (STATEFUL, (OWNS, m2(100)), None, {}, "0_0 revoking balance", False, True),
        (STATEFUL, (OWNS, m2(101)), None, {}, "0_0 warming balance", True, False),
        (STATEFUL, (OWNS, m2()), None, {}, "0_0 warming balance", True, False),
        (STATEFUL, (OWNS, m2()), None, {"full": True}, "0_0 waiting slot_full (balance)", False, False),
        (STATEFUL, (OWNS, m2()), None, {"blocked": [("0_0", "m2")]}, "0_0 waiting blocked (balance)", False, False),
        (STATEFUL, (OWNS, m2(100)), None, {"blocked": [("0_0", "m2")]}, "0_0 revoking balance", False, True),
        (STATEFUL, (OWNS, m2(100, previously_owned="0_0")), None, {}, "0_0 revoking return_home", False, True),
        (STATEFUL, (LEAVES, m2()), None, {"full": True}, "0_0 warming leaving", True, False),
        (STATEFUL, (LEAVES, m2(100)), None, {"full": True}, "0_0 revoking leaving", False, True),
        (STATEFUL, (OVERDUE, m2()), None, {"full": True}, "0_0 revoking overdue", False, True),
        (STATEFUL, (attrs.evolve(OWNS, drain_expired=True), m2()), None, {}, "0_0 warming balance", True, False),
        (STATEFUL, (attrs.evolve(OWNS, crash_looping=True), m2()), None, {}, "0_0 warming crash_loop", True, False),
        # to a standby
        (STATEFUL, (OWNS, m2(BEHIND, standby="0_0")), None, {"num_standbys": 1, "full": True}, "0_0 warming balance", False, False),
        (STATEFUL, (OWNS, m2(100, standby="0_0")), None, {"num_standbys": 1}, "0_0 revoking balance", False, False),
        (STATEFUL, (OWNS, m2(BEHIND, standby="0_0")), None, {"full": True}, "0_0 waiting slot_full (balance)", False, False),
        (STATEFUL, (OWNS, m2()), None, {"num_standbys": 1, "full": True}, "0_0 warming balance", False, False),
        (STATEFUL, (OWNS, m2(), member("m3")), None, {"num_standbys": 1, "full": True}, "0_0 waiting slot_full (balance)", False, False),
        (STATELESS, (OWNS, m2(standby="0_0")), None, {"num_standbys": 1}, "0_0 revoking balance", False, False),
        # a task without an owner, which m1 is granted in this plan
        (STATEFUL, (member("m1"), m2(100)), None, {}, "0_0 waiting balance", False, False),
        (STATEFUL, (member("m1"), m2()), None, {}, "0_0 warming balance", True, False),
        # movements in flight
        (STATEFUL, (OWNS, m2(BEHIND, warmup="0_0")), WARMING, {"full": True}, "0_0 warming warming (balance)", True, False),
        (STATEFUL, (OWNS, m2(BEHIND)), WARMING, {}, "0_0 warming warming (balance)", True, False),
        (STATEFUL, (OWNS, m2(BEHIND)), WARMING, {"full": True}, "0_0 waiting slot_full (balance)", False, False),
        (STATEFUL, (OWNS, m2(100, warmup="0_0")), WARMING, {"full": True}, "0_0 revoking ready (balance)", True, False),
        (STATEFUL, (OWNS, m2(100)), WARMING, {"full": True}, "0_0 revoking ready (balance)", False, True),
        (STATEFUL, (OWNS, m2(5_000, speed=10_000)), WARMING, {"acceptable_recovery_ms": 500}, "0_0 revoking ready_in_time (balance)", False, True),
        (STATEFUL, (OWNS, m2(100, standby="0_0")), WARMING, {"num_standbys": 1}, "0_0 revoking ready (balance)", False, False),
        (STATEFUL, (OWNS, m2(BEHIND, standby="0_0")), WARMING, {"num_standbys": 1, "full": True}, "0_0 warming warming (balance)", False, False),
        (STATEFUL, (OVERDUE, m2(BEHIND, warmup="0_0")), WARMING, {}, "0_0 revoking overdue", True, False),
        (STATEFUL, (OWNS, m2(BEHIND, warmup="0_0")), REVOKING, {}, "0_0 revoking carried (balance)", True, False),
        (STATEFUL, (OWNS, m2(BEHIND)), REVOKING, {}, "0_0 revoking carried (balance)", False, True),
        (STATELESS, (OWNS, m2()), REVOKING, {}, "0_0 revoking carried (balance)", False, False),
        (STATEFUL, (OWNS, m2()), in_flight("0_0", "m1", "m3", "warming"), {}, "0_0 warming balance", True, False),
    ],
)
def test_movement_has_a_state_a_reason_and_a_copy(
    given: tuple[Task, ...],
    members: tuple[MemberSpec, ...],
    flight: Movement | None,
    settings: dict[str, Any],
    line: str,
    warms_up: bool,
    by_chance: bool,
):
    others = [member("m3")] if flight is not None and flight.destination == "m3" else []
    full = settings.get("full", False)
    rest = {name: value for name, value in settings.items() if name != "full"}
    question = problem(given, *members, *others, in_flight=[] if flight is None else [flight], **rest)
    found = moved(question, "0_0 m1", "0_0 m2", full=full)
    assert told(found) == [line]
    assert [(each.source, each.destination) for each in found.planned] == [("m1", "m2")]
    assert (pairs(found.warmups), pairs(found.ready_by_chance)) == (["0_0 m2"] * warms_up, ["0_0 m2"] * by_chance)


def test_movement_names_what_its_destination_is_behind():
    def lag(question: AssignmentProblem) -> int | None:
        return moved(question, "0_0 m1", "0_0 m2").reasons[A].lag_records

    assert lag(problem(STATEFUL, OWNS, m2(BEHIND))) == BEHIND
    assert lag(problem(STATEFUL, OWNS, m2())) == 150_000
    assert lag(problem(STATELESS, OWNS, m2())) is None


def test_task_that_stays_has_no_movement():
    question = problem(tasks("0_0 0_1"), member("m1", "0_0"), m2())
    for target in ("0_0 m1", ""):
        found = moved(question, "0_0 m1", target)
        assert (found.planned, found.reasons, found.standby_destinations) == ((), {}, {})


def test_standby_destinations_are_named():
    question = problem(STATEFUL, OWNS, m2(standby="0_0"), num_standbys=1)
    assert moved(question, "0_0 m1", "0_0 m2").standby_destinations == {A: "m2"}


THREE = tasks("0_0 0_1 0_2")


def three(**settings: Any) -> AssignmentProblem:
    """m1 runs three tasks; m2 is nearest to 0_1 and as far from the two others."""
    return problem(THREE, member("m1", "0_0 0_1 0_2"), member("m2", lags={"0_0": 9_000, "0_1": 5_000, "0_2": 9_000}), **settings)


@pytest.mark.parametrize(
    ("most", "lines"),
    [
        (1, ["0_1 warming balance", "0_0 waiting slot_full (balance)", "0_2 waiting slot_full (balance)"]),
        (2, ["0_1 warming balance", "0_0 warming balance", "0_2 waiting slot_full (balance)"]),
    ],
)
@pytest.mark.parametrize("cap", ["max_warmups", "max_warmups_per_member"])
def test_slots_go_to_the_soonest_ready_and_then_by_task(most: int, lines: list[str], cap: str):
    every = ", ".join(f"0_{partition} m{{}}" for partition in range(3))
    assert told(moved(three(**{cap: most}), every.format(1, 1, 1), every.format(2, 2, 2))) == lines


def test_movements_are_in_the_order_of_their_state_then_of_what_is_soonest_ready():
    lags: dict[str, Lag] = {"0_0": 9_000, "0_1": 8_000, "0_2": 100, "0_3": 7_000, "0_4": 100}
    question = problem(tasks(numbered(5)), member("m1", numbered(5)), member("m2", lags=lags), max_warmups=1)
    every = ", ".join(f"0_{partition} m{{0}}" for partition in range(5))
    assert [line.rpartition(" ")[0] for line in told(moved(question, every.format(1), every.format(2)))] == [
        "0_2 revoking",
        "0_4 revoking",
        "0_3 warming",
        "0_1 waiting slot_full",
        "0_0 waiting slot_full",
    ]


@pytest.mark.parametrize(("state", "lag"), [("warming", BEHIND), ("warming", 50), ("revoking", BEHIND)])
def test_movement_in_flight_keeps_its_slot_against_what_is_sooner_ready(state: str, lag: int):
    given = tasks("0_0 0_1")
    destination = member("m2", warmup="0_0", lags={"0_0": lag, "0_1": 101})
    question = problem(given, member("m1", "0_0 0_1"), destination, in_flight=[in_flight("0_0", "m1", "m2", state)], max_warmups=1)
    assert told(moved(question, "0_0 m1, 0_1 m1", "0_0 m2, 0_1 m2"))[-1] == "0_1 waiting slot_full (balance)"


def test_movements_in_flight_take_new_slots_in_the_order_of_what_is_soonest_ready():
    given = tasks("0_0 0_1 0_2")
    flying = [in_flight(task, "m1", "m2", "warming") for task in ("0_0", "0_1", "0_2")]
    destination = member("m2", lags={"0_0": 9_000, "0_1": 5_000, "0_2": 9_000})
    question = problem(given, member("m1", "0_0 0_1 0_2"), destination, in_flight=flying, max_warmups=2)
    assert [line.split()[:2] for line in told(moved(question, "0_0 m1, 0_1 m1, 0_2 m1", "0_0 m2, 0_1 m2, 0_2 m2"))] == [
        ["0_1", "warming"],
        ["0_0", "warming"],
        ["0_2", "waiting"],
    ]


@pytest.mark.parametrize(("version_1", "line"), [(False, "0_0 warming leaving"), (True, "0_0 waiting slot_full (leaving)")])
def test_copy_of_a_leaving_members_task_takes_a_slot_in_version_1_alone(version_1: bool, line: str):
    assert told(moved(problem(STATEFUL, LEAVES, m2()), "0_0 m1", "0_0 m2", full=True, version_1=version_1)) == [line]


@pytest.mark.parametrize("version_1", [False, True])
def test_warm_up_above_a_lowered_cap_goes_on_but_in_version_1(version_1: bool):
    question = problem(STATEFUL, OWNS, m2(BEHIND, warmup="0_0"), in_flight=[WARMING])
    assert told(moved(question, "0_0 m1", "0_0 m2", full=True, version_1=version_1)) == [
        "0_0 waiting slot_full (balance)" if version_1 else "0_0 warming warming (balance)"
    ]


@pytest.mark.parametrize("cap", ["max_warmups", "max_warmups_per_member"])
@pytest.mark.parametrize(
    ("most", "first_owner", "second_owner", "warmup", "version_1", "states"),
    [
        (1, "m1", "m1", "0_1", False, "waiting warming"),
        (2, "m1", "m1", "0_1", False, "warming warming"),
        (1, "m1", "m3", "0_1", False, "warming warming"),  # what m3 leaves takes no slot
        (1, "m3", "m1", "0_1", False, "warming warming"),
        (1, "m1", "m1", "0_1 0_2", False, "warming warming"),  # instead of the copy of 0_2, which ends: two, as before the cap was lowered
        (1, "m1", "m1", "0_1", True, "warming waiting"),
    ],
)
def test_movement_in_flight_without_a_copy_takes_no_slot_of_a_copy_that_is_kept(
    cap: str, most: int, first_owner: str, second_owner: str, warmup: str, version_1: bool, states: str
):
    """0_0, which has none, is nearer to ready than 0_1."""
    of = {name: [task for task, owner in (("0_0", first_owner), ("0_1", second_owner), ("0_2", "m1")) if owner == name] for name in ("m1", "m3")}
    caps: dict[str, Any] = {"max_warmups": 9, "max_warmups_per_member": 9, cap: most}
    question = problem(
        tasks("0_0 0_1 0_2"),
        member("m1", " ".join(of["m1"])),
        member("m2", warmup=warmup, lags={"0_0": 5_000, "0_1": BEHIND}),
        member("m3", " ".join(of["m3"]), leaving=True),
        in_flight=[in_flight("0_0", first_owner, "m2", "warming"), in_flight("0_1", second_owner, "m2", "warming")],
        **caps,
    )
    planned = moved(question, f"0_0 {first_owner}, 0_1 {second_owner}, 0_2 m1", "0_0 m2, 0_1 m2, 0_2 m1", version_1=version_1).planned
    assert [each.state.value for each in sorted(planned, key=lambda each: each.task)] == states.split()


def test_copy_for_a_leaving_member_holds_no_slot():
    """Another movement has the only one."""
    leaves = attrs.evolve(LEAVES, lags={})
    question = problem(
        tasks("0_0 0_1"), leaves, m2(BEHIND, warmup="0_0"), member("m3", "0_1"), in_flight=[WARMING], max_warmups=1, max_warmups_per_member=1
    )
    assert told(moved(question, "0_0 m1, 0_1 m3", "0_0 m2, 0_1 m2")) == ["0_0 warming warming (leaving)", "0_1 warming balance"]


@pytest.mark.parametrize(("most", "kept"), [(1, ["0_0 m2"]), (2, ["0_0 m2", "0_1 m2"])])
@pytest.mark.parametrize("cap", ["max_warmups", "max_warmups_per_member"])
def test_copy_that_was_not_assigned_is_kept_until_the_grant_while_slots_are_left(most: int, kept: list[str], cap: str):
    settings: dict[str, Any] = {cap: most}
    question = problem(tasks("0_0 0_1"), member("m1", "0_0 0_1"), member("m2", lags={"0_0": 5, "0_1": 5}), **settings)
    indexed = IndexedProblem(question)
    slots = WarmupSlots(indexed)
    found = get_movements(indexed, owners("0_0 m1, 0_1 m1"), owners("0_0 m2, 0_1 m2"), slots)
    assert pairs(keep_ready(found, slots)) == kept


def test_copy_of_a_leaving_members_task_is_kept_without_a_slot():
    for owner, kept in ((LEAVES, ["0_0 m2"]), (OWNS, [])):
        indexed = IndexedProblem(problem(STATEFUL, owner, m2(5)))
        slots = slots_of(indexed, full=True)
        assert pairs(keep_ready(get_movements(indexed, owners("0_0 m1"), owners("0_0 m2"), slots), slots)) == kept


def test_movements_in_flight_are_in_the_same_order_as_new_ones():
    lags: dict[str, Lag] = {"0_0": 9_000, "0_1": 100, "0_2": 500}
    flying = [in_flight("0_0", "m1", "m2", "warming")]
    question = problem(tasks("0_0 0_1 0_2"), member("m1", "0_0 0_1 0_2"), member("m2", warmup="0_0", lags=lags), in_flight=flying)
    found = moved(question, "0_0 m1, 0_1 m1, 0_2 m1", "0_0 m2, 0_1 m2, 0_2 m2")
    assert told(found) == ["0_1 revoking balance", "0_2 warming balance", "0_0 warming warming (balance)"]


def test_task_that_is_granted_in_this_plan_hides_no_movement():
    question = problem(tasks("0_0 0_1"), member("m1", "0_1"), member("m2", lags={"0_0": 5, "0_1": 5}))
    assert told(moved(question, "0_0 m1, 0_1 m1", "0_0 m2, 0_1 m2")) == ["0_1 revoking balance", "0_0 waiting balance"]
