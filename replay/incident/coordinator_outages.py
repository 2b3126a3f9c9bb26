"""Spans in which clients could not reach the coordinator of their group."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.named_causes import merged_places
from equipoise.replay.wording import span_text

LEAST_MS = 1_000
"""An orderly move of the coordinator is over sooner."""
LONG_MS = 3_000
"""A client that was out of its group after a longer outage may have been put out because of it."""
_CLOCK_MS = 2_000
_LOADED_WITHIN_MS = 60_000
"""A coordinator is loaded so long after the first client had lost the one before, at most."""


@attrs.frozen(kw_only=True)
class Outage:
    """`client`: who could not reach its coordinator; `number`: its generation; `is_over`: it says
    when it could again.
    """

    begin_ms: int
    end_ms: int
    client: str
    number: int
    places: tuple[str, ...]
    is_over: bool = True


def with_outages(told: Sequence[Rebalance], outages: Sequence[Outage]) -> list[Rebalance]:
    """Returns the rebalances, with what the clients say of their coordinator: in those that it
    began with, in those by which one of these clients was lost, and on its own.
    """
    found = list(told)
    for outage in _merged(outages):
        long = [index for index, each in enumerate(found) if _is_of(each, outage)]
        gone = [index for index, each in enumerate(found) if not long and _lost(each, outage)]
        for index in long:
            found[index] = _widened(found[index], outage)
        for index in gone:
            detail = found[index].detail or f"it could not reach its coordinator for {_length(outage)}"
            found[index] = attrs.evolve(found[index], detail=detail, places=merged_places(found[index].places, outage.places))
        if not long and not gone:
            found.append(_alone(outage))
    return sorted(found, key=lambda each: (each.begin_ms, each.number))


def _merged(outages: Sequence[Outage]) -> list[Outage]:
    """Joins those that overlap, and leaves out short ones."""
    found: list[Outage] = []
    for each in sorted((one for one in outages if one.end_ms - one.begin_ms >= LEAST_MS), key=lambda one: one.begin_ms):
        if found and each.begin_ms <= found[-1].end_ms:
            last = found[-1]
            clients = ", ".join(dict.fromkeys([*last.client.split(", "), each.client]))
            is_over = last.is_over or each.is_over
            found[-1] = attrs.evolve(
                last, end_ms=max(last.end_ms, each.end_ms), client=clients, places=merged_places(last.places, each.places), is_over=is_over
            )
        else:
            found.append(each)
    return found


def _is_of(each: Rebalance, outage: Outage) -> bool:
    """Returns whether a rebalance began with this outage: the client tells it, or its coordinator
    was loaded then.
    """
    if each.cause is not Cause.COORDINATOR:
        return False
    return each.begin_ms <= max(outage.end_ms, outage.begin_ms + _LOADED_WITHIN_MS) + _CLOCK_MS and each.end_ms >= outage.begin_ms - _CLOCK_MS


def _lost(each: Rebalance, outage: Outage) -> bool:
    is_then = outage.begin_ms - _CLOCK_MS <= each.begin_ms <= outage.end_ms + _CLOCK_MS
    return each.cause is Cause.EXPIRED and is_then and bool(set(each.gone) & set(outage.client.split(", ")))


def _widened(each: Rebalance, outage: Outage) -> Rebalance:
    return attrs.evolve(
        each,
        begin_ms=min(each.begin_ms, outage.begin_ms),
        end_ms=max(each.end_ms, outage.end_ms),
        detail=each.detail or _told(outage),
        told_by=tuple(outage.client.split(", ")),
        places=merged_places(outage.places[:2], each.places, outage.places),
    )


def _alone(outage: Outage) -> Rebalance:
    return Rebalance(
        number=max(0, outage.number),
        begin_ms=outage.begin_ms,
        end_ms=outage.end_ms,
        cause=Cause.COORDINATOR,
        members=(),
        detail=_told(outage),
        places=outage.places,
        told_by=tuple(outage.client.split(", ")),
    )


def _told(outage: Outage) -> str:
    return f"{outage.client} could not reach it for {_length(outage)}"


def _length(outage: Outage) -> str:
    return f"{'' if outage.is_over else 'at least '}{span_text(outage.end_ms - outage.begin_ms)}"
