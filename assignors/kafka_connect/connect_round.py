"""One round of Kafka Connect's `IncrementalCooperativeAssignor` (KIP-415, as of Apache Kafka 4).
The leader's memory is a parameter and a result.

::

    new, deleted, lost and doubly claimed work                  decide
    lost work waits for its worker                              _handle_lost
    a worker above its share gives up its first items           _surplus
    unassigned work goes to the workers with the fewest         _hand_out

Connectors and tasks are handed out and evened out separately; `Pool` numbers them, connectors
first. Where no other order is named, workers are in the order of a `HashMap` of their ids, and
intersections and differences of lists in rising order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.events.java_order import text_key, text_order
from equipoise.events.tasks import TaskId

CONNECTORS, TASKS = POOLS = (0, 1)
BACK_OFF_BASE = 40  # Connect's CONSECUTIVE_BACKOFF multiplier, undocumented there
FIRST_BACK_OFF_MS = 1

Work = dict[int, list[TaskId]]
"""Pool -> a worker's work, in its own order."""


@attrs.frozen(kw_only=True)
class LeaderMemory:
    """What the leader remembers between rounds; a new leader begins with the defaults.

    `assigned`: work that it believes to be running, or to return. `revoked`: by the last round.
    `workers`: of the last round. `candidates`: workers seen without work while lost work waited, in
    the order seen. `scheduled_ms`: end of that wait or of the back-off; 0: none. `delay_ms`: the
    wait announced to workers. `has_revoked`: the last round revoked work for balance; `in_a_row`:
    number of such rounds.
    """

    assigned: frozenset[TaskId] = frozenset()
    revoked: frozenset[TaskId] = frozenset()
    workers: frozenset[str] = frozenset()
    candidates: tuple[str, ...] = ()
    scheduled_ms: int = 0
    delay_ms: int = 0
    has_revoked: bool = False
    in_a_row: int = 0


@attrs.frozen(kw_only=True)
class RoundResult:
    """`granted`: worker -> its new work, in the order of assignment. `revoked`: worker -> work to
    stop, rising.

    `surplus`, `twice`, `deleted`: the causes. `waiting`: lost work without an owner until the delay
    ends.
    """

    granted: Mapping[str, tuple[TaskId, ...]]
    revoked: Mapping[str, tuple[TaskId, ...]]
    surplus: frozenset[TaskId]
    twice: frozenset[TaskId]
    waiting: frozenset[TaskId]
    remembered: LeaderMemory


@attrs.define
class _Round:
    """State of a round. `next`: worker -> its work afterwards; `revoked`: worker -> work to stop."""

    workers: tuple[str, ...]
    configured: Mapping[int, Sequence[TaskId]]
    next: dict[str, Work]
    revoked: dict[str, set[TaskId]]
    now_ms: int
    max_delay_ms: int
    workers_before: frozenset[str]
    candidates: list[str]
    scheduled_ms: int
    delay_ms: int
    has_revoked: bool
    in_a_row: int

    def revoke(self, surplus: Mapping[str, Sequence[TaskId]]) -> None:
        for worker, resources in surplus.items():
            self.revoked[worker].update(resources)
            for pool in POOLS:
                self.next[worker][pool] = [resource for resource in self.next[worker][pool] if resource not in resources]


def decide(
    *,
    configured: Iterable[TaskId],
    reported: Mapping[str, Sequence[TaskId]],
    connectors: int | None,
    remembered: LeaderMemory,
    now_ms: int,
    max_delay_ms: int,
) -> RoundResult:
    """Decides one round. `configured`: all work. `reported`: worker -> work it reports as running,
    in its own order. `connectors`: the sub-topology whose tasks are connectors; None: there are
    only tasks.
    """

    def pools(resources: Iterable[TaskId]) -> Work:
        work: Work = {pool: [] for pool in POOLS}
        for resource in resources:
            work[CONNECTORS if resource.subtopology == connectors else TASKS].append(resource)
        return work

    wanted = frozenset(configured)
    holders: dict[TaskId, int] = {}
    for resources in reported.values():
        for resource in resources:
            holders[resource] = holders.get(resource, 0) + 1
    active = frozenset(holders)
    assigned = remembered.assigned
    if remembered.revoked & active:
        assigned = active  # revoked work still runs: the last round did not reach every worker
    deleted = assigned - wanted
    twice = frozenset(resource for resource, count in holders.items() if count > 1)
    lost = assigned - active - deleted
    created = wanted - assigned - active
    stopped = {worker: {resource for resource in resources if resource in deleted or resource in twice} for worker, resources in reported.items()}
    state = _Round(
        workers=text_order(sorted(reported, key=text_key)),
        configured=pools(sorted(wanted)),
        next={worker: pools(resource for resource in resources if resource not in stopped[worker]) for worker, resources in reported.items()},
        revoked=stopped,
        now_ms=now_ms,
        max_delay_ms=max_delay_ms,
        workers_before=remembered.workers,
        candidates=list(remembered.candidates),
        scheduled_ms=remembered.scheduled_ms,
        delay_ms=remembered.delay_ms,
        has_revoked=remembered.has_revoked,
        in_a_row=remembered.in_a_row,
    )
    reassigned = _handle_lost(state, pools(sorted(lost)))
    surplus = _even_out(state)
    _hand_out(state, {pool: [*pools(sorted(created))[pool], *reassigned[pool]] for pool in POOLS})
    revoked = frozenset(resource for resources in state.revoked.values() for resource in resources)
    everything = {worker: [resource for pool in POOLS for resource in state.next[worker][pool]] for worker in reported}
    held = {worker: frozenset(resources) for worker, resources in reported.items()}
    granted = {worker: tuple(resource for resource in resources if resource not in held[worker]) for worker, resources in everything.items()}
    given = frozenset(resource for resources in everything.values() for resource in resources)
    return RoundResult(
        granted=granted,
        revoked={worker: tuple(sorted(resources)) for worker, resources in state.revoked.items()},
        surplus=frozenset(resource for resources in surplus.values() for resource in resources),
        twice=twice,
        waiting=lost - given,
        remembered=LeaderMemory(
            assigned=(given - revoked) | lost,
            revoked=revoked,
            workers=frozenset(reported),
            candidates=tuple(state.candidates),
            scheduled_ms=state.scheduled_ms,
            delay_ms=state.delay_ms,
            has_revoked=state.has_revoked,
            in_a_row=state.in_a_row,
        ),
    )


def _nothing() -> Work:
    return {pool: [] for pool in POOLS}


def _handle_lost(state: _Round, lost: Work) -> Work:
    """Lost work to hand out in this round, without work that waits or goes straight to candidates."""
    if not any(lost.values()) and not state.has_revoked:
        state.candidates, state.scheduled_ms, state.delay_ms = [], 0, 0
        return _nothing()
    if state.scheduled_ms <= 0 and state.workers_before <= frozenset(state.workers):
        return lost  # no worker is missing, so the last assignment probably did not reach its workers
    if state.max_delay_ms == 0:
        return lost
    if 0 < state.scheduled_ms <= state.now_ms:
        candidates = [worker for worker in state.candidates if worker in state.next]
        for pool in POOLS if candidates else ():
            for index, resource in enumerate(lost[pool]):
                state.next[candidates[index % len(candidates)]][pool].append(resource)
        state.candidates, state.scheduled_ms, state.delay_ms, state.has_revoked = [], 0, 0, False
        return _nothing() if candidates else lost
    idle = text_order(worker for worker in state.workers if not any(state.next[worker].values()))
    state.candidates.extend(worker for worker in idle if worker not in state.candidates)
    if state.now_ms < state.scheduled_ms:
        state.delay_ms = min(state.scheduled_ms - state.now_ms, state.max_delay_ms)
    else:
        state.delay_ms = state.max_delay_ms
    state.scheduled_ms = state.now_ms + state.delay_ms
    return _nothing()


def _even_out(state: _Round) -> dict[str, list[TaskId]]:
    """Revokes work for balance, unless a delay is running or a back-off begins. Returns worker ->
    revoked work.
    """
    if state.delay_ms != 0:
        state.has_revoked = False
        return {}
    surplus = _surplus(state)
    if state.has_revoked and surplus:
        state.in_a_row += 1
        state.delay_ms = back_off_ms(state.in_a_row, state.max_delay_ms)
        if state.delay_ms != 0:
            state.scheduled_ms = state.now_ms + state.delay_ms
            return {}
        state.revoke(surplus)
    elif surplus:
        state.revoke(surplus)
        state.has_revoked = True
    elif state.has_revoked:
        state.has_revoked = False
        state.in_a_row = 0
    return surplus


def back_off_ms(times: int, most_ms: int) -> int:
    """Returns how long the next revocation for balance waits after so many in succession: 40 to the
    power of `times` ms, at most `most_ms`.

    Connect computes it in floating point, `most_ms` as a power of 40 included.
    """
    first_ms = FIRST_BACK_OFF_MS if most_ms else 0
    if most_ms <= first_ms:
        return min(most_ms, first_ms)
    most_times = math.log(most_ms / max(first_ms, 1)) / math.log(BACK_OFF_BASE)
    return min(most_ms, int(first_ms * math.pow(BACK_OFF_BASE, min(times, most_times))))


def _surplus(state: _Round) -> dict[str, list[TaskId]]:
    """Worker -> its first items, in its own order, that are above its share; workers without any
    are absent.
    """
    if not any(resources for work in state.next.values() for resources in work.values()):
        return {}
    if not any(state.configured.values()):
        return {}
    surplus: dict[str, list[TaskId]] = {}
    for pool in POOLS:
        least, extras = divmod(len(state.configured[pool]), len(state.workers))
        counts = [len(state.next[worker][pool]) for worker in state.workers]
        if counts.count(least + 1) == extras and all(count in (least, least + 1) for count in counts):
            continue
        given = 0
        for worker, count in zip(state.workers, counts, strict=True):
            if count <= least:
                continue
            most = least
            if given < extras:
                given += 1
                most = least + 1
            if count > most:
                surplus.setdefault(worker, []).extend(state.next[worker][pool][: count - most])
    return surplus


def _hand_out(state: _Round, work: Work) -> None:
    """Hands work out in rising order to the workers with the fewest of its kind: level workers get
    one each in turn, then the next ones join them.
    """
    for pool in POOLS:
        left = deque(dict.fromkeys(work[pool]))
        order = sorted(state.workers, key=lambda worker: (len(state.next[worker][pool]), text_key(worker)))
        while left and order:
            fewest = len(state.next[order[0]][pool])
            for worker in order:
                if not left or len(state.next[worker][pool]) > fewest:
                    break
                state.next[worker][pool].append(left.popleft())
