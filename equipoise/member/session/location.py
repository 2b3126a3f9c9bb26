"""Where the task of a key runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import TopologyDeclared
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.statemachine.state import GroupState

Partitioner = Callable[[bytes, int], int]
"""(serialized key, number of partitions) -> partition, as the sources' producers choose it."""


@attrs.frozen(kw_only=True)
class CopyLocation:
    """A copy of a task that is kept up to date: a standby, or a copy that warms up. `lag`: records
    behind the changelog, by the member's last report.
    """

    member_id: str
    advertised: str | None
    lag: Lag


@attrs.frozen(kw_only=True)
class KeyLocation:
    """Where the task of a key runs, by the facts up to `as_of_ms` (ms since 1970, by the broker's
    clock). Members report within each heartbeat interval: when `as_of_ms` is much older than that,
    the log could not be read, or its worker is away.

    A task may move at any time. So the member that is asked must check that it runs `task`
    (`Member.running`), under `token` if the answer must be of this grant.
    """

    task: TaskId
    member_id: str | None
    """The owner; None: nobody runs the task now."""
    advertised: str | None
    """The owner's address, as its option `advertised` says."""
    token: int
    """Fencing token of the grant; 0: the task was never granted."""
    copies: tuple[CopyLocation, ...]
    """The least lag first; unknown lags last."""
    generation: int
    """Number of the last decision round."""
    as_of_ms: int


def location_of(task: TaskId, state: GroupState) -> KeyLocation:
    """Where `task` runs in a group."""
    owner = state.members.get(state.owner.get(task, ""))
    copies = [
        CopyLocation(member_id=member.member_id, advertised=member.advertised, lag=member.lags.get(task, LagSentinel.UNKNOWN))
        for member in state.members.values()
        if task in member.standby or task in member.warmup
    ]
    return KeyLocation(
        task=task,
        member_id=None if owner is None else owner.member_id,
        advertised=None if owner is None else owner.advertised,
        token=state.tokens.get(task, 0),
        copies=tuple(sorted(copies, key=lambda copy: (copy.lag if isinstance(copy.lag, int) else math.inf, copy.member_id))),
        generation=state.generation,
        as_of_ms=state.last_append_ms or 0,
    )


def task_of_key(key: bytes, topology: TopologyDeclared, subtopology: int | None, partitioner: Partitioner) -> TaskId:
    """The task that reads the records of a serialized key. `subtopology` None: the only one. Raises
    InputError.
    """
    partitions = {part.subtopology: part.partitions for part in topology.subtopologies}
    there = ", ".join(map(str, sorted(partitions)))
    if subtopology is None and len(partitions) > 1:
        raise InputError(f"owner: give the sub-topology that reads the key; there are {there}")
    chosen = min(partitions) if subtopology is None else subtopology
    if chosen not in partitions:
        raise InputError(f"owner: there is no sub-topology {chosen}; there are {there}")
    partition = partitioner(key, partitions[chosen])
    if not isinstance(partition, int) or not 0 <= partition < partitions[chosen]:
        raise InputError(
            f"owner: the partitioner returns {partition!r:.60}, and sub-topology {chosen} has {counted(partitions[chosen], 'partition')}"
        )
    return TaskId(chosen, partition)
