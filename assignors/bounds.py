"""The fewest changes of owner that any balanced target needs: counted, without the solver."""

from __future__ import annotations

from collections.abc import Mapping

from assignors.situation import Shares, Situation
from events.tasks import TaskId


def moves_lower_bound(situation: Situation, shares: Shares, settled: Mapping[TaskId, str], *, balanced: bool) -> int:
    """A proven lower bound of the changes of owner from now to any target with all members within their shares.

    Every change of owner is one of: a *settled* one (decided earlier), a *forced* one (the owner may not keep the task), or a chosen one. Let s and
    n be the stateful and stateless tasks a member keeps if nothing is chosen, settled arrivals included; [ls, us] and [lt, ut] its shares of
    stateful and of all tasks. Then in a balanced target

    * at least max(s + n - ut, (s - us) + (n - (ut - ls))) tasks leave it by choice, each term at least 0: it may hold at most ut tasks, us stateful
      ones, and beside the ls stateful ones it must have, ut - ls stateless ones. A task leaves one member only, so these add up over members, and to
      the settled and forced ones;
    * at least max(lt - s - n, (ls - s) + (lt - us - n)) tasks come to it, by choice or by force, or free ones that nobody owned. A task comes to one
      member only; so, less the free ones, these add up over members, and to the settled ones.

    The larger of the two sums holds. `balanced` False (the shares cannot all be kept): only settled and forced moves are certain.
    """
    stateful = dict.fromkeys(situation.members, 0)
    stateless = dict.fromkeys(situation.members, 0)
    settled_moves = forced = free = 0
    for task in situation.tasks.values():
        owner = situation.owner.get(task.id)
        keeper = settled.get(task.id)
        if keeper is not None:
            settled_moves += owner is not None
        elif owner is None:
            free += bool(situation.eligible(task.id))
        elif situation.must_move(task.id):
            forced += 1
        else:
            keeper = owner
        if keeper is not None:
            (stateful if task.stateful else stateless)[keeper] += 1
    leaving = arriving = 0
    for member in situation.members:
        s, n, every = stateful[member], stateless[member], shares.every[member]
        over, under = max(0, s + n - every.upper), max(0, every.lower - s - n)
        if shares.two_kinds:
            inner = shares.stateful[member]
            over = max(over, max(0, s - inner.upper) + max(0, n - (every.upper - inner.lower)))
            under = max(under, max(0, inner.lower - s) + max(0, every.lower - inner.upper - n))
        leaving += over
        arriving += under
    return settled_moves + (max(forced + leaving, arriving - free, 0) if balanced else forced)
