"""Warm-up slots: the caps, and copies outside them for what a leaving member runs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.movements import WarmupSlots
from equipoise.events.tasks import TaskId
from tests.unit.assignors.build import member, problem, tasks

A, B = TaskId(0, 0), TaskId(0, 1)
DRAIN_MS = 10_000


def slots(*, lags: dict[str, Any], leaving: bool = True, deadline_ms: int | None = DRAIN_MS, **fields: Any) -> WarmupSlots:
    """m1 runs 0_0 and 0_1 and leaves by DRAIN_MS; m2 restores 10,000 records until then."""
    owner = attrs.evolve(member("m1", "0_0 0_1", leaving=leaving), drain_deadline_ms=deadline_ms)
    return WarmupSlots(IndexedProblem(problem(tasks("0_0 0_1 0_2"), owner, member("m2", lags=lags, speed=1_000, **fields))))


def test_copies_of_a_leaving_members_tasks_begin_together_while_all_are_ready_in_time():
    both = slots(lags={"0_0": 6_000, "0_1": 4_000})
    assert (both.take_apart(A, "m2"), both.take_apart(B, "m2")) == (True, True)
    one = slots(lags={"0_0": 6_000, "0_1": 4_001})
    assert (one.take_apart(A, "m2"), one.take_apart(B, "m2")) == (True, False)


def test_copy_that_did_not_fit_takes_no_time_from_others():
    some = slots(lags={"0_0": 10_001, "0_1": 10_000})
    assert (some.take_apart(A, "m2"), some.take_apart(B, "m2")) == (False, True)


@pytest.mark.parametrize(("standby", "lag", "fits"), [("0_2", 5_000, True), ("0_2", 5_001, False), ("7_0", 9_000, True)])
def test_copy_waits_for_what_its_member_restores_already(standby: str, lag: int, fits: bool):
    """A copy of a task that is gone is restored no more."""
    assert slots(lags={"0_0": 5_000, standby: lag}, standby=standby).take_apart(A, "m2") is fits


def test_copy_does_not_wait_for_one_that_is_ready():
    assert slots(lags={"0_0": 10_000, "0_2": 100}, standby="0_2").take_apart(A, "m2")


@pytest.mark.parametrize(("lag", "fits"), [(10_000, True), (10_001, False)])
def test_warm_up_that_has_begun_counts_once(lag: int, fits: bool):
    assert slots(lags={"0_0": lag}, warmup="0_0").take_apart(A, "m2") is fits


def test_copy_of_a_task_whose_owner_stays_is_within_the_caps():
    assert not slots(lags={"0_0": 1_000}, leaving=False).take_apart(A, "m2")


def test_copy_begins_whatever_its_time_when_the_drain_has_no_end():
    assert slots(lags={"0_0": 100_000}, deadline_ms=None).take_apart(A, "m2")


def test_slots_are_those_of_the_group_and_of_each_member():
    some = WarmupSlots(IndexedProblem(problem(tasks("0_0"), member("m1"), member("m2"), member("m3"), max_warmups=3, max_warmups_per_member=2)))
    assert [some.take(name) for name in ("m1", "m1", "m1")] == [True, True, False]
    assert some.left
    assert [some.take(name) for name in ("m2", "m3")] == [True, False]
    assert not some.left
    some.hold("m3")
    assert not some.left
