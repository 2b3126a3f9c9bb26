"""Deals by itself when lags have been uneven for long (option `deal_after_ms`).

Lags are *uneven* while there are exchanges that pay (`exchanges`). The first plan that finds some
remembers them. Each later plan goes through them in order, with the lags of its time, and forgets
those that do not pay any more; when none is left, it searches again. Those that have paid in every
plan for `deal_after_ms` are made, all at once. So a partition that is behind for a short time moves
nothing, nor do lags that are uneven all the time but each time elsewhere.

Nothing is remembered over a plan that moves anything, nor while something is handed over: the time
begins again. With the same lags, a group is dealt once at most: after that nothing pays, unless the
search of a very large group ended early. Racks play no part here: what they can have without
changing lags, the next plan does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.problem import Memory
from equipoise.assignors.lag_aware.bundles import Dealt
from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.assignors.lag_aware.exchanges import Budget, Exchange, Exchanges
from equipoise.assignors.lag_aware.options import LagAwareOptions
from equipoise.events.tasks import TaskId

UNEVEN_SINCE = "uneven_since_ms"
"""Memory key: group time of the first plan that found the exchanges."""
TASKS, MEMBERS = "uneven_tasks", "uneven_members"
"""Memory keys: partitions that are to move, and their new owners, in the order of the exchanges."""


@attrs.frozen(kw_only=True)
class Uneven:
    """Exchanges that have paid since `since_ms`, and what owners they lead to."""

    since_ms: int
    exchanges: Sequence[Exchange]
    owner: Mapping[TaskId, str]

    def memory(self) -> Memory:
        """`Plan.memory`, in rising order of its keys."""
        moves = [move for exchange in self.exchanges for move in exchange.moves]
        return {MEMBERS: tuple(name for _, name in moves), UNEVEN_SINCE: self.since_ms, TASKS: tuple(task for task, _ in moves)}

    def dealt(self, owner: Mapping[TaskId, str]) -> Dealt:
        """All exchanges made. `owner`: before that."""
        return Dealt(self.owner, unique=False, for_lags=frozenset(task for task, name in self.owner.items() if owner[task] != name))


def find(indexed: IndexedProblem, topics: Sequence[Topic], chosen: LagAwareOptions, memory: Memory) -> Uneven | None:
    """Returns what is uneven in a group at rest, in which each partition has its owner; None:
    nothing.
    """
    unknown = {task.id for task in indexed.tasks.values() if task.lag is None}
    together = [list(topics)] if chosen.cross_topic else [[topic] for topic in topics]
    searches = [Exchanges(part, indexed.owner, unknown, chosen.deal_gain_records, budget) for budget in [Budget()] for part in together]
    since_ms = memory.get(UNEVEN_SINCE)
    remembered = _remembered(memory, indexed.owner) if isinstance(since_ms, int) else ()
    exchanges = [each for each in remembered for search in searches if each.given in search.owner and search.repeat(each)]
    if not exchanges:
        since_ms, exchanges = indexed.now_ms, [each for search in searches for each in search.find()]
    if not exchanges:
        return None
    assert isinstance(since_ms, int), "what is remembered has its time"
    return Uneven(since_ms=since_ms, exchanges=exchanges, owner={task: name for search in searches for task, name in search.owner.items()})


def _remembered(memory: Memory, owner: Mapping[TaskId, str]) -> Iterator[Exchange]:
    """The exchanges that the memory holds. Two partitions of which the second goes the other way
    are one exchange.
    """
    tasks, members = memory.get(TASKS, ()), memory.get(MEMBERS, ())
    if not isinstance(tasks, tuple) or not isinstance(members, tuple):
        return
    owner = dict(owner)
    moves = [(task, name) for task, name in zip(tasks, members, strict=False) if isinstance(task, TaskId) and isinstance(name, str)]
    while moves:
        (task, taker), *moves = moves
        giver = owner.get(task)
        if giver is None:
            continue
        taken = None
        if moves and moves[0][1] == giver and owner.get(moves[0][0]) == taker:
            (taken, _), *moves = moves
            owner[taken] = giver
        owner[task] = taker
        yield Exchange(giver, taker, task, taken)
