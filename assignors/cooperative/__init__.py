"""The assignor `cooperative`: incremental cooperative rebalancing, as KIP-415 tells it. Everybody
keeps what nobody else is to have.

Design I
    What is to move is revoked from its owner and granted when that has let go; nothing else stops.
Design II
    A task whose owner left or died is *lost*. Nobody is given it for `scheduled_delay_ms`: its
    owner, which has its state, is likely to come back, and then has it again at once. After that it
    is placed like a new one. While lost work waits, nothing else moves for balance.
Design III
    The balance is reached in steps. A round revokes no more than `revocations_per_round` tasks for
    balance, and the next such part goes when their new owners have them. Rounds in succession that
    revoke for balance are spaced by a back-off, `revocation_backoff_ms` and 40 times as much each
    time, so that a fleet that starts does not shuffle once for each member; the parts of one step
    wait for each other and for no back-off.

The target is that of the shared solver: balanced by the fewest changes of owner, and of all these
one that spreads each sub-topology best.

Where this differs from Kafka Connect, and why. There, work that its owner came back for stays idle
until the delay is over; a member that leaves with nothing starts a delay; a rebalance during a
back-off ends it; what was lost for good goes to whoever was idle once, however full it is now; the
first tasks in the order of a report are the ones revoked, so whole connectors move; a new leader
knows of nothing that was lost; and revoked work is idle until the next rebalance. None of that is
so here: scenarios in ``tests/scenarios/cooperative`` show each beside what Connect does.
"""

from equipoise.assignors.cooperative.assignor import Cooperative, Cooperative1

__all__ = ["Cooperative", "Cooperative1"]
