"""The assignor `load_balanced`: even in what tasks carry, not in how many they are. State moves
first, as in `high_availability`.

All but the target is `high_availability`: ranks, warm-ups, slots, standbys, hand-over. The target
is this:

* Every task has a weight (`weights`), made of what members report of their hosts (`TaskLoad`; how a
  host's load is told apart by tasks says `equipoise.statemachine.loads`).
* What must have an owner goes to the least full of those that may have it, the heaviest first; what
  is under way is carried to its end.
* Other tasks move only when it pays (`utilisation`): when some single move betters things by more than
  `load_high_percent` of a fair share, the group is *rebalanced*, by moves that each better it by
  more than `load_low_percent`, until none does. Between the two nothing begins: so loads that
  wander by less than the difference move no work. That a group is being rebalanced is remembered
  (`Plan.memory`).

With `rack_aware_strategy` outcomes that are alike by load are told apart by traffic, and while no
rebalancing goes on tasks change places for traffic as far as that leaves loads as even
(`rack_aware_swaps`). `balanced_min_cost` means the same as `min_cost`: what is spread here is load.

What it promises, where every task may go everywhere: at rest the fullest and the emptiest member
differ per thread by at most the lightest task of the fullest one plus `load_high_percent` of a fair
share; just after a rebalancing, plus `load_low_percent`. (Tasks are not split, so no deal can do
without a part of the first.) A plan says the levels now and at its target, and that bound
(`Plan.load`).

====================  =======
===================================================================================== option
default  is ====================  =======
=====================================================================================
`load_high_percent`   20       of a fair share: what one move must better for a rebalancing to begin
`load_low_percent`    5        the same for it to go on; 1 or more, at most the former `load_cpu`,
...                weights of the dimensions: see `weights` ====================  =======
=====================================================================================
"""

from equipoise.assignors.load_balanced.assignor import LoadBalanced, LoadBalanced1

__all__ = ["LoadBalanced", "LoadBalanced1"]
