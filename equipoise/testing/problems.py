"""Hypothesis strategies for small problems that use every field of `AssignmentProblem`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Partition, Revocations, Task, TaskLoad
from equipoise.events.facts import READINESS
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

ACCEPTABLE = 100
"""Default acceptable_recovery_lag of the problems; `LAGS` are on both sides of it."""
LAGS: st.SearchStrategy[Lag] = st.sampled_from([0, 10, 99, 100, 101, 700, 4000, 99_999, LagSentinel.UNKNOWN, LagSentinel.ACTIVE])
OWNERS_LAGS: st.SearchStrategy[Lag] = st.sampled_from([LagSentinel.ACTIVE, LagSentinel.ACTIVE, 0, 3000])
LOADS: st.SearchStrategy[TaskLoad | None] = st.none() | st.builds(
    TaskLoad,
    cpu=st.sampled_from([0, 1, 100_000, 100_000, 900_000]),
    memory=st.sampled_from([0, 250_000]),
    records_per_s=st.sampled_from([0, 10, 300]),
)
RACKS = ("a", "b", "c")


def group_settings(others: Mapping[str, st.SearchStrategy[Any]] | None = None) -> st.SearchStrategy[GroupSettings]:
    """Settings that every assignor takes; `others`: further ones by name, or other strategies for
    these.
    """
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "acceptable_recovery_lag": st.just(ACCEPTABLE),
        "acceptable_recovery_ms": st.sampled_from([0, 0, 10_000, 100_000]),
        "balance_factor": st.sampled_from([1, 1, 2, 3]),
        "num_standbys": st.integers(0, 2),
        "max_warmups": st.integers(1, 3),
        "max_warmups_per_member": st.integers(1, 3),
    }
    return st.builds(GroupSettings, **{**drawn, **(others or {})})


@st.composite
def tasks(draw: st.DrawFn, most: int) -> tuple[Task, ...]:
    """Up to `most` tasks of one to three sub-topologies, stateful and stateless. The racks of all
    source partitions are known, or of none.
    """
    found = []
    racks = draw(st.booleans())
    for subtopology in range(draw(st.integers(1, 3))):
        has_state = draw(st.sampled_from([True, True, False]))
        for partition in range(draw(st.integers(0, max(1, most // 2)))):
            end_offset = draw(st.sampled_from([0, 50, 1000, 5000])) if has_state else 0
            at = tuple(sorted(draw(st.sets(st.sampled_from(RACKS), min_size=1, max_size=2)))) if racks else ()
            source = (Partition(topic=f"in-{subtopology}", partition=partition, racks=at),)
            changelog = (Partition(topic=f"log-{subtopology}", partition=partition, racks=at),) if has_state else ()
            found.append(
                Task(
                    id=TaskId(subtopology, partition),
                    stateful=has_state,
                    end_offset=end_offset,
                    source=source,
                    changelog=changelog,
                    written_records_per_s=draw(st.sampled_from([0, 0, 3])) if has_state else 0,
                    load=draw(LOADS),
                )
            )
    return tuple(found[:most])


@st.composite
def _member(draw: st.DrawFn, every: tuple[Task, ...], name: str, owned: list[Task], *, simple: bool) -> MemberSpec:
    lags: dict[TaskId, Lag] = {}
    standby, warmup, ready = [], [], []
    kept = [task for task in every if task.stateful and task not in owned]
    for task in owned:
        if task.stateful:
            lags[task.id] = draw(OWNERS_LAGS)
    for task in kept:
        match draw(st.sampled_from(["none", "none", "none", "left over", "standby", "warmup"])):
            case "left over":
                lags[task.id] = draw(LAGS)
            case "standby":
                standby.append(task.id)
                lags[task.id] = draw(LAGS)
            case "warmup":
                warmup.append(task.id)
                if draw(st.booleans()):
                    lags[task.id] = draw(LAGS)
        if draw(st.integers(0, 30)) == 0:
            ready.append(task.id)
    leaving = not simple and draw(st.integers(0, 4)) == 0
    subtopologies = sorted({task.id.subtopology for task in every})
    knows_all = simple or not subtopologies or draw(st.integers(0, 5)) > 0
    return MemberSpec(
        id=name,
        capacity=draw(st.sampled_from([1, 1, 1, 2, 3])),
        rack=draw(st.sampled_from([None, *RACKS])),
        leaving=leaving,
        drain_expired=leaving and draw(st.booleans()),
        crash_looping=not simple and draw(st.integers(0, 5)) == 0,
        subtopologies=None if knows_all else draw(st.dictionaries(st.sampled_from(subtopologies), st.sampled_from((1, 2, 3, 100)))),
        active=tuple(task.id for task in owned),
        standby=tuple(standby),
        warmup=tuple(warmup),
        lags=lags,
        ready=frozenset(ready),
        readiness="word_or_lag" if simple else draw(st.sampled_from(READINESS)),
        ready_lag_records=None if simple else draw(st.sampled_from([None, None, 0, 700])),
        previously_owned=frozenset(draw(st.sets(st.sampled_from([task.id for task in every]), max_size=2))) if every else frozenset(),
        restore_records_per_s=draw(st.sampled_from([0, 5, 100])),
    )


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most_tasks: int = 9,
    most_members: int = 5,
    simple: bool = False,
    others: Mapping[str, st.SearchStrategy[Any]] | None = None,
) -> AssignmentProblem:
    """Any problem with members m0, m1, ... `simple`: no member leaves, all know everything, nothing
    is in flight or blocked. `others`: see `group_settings`.
    """
    every = draw(tasks(most_tasks))
    names = [f"m{index}" for index in range(draw(st.integers(1, most_members)))]
    owner = {task.id: draw(st.sampled_from([*names, *names, None])) for task in every}
    group = [draw(_member(every, name, [task for task in every if owner[task.id] == name], simple=simple)) for name in names]
    in_flight: list[Movement] = []
    blocked: set[tuple[TaskId, str]] = set()
    if not simple:
        for task in every:
            destination = draw(st.sampled_from([None, None, None, *names]))
            if destination is not None:
                states = [MovementState.REVOKING, MovementState.WARMING]
                state = draw(st.sampled_from(states[: 1 + (destination != owner[task.id])]))  # to its owner: given up and taken again (strict)
                in_flight.append(Movement(task=task.id, source=owner[task.id], destination=destination, state=state))
            blocked.update((task.id, name) for name in names if draw(st.integers(0, 20)) == 0)
    now_ms = draw(st.sampled_from([0, 1_000, 1_000_000]))
    lost = {task.id: draw(st.integers(0, now_ms)) for task in every if owner[task.id] is None and not simple and draw(st.booleans())}
    displaced = {task.id for task in every if owner[task.id] is not None and not simple and draw(st.integers(0, 3)) == 0}
    return AssignmentProblem(
        tasks=tuple(attrs.evolve(task, lost_since_ms=lost.get(task.id), displaced=task.id in displaced) for task in every),
        members=tuple(group),
        in_flight=tuple(in_flight),
        blocked=frozenset(blocked),
        settings=draw(group_settings(others)),
        now_ms=now_ms,
        revocations=Revocations(
            times=draw(st.integers(0, 3)),
            since_ms=draw(st.sampled_from([None, 0, now_ms])),
            until_ms=draw(st.sampled_from([0, now_ms, now_ms + 500])),
        ),
    )
