"""The assignor `lag_aware`: KIP-169, partitions of topics dealt to the members of a consumer group,
by count first and then by lag.

The KIP's example: C0 and C1 read t0 with the lags 100,000, 60,000 and 50,000. Before, by range:
160,000 and 50,000. After: 100,000 and 110,000.

A topic is a sub-topology here, and one of its partitions a task; `dealing` has the algorithm. Who
subscribes to a topic are the members that know the sub-topology (`Member.subtopologies`). Capacity
and copies of state play no part, as in the KIP.

The option `cross_topic` deals all topics together, so that counts and lags are even over all that
members have. Without it each topic is dealt by itself, as the KIP says: ten topics of one partition
each go to one member.

What differs from the KIP, because a group that runs must not be dealt anew at every question: what
is even stays as it is, whatever lags do in the meantime. A topic is dealt anew when a partition has
no owner that may keep it, when counts differ by two, or when an operator asks for a new deal
(`AssignmentProblem.anew`); with `cross_topic` all topics are, and also when counts differ by two in
the whole of members that subscribe to the same. While partitions of it are being handed over, only
those that need an owner are dealt, beside the others; the rest waits until that is done. And a
partition that changes its owner is revoked first and granted when its owner has let go; the KIP's
consumers all stop.

Racks, which the KIP does not know, come last: with `rack_aware_strategy` the same bundles are given
so that the least is read across racks (`rack_aware_bundles`). Counts are what they would be without; so are
lags, but for partitions that stand for each other, of equal lag or within `rack_lag_tolerance`:
with a tolerance of d records, two members that have k partitions of a topic each at most may differ
by 2*d*k more. What is even moves only when the traffic falls by more than the moves cost, and then
changes places in the same way. `balanced_min_cost` means the same as `min_cost`: each topic is
spread anyway.
"""

from equipoise.assignors.lag_aware.assignor import LagAware

__all__ = ["LagAware"]
