"""The assignor `high_availability`: KIP-441. A task moves when its destination is caught up, and
not before.

The functions of the KIP, and the modules of `common` that hold them::

    rank                               how far behind each member is             ranking
    proposeBalancedAssignment          the target, by the fewest moves           target
    constrainedBalancedAssignment      owners of the min rank for unowned tasks  target
    getMovements                       target minus now, as warm-ups with slots  movements
    assignStandbys                     hot copies beside the active tasks        standbys

The KIP's balance evaluation is the next round: its available movements are those in state REVOKING.

What differs from the KIP, and why:

* The KIP computes the target regardless of present owners, and moves most of a group when one
  member joins. Here the present owner is part of the target's cost.
* The KIP assigns all tasks again to members of the min rank. Here an owned task stays until its
  movement completes, because every change of owner is a stop.
* The KIP assigns stateless tasks again in every round. Here they are part of the same target, and
  stay as well.
"""

from equipoise.assignors.high_availability.assignor import HighAvailability, HighAvailability1, HighAvailability2

__all__ = ["HighAvailability", "HighAvailability1", "HighAvailability2"]
