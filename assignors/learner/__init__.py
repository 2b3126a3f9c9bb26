"""The assignor `learner`: smooth scaling as its proposal tells it. A *learner* is a copy that
restores in order to take over; its member says itself when it is ready (`TaskReady`), and the task
moves then, and not before.

::

    who is learned by whom     the target of high_availability: balanced, by the fewest moves
    learner                    a warm-up: a copy of the task on its destination
    being learned              the task's owner runs on
    ready                      the destination's own word; a lag, however small, is none
    scale down                 a leaving member's tasks are learned by those who stay; it is released when it has nothing left
    stateless                  in two phases: revoked, then assigned (KIP-415); there is nothing to learn

What nobody runs goes to whoever is soonest ready, by reported lags: waiting for a word would be
waiting without need.

Where this does better than the proposal: there, owners give up every task that is being learned
whenever a rebalance begins, so that a hand-over needs one rebalance and not two; whoever is not
ready yet costs its task a stop, at each rebalance again. Here only the task whose learner is ready
is given up. With the option `strict` it is done as in the proposal, to be compared.
"""

from equipoise.assignors.learner.assignor import Learner, Learner1

__all__ = ["Learner", "Learner1"]
