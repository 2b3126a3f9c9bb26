"""The assignor `learner`, from the proposal "smooth scaling". A *learner* is a copy that restores
in order to take over. Its member declares it ready (`TaskReady`), and the task moves then.

::

    target             that of high_availability: balanced, by the fewest moves
    learner            a warm-up: a copy of the task on its destination
    being learned      the task's owner runs on
    ready              declared by the destination's member; no lag suffices
    scale down         staying members learn a leaving member's tasks; it is released at the end
    stateless          in two phases: revoked, then assigned (KIP-415)

A task without an owner goes to the member that is soonest ready by its lag; waiting for its word
would only prolong the stop.

In the proposal owners give up every task that is being learned whenever a rebalance begins, so that
a hand-over takes one rebalance instead of two. A task whose learner is not ready yet then stops at
every rebalance. Here only a task whose learner is ready is given up. The option `strict` does as
the proposal, for comparison.
"""

from equipoise.assignors.learner.assignor import Learner, Learner1, Learner2

__all__ = ["Learner", "Learner1", "Learner2"]
