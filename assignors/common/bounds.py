"""The fewest changes of owner that any balanced target needs, proven without the solver."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.node_aggregation import Ints
from equipoise.assignors.common.problem import Task
from equipoise.assignors.common.shares import Shares
from equipoise.assignors.common.target import Candidates
from equipoise.events.tasks import TaskId

MULTIPLIERS = (-2, -1, 0, 1, 2)  # a change of owner costs 1, so prices beyond that never bound more; any price would be sound
_PRICES = np.array([(a, b) for a in MULTIPLIERS for b in MULTIPLIERS], dtype=np.int64)


def moves_lower_bound(
    indexed: IndexedProblem, shares: Shares, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], *, balanced: bool
) -> int:
    """A proven lower bound of the changes of owner from now to any target with all members within
    their shares.

    Every change of owner is one of: a *settled* one (decided earlier), a *forced* one (the owner
    may not keep the task), or a chosen one. A free task with one candidate counts as kept by it:
    any other target of it is a change of owner. Let s and n be the stateful and stateless tasks a
    member keeps if nothing is chosen, settled arrivals included, and S and N all tasks of either
    kind. A balanced target gives each member s' and n' tasks within its shares. Member by member,
    it changes at least as many owners as

    * tasks *leave* by choice, max(0, s - s') + max(0, n - n'), and the forced ones;
    * tasks *arrive* that are not free for this member, max(0, s' - s - f) + max(0, n' - n - g),
      with f and g the free tasks it is a candidate for.

    Each is a sum over members of some c(s', n'). As all s' add up to S and all n' to N, for any
    prices a and b it is at least the sum over members of min(c(s', n') + a s' + b n'), less a S + b
    N, where each minimum runs over what its shares allow (weak duality). That is computed for some
    prices, and the highest of the bounds is taken.

    `balanced` False (the shares cannot all be kept): only settled and forced moves are certain.
    """
    count = _Count(indexed)
    settled_moves = 0
    together = indexed.staying if settled.keys().isdisjoint(indexed.staying) else {}
    for kind, kept in ((True, indexed.stateful_of(together)), (False, indexed.stateless_of(together))):
        for member, tasks in kept.items():
            count.kept[kind][member] += tasks
    for name in itertools.filterfalse(together.__contains__, indexed.others):
        task, owner = indexed.tasks[name], indexed.owner.get(name)
        if name in settled:
            settled_moves += owner is not None
            count.keeps(task, settled[name])
        elif owner is None:
            count.free(task, candidates.get(name), 1)
        elif indexed.must_move(name):
            count.forced[task.stateful] += 1
        elif not indexed.members[owner].leaving:
            count.keeps(task, owner)
    for each in indexed.equivalence_classes:
        for takers, tasks in Counter(map(candidates.get, each.tasks)).items():
            count.free(each.first, takers, tasks)
    forced = sum(count.forced.values())
    return settled_moves + (max(forced, count.bound(shares)) if balanced else forced)


class _Count:
    """What each member keeps, and what it could get without a change of owner, for stateful and
    stateless tasks.
    """

    def __init__(self, indexed: IndexedProblem) -> None:
        self.indexed = indexed
        self.kept = {kind: dict.fromkeys(indexed.members, 0) for kind in (True, False)}
        self.named = {kind: dict.fromkeys(indexed.members, 0) for kind in (True, False)}
        self.pooled: dict[bool, dict[Pool, int]] = {True: {}, False: {}}
        self.free_tasks = {True: 0, False: 0}
        self.forced = {True: 0, False: 0}

    def keeps(self, task: Task, member: str) -> None:
        self.kept[task.stateful][member] += 1

    def free(self, task: Task, candidates: Candidates | None, tasks: int) -> None:
        """Adds so many tasks like this one without an owner. Without candidates: every eligible
        member.
        """
        pool = candidates.fresh if candidates is not None else None if task.stateful else self.indexed.eligible(task.id)
        members = candidates.members if candidates is not None else ()
        if pool is None and len(members) == 1:
            self.kept[task.stateful][members[0]] += tasks
            return
        self.free_tasks[task.stateful] += tasks * bool(members or pool)
        for member in members:
            self.named[task.stateful][member] += tasks
        if pool:
            self.pooled[task.stateful][pool] = self.pooled[task.stateful].get(pool, 0) + tasks

    def bound(self, shares: Shares) -> int:
        """The highest bound of `moves_lower_bound`, without settled moves."""
        members = self.indexed.members
        if not members:
            return 0
        inner = shares.stateful if shares.two_kinds else shares.every
        times_of = Counter(
            zip(
                *(self.kept[kind].values() for kind in (True, False)),
                *(self._free_for(kind).values() for kind in (True, False)),
                *(map(_LIMITS, map(share.__getitem__, members)) for share in (inner, shares.every)),
                strict=True,
            )
        )
        s, n, f, g, *limits = np.array([(*counts, *part, *every) for *counts, part, every in times_of], dtype=np.int64).T
        times = np.array(list(times_of.values()), dtype=np.int64)
        stateful, stateless = (sum(self.kept[kind].values()) + self.free_tasks[kind] + self.forced[kind] for kind in (True, False))
        if not shares.two_kinds:  # one kind then, held to the shares of all tasks
            s, n, f, g = s + n, np.zeros_like(n), f + g, np.zeros_like(g)
            stateful, stateless = stateful + stateless, 0
        leaving = _priced(times, s, n, limits, stateful, stateless, leave=True) + sum(self.forced.values())
        moving_in = _priced(times, s + f, n + g, limits, stateful, stateless, leave=False)
        return max(leaving, moving_in)

    def _free_for(self, kind: bool) -> dict[str, int]:
        free = dict(self.named[kind])
        for pool, tasks in self.pooled[kind].items():
            for member in pool.members:
                free[member] += tasks
        return free


_LIMITS = operator.attrgetter("lower", "upper")


def _priced(times: Ints, s: Ints, n: Ints, limits: Sequence[Ints], stateful: int, stateless: int, *, leave: bool) -> int:
    """The best bound over prices. For each kind of member, `times`: how many there are; `s`, `n`:
    up to where a count costs nothing; `limits`: ls, us, lt, ut.

    A sum of convex functions with one kink each has its minimum over a polygon where two of these
    lines meet: sides of the polygon, and kinks.
    """
    ls, us, lt, ut = limits
    nothing = np.zeros_like(s)
    corners = [(one, other) for one in (ls, us, s) for other in (lt - one, ut - one, n, nothing)]
    corners += [(total - other, other) for other in (n, nothing) for total in (lt, ut)]
    ones, others = np.array([one for one, _ in corners]), np.array([other for _, other in corners])
    within = (ones >= ls) & (ones <= us) & (others >= 0) & (ones + others >= lt) & (ones + others <= ut)
    cost = np.maximum(0, s - ones) + np.maximum(0, n - others) if leave else np.maximum(0, ones - s) + np.maximum(0, others - n)
    if not within.any(axis=0).all():
        return 0
    never = np.iinfo(np.int64).max // 4
    priced = cost + _PRICES[:, 0, None, None] * ones + _PRICES[:, 1, None, None] * others
    least = (np.where(within, priced, never).min(axis=1) * times).sum(axis=1)
    return int((least - _PRICES[:, 0] * stateful - _PRICES[:, 1] * stateless).max())
