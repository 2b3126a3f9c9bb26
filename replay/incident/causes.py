"""Tells what rebalances begin with, and a rebalance."""

from __future__ import annotations

import enum

import attrs


class Cause(enum.StrEnum):
    """Says what a rebalance began with. In the order in which they are preferred: what came with a
    member that is gone explains more than what came with one that joined.
    """

    EXPIRED = "a member was not heard of for its session timeout"
    POLL_TIMEOUT = "a member did not poll within max.poll.interval.ms"
    RESTARTED = "a member left and is back"
    LEFT = "a member left"
    GONE = "a member is gone: it left, or was not heard of"
    BACK = "a member is back"
    JOINED = "a member joined"
    SUBSCRIBED = "members subscribed to other topics"
    TOPOLOGY = "the topology changed"
    PARTITIONS = "topics got partitions, or were made or deleted"
    PROBING = "Kafka Streams looked whether copies are ready"
    FOLLOW_UP = "work that was revoked in the round before is given out"
    DELAY_OVER = "Kafka Connect's rebalance delay was over"
    STATIC_BACK = "a static member is back under its instance id"
    ASKED = "a member asked to join again"
    FIRST = "the group began"
    TWICE = "two processes use one group.instance.id"
    LATE = "members were long in joining a rebalance"
    TOO_SLOW = "a member did not give up its work in time"
    COORDINATOR = "the group's coordinator was away, or is another broker"
    ADOPTED = "members of equipoise took the group over (equipoise migrate --to members)"
    CONNECTORS = "connectors or tasks were made, changed or deleted"
    UNSEEN = "a rebalance was begun by something that is not in these files"
    NOTHING = "work stood still without a rebalance"
    UNCOMMITTED = "members have partitions with records, and never committed"
    OUTSIDE = "offsets were committed by somebody outside the group"


FOLLOWS = (Cause.FOLLOW_UP, Cause.PROBING, Cause.DELAY_OVER)
"""Causes of rebalances that an earlier one has asked for."""


@attrs.frozen(kw_only=True)
class Rebalance:
    """`number`: generation, or group epoch. `members`: those that the cause is about. `stopped_ms`:
    how long before the rebalance they had last committed, -1: unknown. `moved`: work with another
    owner than before. `unowned`: work that had an owner before and has none. `given`: work that has
    an owner and had none. `changed`: work with another owner than its last one, of `moved` and
    `given`. `ends_ms`: when every member had its part. `lost_state`: processes of Kafka Streams
    that are back with another process id, which is kept in the state directory. `is_static`: all
    that are gone have an instance id. `detail`: more about the cause. `places`: the lines it rests
    on, as ``server.log:12``; (): it was worked out from a recording. `may_be`: causes that fit the
    files as well. `untold`: why these files cannot decide, and which would. `told_by`: members
    that `detail` names beside those.
    """

    number: int
    begin_ms: int
    end_ms: int
    cause: Cause
    members: tuple[str, ...]
    stopped_ms: int = -1
    joined: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    unowned: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    lost_state: tuple[str, ...] = ()
    is_static: bool = False
    detail: str = ""
    places: tuple[str, ...] = ()
    may_be: tuple[Cause, ...] = ()
    untold: str = ""
    told_by: tuple[str, ...] = ()

    @property
    def took_ms(self) -> int:
        """Returns how long it took, as far as the coordinator stored it."""
        return self.end_ms - self.begin_ms
