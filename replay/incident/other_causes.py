"""Causes that fit what files say of a rebalance as well as the one that is told, and the file that
would decide.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import attrs

from equipoise.replay.importers.groups.observed import GroupKind
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.wording import span_text

_BACK_WITHIN_MS = 600_000
_MOST_NAMES = 3
NEW_ID = re.compile(r"[A-Za-z0-9_+/-]{22}(?:==)?")
"""A member id of KIP-848, which a process chooses when it begins and keeps until it ends."""
_NOT_POLLED = "did not poll within max.poll.interval.ms"


def with_undecided(told: Sequence[Rebalance], kind: GroupKind, with_logs: AbstractSet[str]) -> list[Rebalance]:
    """Returns the same rebalances, each with the causes that fit as well. `with_logs`: members
    whose own log is among the files.
    """
    joins: dict[str, list[int]] = {}
    for each in told:
        for name in each.joined:
            joins.setdefault(name, []).append(each.begin_ms)
    found: list[Rebalance] = []
    lost: dict[str, int] = {}
    """Member id of KIP-848 -> when it was gone."""
    for each in told:
        may_be: tuple[Cause, ...] = ()
        untold = ""
        if each.cause in (Cause.LEFT, Cause.RESTARTED) and not each.detail and not with_logs & set(each.members):
            may_be, untold = (Cause.POLL_TIMEOUT,), _left(each, _back_ms(each, joins))
        elif each.cause is Cause.EXPIRED and kind is GroupKind.CONSUMER and not with_logs & set(each.members):
            may_be, untold = (Cause.POLL_TIMEOUT,), _expired(each, _back_ms(each, joins))
        elif each.cause is Cause.GONE and each.detail and with_logs & set(each.members):
            may_be = (Cause.EXPIRED, Cause.LEFT)
            untold = "these files cannot tell whether it was killed, was cut off, or left; the log of the broker can"
        elif each.cause is Cause.JOINED and all(map(NEW_ID.fullmatch, each.joined)):
            others = [name for name, gone_ms in lost.items() if each.begin_ms - gone_ms <= _BACK_WITHIN_MS]
            if others and each.joined:
                may_be, untold = (Cause.BACK,), _joined(others)
        found.append(attrs.evolve(each, may_be=may_be, untold=untold) if untold else each)
        for name in each.joined:
            lost.pop(name, None)
        lost |= {name: each.begin_ms for name in each.gone if NEW_ID.fullmatch(name)}
    return found


def _back_ms(each: Rebalance, joins: dict[str, list[int]]) -> int:
    """Returns how long after it the same process of KIP-848 joined again; -1: it did not."""
    for name in each.members:
        times = joins.get(name, []) if NEW_ID.fullmatch(name) else []
        place = bisect_right(times, each.begin_ms)
        if place < len(times):
            return times[place] - each.begin_ms
    return -1


def _left(each: Rebalance, back_ms: int) -> str:
    if back_ms >= 0:
        return (
            f"the same process joined again {span_text(back_ms)} later, so it had not ended: it {_NOT_POLLED}, or it unsubscribed;"
            f" the log of {_few(each.members)} tells which"
        )
    return f"it gave no reason, so these files cannot tell whether it was closed or {_NOT_POLLED}; the log of {_few(each.members)} can"


def _expired(each: Rebalance, back_ms: int) -> str:
    reason = f"{_NOT_POLLED} (librdkafka sends no heartbeat then)"
    if back_ms >= 0:
        return (
            f"the same process joined again {span_text(back_ms)} later, so it was not killed: it stood still, was cut off, or {reason};"
            f" the log of {_few(each.members)} tells which"
        )
    return f"these files cannot tell whether it was killed, stood still, was cut off, or {reason}; the log of {_few(each.members)} can"


def _joined(others: Sequence[str]) -> str:
    return (
        f"these files cannot tell whether it is {_few(others)} that is back, because a process of KIP-848 chooses a new id when it begins:"
        " the members' logs can, or kafka-consumer-groups --describe --members"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (" or another" if len(names) > _MOST_NAMES else "") or "that member"
