"""The assignor `load_balanced`: balance by measured load instead of number of tasks. State moves
first, as in `high_availability`.

Ranks, warm-ups, slots, standbys and hand-over are those of `high_availability`. The target is this:

* Every task has a weight (`weights`), from what members report of their hosts (`TaskLoad`;
  `equipoise.statemachine.loads` divides a host's load among its tasks).
* A task without an owner goes to the least loaded of its candidates, the heaviest task first.
  Movements in flight are carried to their end.
* Other tasks move only when that pays (`utilisation`): when a single move gains more than
  `load_high_percent` of a fair share, the group is *rebalanced*, by moves that each gain more than
  `load_low_percent`, until none does. Between the two thresholds nothing begins, so loads that vary
  by less than their difference move no work. The plan carries on that a rebalancing goes on
  (`Plan.memory`).

With `rack_aware_strategy`, outcomes of equal load are chosen by traffic, and while no rebalancing
goes on tasks change places for traffic as far as that leaves loads as even (`rack_aware_swaps`).
`balanced_min_cost` means `min_cost`: here load is spread.

What it promises, where every task may run everywhere: at rest the load per thread of the most and
of the least loaded member differ by at most the lightest task of the most loaded one plus
`load_high_percent` of a fair share; just after a rebalancing, plus `load_low_percent`. (Tasks are
not split, so the first part is unavoidable.) A plan reports the loads now and at its target, and
this bound (`Plan.load`).

Options::

    load_high_percent   20   of a fair share: least gain of a move for which a rebalancing begins
    load_low_percent     5   the least gain of its further moves; from 1 to load_high_percent
    load_cpu, ...            weights of the dimensions, see `weights`
"""

from equipoise.assignors.load_balanced.assignor import LoadBalanced, LoadBalanced1, LoadBalanced2

__all__ = ["LoadBalanced", "LoadBalanced1", "LoadBalanced2"]
