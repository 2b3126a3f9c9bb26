"""The assignor `cooperative`: incremental cooperative rebalancing (KIP-415). Members keep every
task that no other member is to have.

Design I
    A task that moves is revoked from its owner and granted when the owner has given it up; nothing
    else stops.
Design II
    A task whose owner left or died is *lost*. It waits `scheduled_delay_ms` for its owner, which
    has its state, and returns to it at once. After the delay it is placed like a new task. While a
    task waits, nothing moves for balance.
Design III
    Balance is reached in steps. A round revokes at most `revocations_per_round` tasks for balance;
    the next part follows when their new owners have them. Successive rounds that revoke for balance
    are spaced by a back-off: `revocation_backoff_ms`, and 40 times as long each time, so that a
    fleet that starts does not reshuffle once per member. Parts of one step do not wait for it.

The target comes from the shared solver: balanced by the fewest changes of owner, and of these
targets one that spreads each sub-topology best.

What differs from Kafka Connect; ``tests/scenarios/cooperative`` shows both side by side::

    Kafka Connect                                             here
    lost work is idle until the delay ends, owner or not      it returns to its owner at once
    a member that leaves without tasks starts a delay         it does not
    a rebalance during a back-off ends the back-off           it continues
    lost work goes to workers that were idle once             it is placed by balance
    the first tasks of a report are revoked                   tasks of all sub-topologies are
    a new leader forgets lost work                            it is part of the group's state
    revoked work is idle until the next rebalance             it is granted when it is given up
"""

from equipoise.assignors.cooperative.assignor import Cooperative, Cooperative1, Cooperative2

__all__ = ["Cooperative", "Cooperative1", "Cooperative2"]
