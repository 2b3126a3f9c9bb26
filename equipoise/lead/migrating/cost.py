"""The cost of joins, leaves and rolling restarts of a group: as its clients lead it, taken over by
the broker, and with clients that use the new protocol. By simulation, from who has what now.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs

from equipoise.lead.migrating.verdict import MigratedGroup
from equipoise.replay.simulation.kafka.consumers import ConsumerEvent, ConsumerSettings
from equipoise.replay.simulation.kafka.unread_partitions import GroupCost, cost_of

SEEDS = range(5)
MOST_PARTITIONS = 5_000
SESSION_MS = 45_000
"""The default of Java's client and of librdkafka. None of these events waits for it."""
AWAY_MS = 5_000
APART_MS = 20_000
_BEGIN_MS, _AFTER_MS = 1_000_000, 60_000
_NEW = "equipoise-one-more"


@attrs.frozen(kw_only=True)
class ActionCost:
    """The means over SEEDS of one action: how long partitions were without a reader, in ms over all
    of them, and how many moved. `taken_over`: with the same clients. `new_protocol`: with clients
    that use it.
    """

    action: str
    now: GroupCost
    taken_over: GroupCost
    new_protocol: GroupCost


def costs(group: MigratedGroup, *, broker_heartbeat_ms: int) -> list[ActionCost]:
    """The cost of each action; [] for a group without clients or partitions, and for one that is
    too large to be simulated at once. `broker_heartbeat_ms`: the broker's
    ``group.consumer.heartbeat.interval.ms``.
    """
    owners = {f"{topic}-{number}": each.member_id for each in group.clients for topic, number in each.held}
    if not owners or len(owners) > MOST_PARTITIONS:
        return []
    idle = [each.member_id for each in group.clients if not each.held]
    static = all(each.instance_id is not None for each in group.clients)
    names = sorted(each.member_id for each in group.clients)
    now = ConsumerSettings(session_timeout_ms=SESSION_MS, assignor=group.protocol, is_static=static)
    taken_over = attrs.evolve(now, is_broker_led=True)
    new_protocol = attrs.evolve(taken_over, heartbeat_interval_ms=broker_heartbeat_ms)
    found = []
    for action, events in _actions(names).items():
        until_ms = max(each.at_ms for each in events) + _AFTER_MS
        of = [
            _mean([cost_of(owners, events, settings, seed=seed, until_ms=until_ms, idle=idle) for seed in SEEDS])
            for settings in (now, taken_over, new_protocol)
        ]
        found.append(ActionCost(action=action, now=of[0], taken_over=of[1], new_protocol=of[2]))
    return found


def _actions(names: Sequence[str]) -> dict[str, list[ConsumerEvent]]:
    found = {"one joins": [ConsumerEvent(_BEGIN_MS, "start", _NEW)]}
    if len(names) > 1:
        found["one leaves"] = [ConsumerEvent(_BEGIN_MS, "leave", names[-1])]
    rolling = [
        (ConsumerEvent(begin_ms, "leave", name), ConsumerEvent(begin_ms + AWAY_MS, "start", name))
        for begin_ms, name in zip(range(_BEGIN_MS, 2**53, APART_MS), names, strict=False)
    ]
    return found | {"rolling restart": [event for pair in rolling for event in pair]}


def _mean(of: Sequence[GroupCost]) -> GroupCost:
    unavailable_ms, moves = (statistics.mean(each.unavailable_ms for each in of), statistics.mean(each.moves for each in of))
    return GroupCost(unavailable_ms=round(unavailable_ms), moves=round(moves))
