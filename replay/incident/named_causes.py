"""Causes of rebalances and members, as one line of a log names them: for `BrokerStory` and
`ClientStory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from equipoise.replay.importers.evidence.files import client_of
from equipoise.replay.importers.evidence.reasons import Why
from equipoise.replay.importers.groups.observed import ClusterMember
from equipoise.replay.incident.causes import Cause

SOON_MS = 3_000
"""Lines of one rebalance follow each other within this time."""
MOST_PLACES = 6
THREAD_DIED = "its thread died of an exception"
"""Begins the detail of a member that was lost by that."""
CAUSES = {
    Why.ADDED: Cause.JOINED,
    Why.LEFT: Cause.LEFT,
    Why.EXPIRED: Cause.EXPIRED,
    Why.POLL_TIMEOUT: Cause.POLL_TIMEOUT,
    Why.STATIC: Cause.STATIC_BACK,
    Why.UPDATED: Cause.ASKED,
    Why.LEADER: Cause.ASKED,
    Why.NOT_SYNCED: Cause.LATE,
    Why.METADATA: Cause.PARTITIONS,
    Why.FOLLOW_UP: Cause.FOLLOW_UP,
    Why.PROBING: Cause.PROBING,
    Why.SUBSCRIBED: Cause.SUBSCRIBED,
    Why.UNKNOWN: Cause.UNSEEN,
}
"""NamedCause that a broker or a client gives -> cause."""
STRENGTH = (
    Cause.TWICE,
    Cause.POLL_TIMEOUT,
    Cause.EXPIRED,
    Cause.TOO_SLOW,
    Cause.RESTARTED,
    Cause.LEFT,
    Cause.COORDINATOR,
    Cause.STATIC_BACK,
    Cause.LATE,
    Cause.BACK,
    Cause.JOINED,
    Cause.TOPOLOGY,
    Cause.SUBSCRIBED,
    Cause.PARTITIONS,
    Cause.CONNECTORS,
    Cause.FIRST,
    Cause.ASKED,
    Cause.PROBING,
    Cause.FOLLOW_UP,
    Cause.UNSEEN,
)
"""Of several causes of one rebalance the first of these."""


@attrs.frozen
class NamedCause:
    """A cause of a rebalance, as one line names it. `member`: the one that it is about."""

    cause: Cause
    detail: str = ""
    member: ClusterMember | None = None


def strongest(reasons: Sequence[NamedCause]) -> NamedCause:
    """Returns the first of STRENGTH, with the first detail that is told of it."""
    cause = min((each.cause for each in reasons), key=STRENGTH.index)
    return NamedCause(cause, next((each.detail for each in reasons if each.cause is cause and each.detail), ""))


def observed(name: str, instance: str, client: str) -> ClusterMember:
    """A member by what a line says of it."""
    found = client or client_of(name)
    if instance and found == instance:
        found = ""
    return ClusterMember(member_id=name, instance_id=instance or None, client_id=found)


def merged_places(*parts: Iterable[str]) -> tuple[str, ...]:
    """Places, each once, and no more than MOST_PLACES."""
    return tuple(dict.fromkeys(place for part in parts for place in part))[:MOST_PLACES]
