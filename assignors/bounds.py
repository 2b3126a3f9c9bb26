"""The fewest changes of owner that any balanced target needs: counted, without the solver."""

from __future__ import annotations

from collections.abc import Mapping

from assignors.situation import Pool, Shares, Situation
from assignors.target import Candidates
from events.tasks import TaskId


def moves_lower_bound(
    situation: Situation, shares: Shares, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], *, balanced: bool
) -> int:
    """A proven lower bound of the changes of owner from now to any target with all members within their shares.

    Every change of owner is one of: a *settled* one (decided earlier), a *forced* one (the owner may not keep the task), or a chosen one. Let s and
    n be the stateful and stateless tasks a member keeps if nothing is chosen, settled arrivals included; [ls, us] and [lt, ut] its shares of
    stateful and of all tasks. Then in a balanced target

    * at least max(s + n - ut, (s - us) + (n - (ut - ls))) tasks leave it by choice, each term at least 0: it may hold at most ut tasks, us stateful
      ones, and beside the ls stateful ones it must have, ut - ls stateless ones. A task leaves one member only, so these add up over members, and to
      the settled and forced ones;
    * at least max(lt - s - n, (ls - s) + (lt - us - n)) tasks come to it, by choice or by force, or free ones that nobody owned. A task comes to one
      member only; so, less the free ones, these add up over members, and to the settled ones.

    A free task with one candidate counts as kept by it: any other target of it is a change of owner. Of those with several, no more
    come to a member without a change of owner than name it.

    The largest of these sums holds. `balanced` False (the shares cannot all be kept): only settled and forced moves are certain.
    """
    stateful = dict.fromkeys(situation.members, 0)
    stateless = dict.fromkeys(situation.members, 0)
    comes_free = dict.fromkeys(situation.members, 0)
    pools: dict[Pool, int] = {}
    settled_moves = forced = free = 0
    for task in situation.tasks.values():
        owner = situation.owner.get(task.id)
        keeper = settled.get(task.id)
        if keeper is not None:
            settled_moves += owner is not None
        elif owner is None:
            members, pool = _free_for(situation, candidates, task.id)
            if pool is None and len(members) == 1:
                keeper = members[0]
            else:
                free += bool(members or pool)
                for member in members:
                    comes_free[member] += 1
                if pool is not None:
                    pools[pool] = pools.get(pool, 0) + 1
        elif situation.must_move(task.id):
            forced += 1
        elif not situation.members[owner].leaving:
            keeper = owner
        if keeper is not None:
            (stateful if task.stateful else stateless)[keeper] += 1
    for pool, tasks in pools.items():
        for member in pool.members:
            comes_free[member] += tasks
    leaving = arriving = moving_in = 0
    for member in situation.members:
        s, n, every = stateful[member], stateless[member], shares.every[member]
        over, under = max(0, s + n - every.upper), max(0, every.lower - s - n)
        if shares.two_kinds:
            inner = shares.stateful[member]
            over = max(over, max(0, s - inner.upper) + max(0, n - (every.upper - inner.lower)))
            under = max(under, max(0, inner.lower - s) + max(0, every.lower - inner.upper - n))
        leaving += over
        arriving += under
        moving_in += max(0, under - comes_free[member])
    return settled_moves + (max(forced + leaving, arriving - free, moving_in) if balanced else forced)


def _free_for(situation: Situation, candidates: Mapping[TaskId, Candidates], task: TaskId) -> tuple[tuple[str, ...], Pool | None]:
    """Members to which a task without owner can go without a change of owner: by name, or a pool."""
    if task not in candidates:
        return (), None if situation.tasks[task].stateful else situation.eligible(task)
    return candidates[task].members, candidates[task].fresh
