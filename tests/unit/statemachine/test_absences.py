"""Members that are gone from a group of Faust, and expected back (docs/protocol.md#d12)."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.assignors.common.carrier import FAUST
from equipoise.events.decisions import RoundPlanned
from equipoise.events.tasks import Lag, TaskId
from tests.unit.statemachine.test_rounds import RECORDS, Application, member

A, B, C, D = (TaskId(0, number) for number in range(4))


def settled() -> Application:
    """m1 runs A and D, m2 B, m3 C; each task has a standby."""
    application = Application(FAUST, num_standbys=1)
    for name, held, copies in (("m1", (A, D), {C: 0}), ("m2", (B,), {A: 0, D: 0}), ("m3", (C,), {B: 0})):
        application.join(name)
        application.report(name, held, dict[TaskId, Lag](copies))
    planned = application.ask("r1", "m1", "m2", "m3")
    assert active(planned) == {"m1": (A, D), "m2": (B,), "m3": (C,)}
    return application


def active(planned: RoundPlanned) -> dict[str, tuple[TaskId, ...]]:
    return {each.member_id: each.active for each in planned.members}


def copies(planned: RoundPlanned) -> dict[str, set[TaskId]]:
    return {each.member_id: {*each.standby, *each.warmup} for each in planned.members}


def without_third(application: Application, **again: Any) -> RoundPlanned:
    """m3 is gone, and what the others report is as before."""
    application.now_ms += 10_000
    application.report("m1", (A, D), {C: 0})
    application.report("m2", (B,), {A: 0, D: 0})
    planned = application.ask("r2", "m1", "m2")
    assert isinstance(planned, RoundPlanned)
    return planned


def test_tasks_of_an_absent_member_run_on_their_copies_and_no_copy_is_begun() -> None:
    planned = without_third(settled())
    assert active(planned) == {"m1": (A, C, D), "m2": (B,)}
    assert copies(planned) == {"m1": set(), "m2": {A, D}}
    assert planned.follow_up_ms == FAUST.absence_ms


def test_member_that_returns_has_what_it_had() -> None:
    application = settled()
    without_third(application)
    application.now_ms += 20_000
    application.join("m3", 2)
    application.report("m1", (A, C, D))
    application.report("m2", (B,), {A: 0, D: 0})
    application.report("m3", (), {C: 40, B: 30}, incarnation=2)
    planned = application.ask("r3", "m1", "m2", "m3", incarnations={"m3": 2})
    assert active(planned)["m3"] == (C,)
    assert B in copies(planned)["m3"]
    assert C in copies(planned)["m1"], "the copy of the one that stood in for it is kept"
    assert planned.follow_up_ms is None, "nobody is expected"


def test_copies_are_begun_when_a_member_is_expected_no_more() -> None:
    application = settled()
    without_third(application)
    application.now_ms += FAUST.absence_ms
    application.report("m1", (A, C, D))
    application.report("m2", (B,), {A: 0, D: 0})
    planned = application.ask("r3", "m1", "m2")
    assert copies(planned)["m1"] | copies(planned)["m2"] == {A, B, C, D}


def test_member_with_nothing_stands_for_the_absent_one() -> None:
    application = settled()
    without_third(application)
    application.now_ms += 5_000
    application.join("m4")
    application.report("m1", (A, C, D))
    application.report("m2", (B,), {A: 0, D: 0})
    application.report("m4")
    planned = application.ask("r3", "m1", "m2", "m4")
    assert copies(planned)["m4"], "it restores at once"
    assert planned.follow_up_ms != FAUST.absence_ms


def test_second_absence_lasts_as_long_from_then_on() -> None:
    application = settled()
    without_third(application)
    application.now_ms += 40_000
    application.report("m1", (A, C, D))
    planned = application.ask("r3", "m1")
    assert active(planned) == {"m1": (A, B, C, D)}
    assert planned.follow_up_ms == FAUST.absence_ms
    application.now_ms += 40_000
    application.report("m1", (A, B, C, D))
    again = application.ask("r4", "m1")
    assert again.follow_up_ms == FAUST.absence_ms - 40_000


def test_copies_that_are_being_restored_go_on_while_a_member_is_absent() -> None:
    application = settled()
    application.now_ms += 1_000
    application.join("m4")
    application.report("m1", (A, D), {C: 0})
    application.report("m2", (B,), {A: 0, D: 0})
    application.report("m3", (C,), {B: 0})
    application.report("m4")
    begun = copies(application.ask("r2", "m1", "m2", "m3", "m4"))["m4"]
    assert begun
    application.now_ms += 1_000
    application.report("m1", (A, D), {C: 0})
    application.report("m2", (B,), {A: 0, D: 0})
    application.report("m4", (), dict.fromkeys(begun, RECORDS // 2))
    planned = application.ask("r3", "m1", "m2", "m4")
    assert set() < copies(planned)["m4"] <= begun


@pytest.mark.parametrize(("lag", "is_ready"), [(RECORDS // 2, False), (0, True)])
def test_next_round_is_the_members_to_ask_for(lag: int, is_ready: bool) -> None:
    """Those that restore say when they are ready, so the leader looks only after long."""
    application = Application(FAUST, probing_interval_ms=600_000)
    application.join("m1")
    application.report("m1")
    application.ask("r1", "m1")
    application.now_ms += 1_000
    application.join("m2")
    application.report("m1", (A, B, C, D))
    application.report("m2")
    first = application.ask("r2", "m1", "m2")
    assert first.follow_up_ms == 600_000
    application.now_ms += 30_000
    application.report("m1", (A, B, C, D))
    application.report("m2", (), dict.fromkeys(copies(first)["m2"], lag))
    planned = application.ask("r3", "m1", "m2")
    assert bool(member(planned, "m2").active) is is_ready
    assert planned.follow_up_ms == (None if is_ready else 600_000)
