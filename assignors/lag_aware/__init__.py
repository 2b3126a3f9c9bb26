"""The assignor `lag_aware`: KIP-169. It deals the partitions of topics to the members of a consumer
group by count first, and then by lag.

The KIP's example: C0 and C1 read t0 with the lags 100,000, 60,000 and 50,000. Before, by range:
160,000 and 50,000. After: 100,000 and 110,000.

A topic is a sub-topology and a partition is a task; the algorithm is in `dealing`. The subscribers
of a topic are the members that know the sub-topology (`MemberSpec.subtopologies`). Capacity and
copies of state play no part, as in the KIP.

The option `cross_topic` deals all topics together, so that counts and lags are even over all topics
of a member. Without it each topic is dealt alone, as in the KIP: ten topics of one partition each
all go to one member.

What differs from the KIP, because a running group must not be dealt again in every round:

* An even topic stays, whatever its lags. A topic is dealt when a partition has no owner that may
  keep it, when counts differ by two, or when an operator requests a new deal
  (`AssignmentProblem.anew`). With `deal_after_ms` also when lags have been uneven for so long:
  then by the exchanges that are worth their moves (`uneven`). With `cross_topic` all topics
  are dealt then, and also when the total counts of members with equal subscriptions differ by two.
  Where totals of other subscriptions could be more even, single partitions are passed on
  (`evening`).
* While partitions of a topic are being handed over, only those without an owner are dealt, beside
  the others; the rest waits until the hand-over is done.
* A partition that changes its owner is revoked first and granted when its owner has given it up;
  the KIP's consumers all stop.

Racks, which the KIP does not have, come last. With `rack_aware_strategy` the same bundles are given
so that the least is read across racks (`rack_aware_bundles`). Counts stay the same, and so do lags,
except between partitions of equal lag or within `rack_lag_tolerance`: with a tolerance of d
records, two members with at most k partitions of a topic each may differ by 2*d*k more. An even
topic changes only when that lowers the traffic by more than the moves cost, by the same exchanges.
`balanced_min_cost` means `min_cost`: each topic is spread anyway.
"""

from equipoise.assignors.lag_aware.assignor import LagAware, LagAware1

__all__ = ["LagAware", "LagAware1"]
