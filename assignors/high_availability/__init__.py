"""The assignor `high_availability`: KIP-441 as its text tells it. A task moves when its destination
is caught up, and not before.

::

    rank                               who is how far behind on what                  ranking
    propose_balanced_assignment        the target: balanced, by the fewest moves      target
    constrained_balanced_assignment    who runs what nobody runs, of the min rank     target
    get_movements                      target minus now, as warm-ups with slots       movements
    assign_standbys                    hot copies beside the active ones              standbys

The KIP's balance evaluation is the same question asked again: its available movements are those
whose state is REVOKING.

What differs from the KIP, and why. The KIP computes the target regardless of what runs where and
moves most of a group when one member joins; here the present owner is part of the target's cost.
The KIP deals all tasks anew to the members of the min rank; here a task that is owned stays until
its movement completes, for a change of owner without need is a stop without need. The KIP deals
stateless tasks anew at every round; here they are part of the same target, and stay as well.
"""

from equipoise.assignors.high_availability.assignor import HighAvailability, HighAvailability1

__all__ = ["HighAvailability", "HighAvailability1"]
