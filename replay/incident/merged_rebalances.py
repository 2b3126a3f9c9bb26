"""Makes one list of the rebalances that brokers tell, and those that their clients tell."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import attrs

from equipoise.replay.incident.broker_story import LATE_MS
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.client_process import DealtWork, Departure
from equipoise.replay.incident.client_story import ClientStory
from equipoise.replay.incident.coordinator_outages import LONG_MS
from equipoise.replay.incident.named_causes import STRENGTH, merged_places, observed
from equipoise.replay.incident.other_causes import NEW_ID
from equipoise.replay.incident.rebalances import names_of
from equipoise.replay.wording import span_text

_CLOCK_MS = 2_000
_SAME_MS = 600_000
"""A generation's number comes again only later."""
_DEPARTED = {Cause.POLL_TIMEOUT: (15_000, 130_000), Cause.EXPIRED: (120_000, 15_000), Cause.LEFT: (15_000, 15_000), Cause.TWICE: (20_000, 60_000)}
"""What a client says of its departure -> how long before and after it its coordinator says so."""
_LEAST_SESSION_MS = 3_000
"""Shorter sessions are not in use."""
_TOLD_WITHIN_MS = 15_000
"""Members learn so soon that one has left."""
_MAY_BE_LATE = (Cause.UNSEEN, Cause.JOINED, Cause.BACK, Cause.LEFT, Cause.ASKED, Cause.PARTITIONS, Cause.SUBSCRIBED, Cause.FOLLOW_UP)
_MOST_STEPS = 3
"""Epochs of KIP-848 that a member may be behind, which its log does not say."""


def merged_rebalances(told: Sequence[Rebalance], clients: ClientStory) -> list[Rebalance]:
    """Rebalances of the broker's log, with the clients' own words, and those that only they saw."""
    seen = sorted(told, key=lambda each: each.begin_ms)
    rounds = _combined(clients)
    if not seen:
        return rounds
    found = _with_departures(seen, clients.departures)
    numbers: dict[int, list[int]] = {}
    for index, each in enumerate(found):
        numbers.setdefault(each.number, []).append(index)
    from_ms, until_ms = found[0].begin_ms, max(each.end_ms for each in found)
    alone: list[Rebalance] = []
    begins = [each.begin_ms for each in seen]
    for each in rounds:
        near = [index for index in numbers.get(each.number, ()) if abs(found[index].end_ms - each.end_ms) <= _SAME_MS]
        if not each.number:  # librdkafka does not say which generation
            near = [
                index
                for index in range(bisect_left(begins, each.begin_ms - _CLOCK_MS), bisect_right(begins, each.begin_ms + _CLOCK_MS))
                if found[index].cause is Cause.UNSEEN
            ]
        if near:
            index = min(near, key=lambda one: abs(found[one].end_ms - each.end_ms))
            found[index] = _both(found[index], each)
        elif not from_ms - _CLOCK_MS <= each.begin_ms <= until_ms + _CLOCK_MS and each.cause is not Cause.TWICE:
            alone.append(each)
    return sorted([*found, *alone], key=lambda each: (each.begin_ms, each.number))


_UPGRADED = (Cause.LEFT, Cause.EXPIRED, Cause.RESTARTED, Cause.UNSEEN, Cause.GONE, Cause.POLL_TIMEOUT)
"""What a broker takes a poll timeout for, that does not know it."""


def _both(broker: Rebalance, client: Rebalance) -> Rebalance:
    """A rebalance of the broker's log: its reason stands, unless it gives none."""
    places = merged_places(broker.places, client.places)
    if broker.cause is Cause.UNSEEN and broker.number == 1 and client.cause is Cause.JOINED:
        return attrs.evolve(broker, cause=Cause.FIRST, members=client.members, joined=client.joined, detail="", places=places)
    if broker.cause is Cause.UNSEEN and client.cause not in (Cause.UNSEEN, Cause.COORDINATOR):
        return attrs.evolve(broker, cause=client.cause, members=client.members, detail=client.detail, places=places)
    if broker.cause is Cause.LATE and client.cause is Cause.LATE:
        return attrs.evolve(broker, members=client.members, detail=client.detail, places=places)
    if broker.cause is Cause.ASKED and client.cause in (Cause.PARTITIONS, Cause.SUBSCRIBED, Cause.FOLLOW_UP, Cause.PROBING):
        return attrs.evolve(broker, cause=client.cause, detail=client.detail, places=places)
    return attrs.evolve(broker, places=places)


def _with_departures(told: Sequence[Rebalance], departures: Sequence[Departure]) -> list[Rebalance]:
    """The broker's rebalances; where it saw a member go, what that client said of it."""
    found = list(told)
    by_name: dict[str, list[tuple[int, int]]] = {}
    for index, each in enumerate(found):
        for name in {*each.gone, *(each.members if each.cause in (Cause.STATIC_BACK, Cause.TWICE) else ())}:
            by_name.setdefault(name, []).append((each.begin_ms, index))
    unexplained = {each.number: index for index, each in enumerate(found) if each.cause is Cause.UNSEEN and each.number > 0}
    for left in departures:
        before_ms, after_ms = _DEPARTED.get(left.cause, (0, 0))
        seen = by_name.get(left.client) or by_name.get(left.member) or []
        place = bisect_left(seen, (left.at_ms - before_ms, 0))
        near = [index for begin_ms, index in seen[place : place + 5] if begin_ms <= left.at_ms + after_ms]
        if not near and left.cause is Cause.POLL_TIMEOUT:
            near = _unnamed(found, left)
        if not near and left.number >= 0 and (index := unexplained.get(left.number + 1, -1)) >= 0 and _explains(found[index], left):
            members = tuple(sorted({*found[index].members, left.client}))
            places = merged_places(found[index].places, (left.place,))
            found[index] = attrs.evolve(found[index], cause=left.cause, members=members, gone=members, detail=left.detail, places=places)
            continue
        if not near:
            continue
        index = min(near, key=lambda one: abs(found[one].begin_ms - left.at_ms))
        one = found[index]
        places = merged_places(one.places, (left.place,))
        was_expired = one.cause is Cause.EXPIRED and left.at_ms > one.begin_ms + _CLOCK_MS  # a process that stood still, and woke up
        if left.cause is Cause.POLL_TIMEOUT and one.cause in _UPGRADED and not was_expired:
            found[index] = attrs.evolve(one, cause=Cause.POLL_TIMEOUT, members=(left.client,), detail=one.detail or left.detail, places=places)
        elif left.cause is Cause.TWICE and one.cause in (Cause.STATIC_BACK, Cause.TWICE):
            found[index] = attrs.evolve(one, cause=Cause.TWICE, detail=left.detail, places=places)
        elif left.cause is one.cause:
            found[index] = attrs.evolve(one, places=places, detail=one.detail or left.detail)
    return found


def _explains(one: Rebalance, left: Departure) -> bool:
    """Returns whether a client's departure explains a rebalance for which its broker gave no
    reason, or what another client said already.
    """
    if one.cause is not Cause.UNSEEN and (one.cause is not left.cause or set(one.gone) != set(one.members)):
        return False
    if left.cause in (Cause.LEFT, Cause.POLL_TIMEOUT):
        return -_CLOCK_MS <= one.begin_ms - left.at_ms <= _CLOCK_MS
    return left.cause is Cause.EXPIRED and left.heard_ms + _LEAST_SESSION_MS <= one.begin_ms <= left.at_ms + _CLOCK_MS


def _unnamed(told: Sequence[Rebalance], departure: Departure) -> list[int]:
    """The first rebalance after it, by which a member without a client id was lost: ids of KIP-848
    do not say which client it is.
    """
    near = [
        index
        for index, each in enumerate(told)
        if each.gone
        and each.cause in (Cause.LEFT, Cause.EXPIRED)
        and -_CLOCK_MS <= each.begin_ms - departure.at_ms <= 60_000
        and all(map(NEW_ID.fullmatch, each.gone))
    ]
    return near[:1]


def _combined(clients: ClientStory) -> list[Rebalance]:
    """One rebalance for the rounds of all clients that led to the same generation."""
    clusters: list[list[Rebalance]] = []
    in_cluster: list[set[str]] = []
    by_number: dict[int, int] = {}
    for process, each in sorted(clients.found, key=lambda one: (one[1].end_ms, one[1].begin_ms)):
        index = by_number.get(each.number)
        if clients.slow:  # epochs of KIP-848 are those of members, one step behind at some of them: time decides
            index = len(clusters) - 1 if clusters and each.begin_ms <= max(one.end_ms for one in clusters[-1]) + _CLOCK_MS else None
        fits = index is not None and (each.number > 0 or bool(clients.slow)) and not each.gone and not clusters[index][0].gone
        fits = fits and index is not None and each.end_ms - clusters[index][0].end_ms <= _SAME_MS
        if index is not None and fits and process.name not in in_cluster[index]:
            clusters[index].append(each)
            in_cluster[index].add(process.name)
            if process.instance and any(
                other.instance == process.instance and other.name in in_cluster[index] for other in clients.processes.values() if other is not process
            ):
                clusters[index][-1] = attrs.evolve(each, cause=Cause.TWICE, members=(process.instance,), detail="they are in one generation")
        else:
            by_number[each.number] = len(clusters)
            clusters.append([each])
            in_cluster.append({process.name})
    dealt = {each.number: each for each in clients.dealt}
    departed: dict[int, list[Departure]] = {}
    for left in clients.departures:
        departed.setdefault(left.number, []).append(left)
    taken: set[str] = set()
    made: list[Rebalance] = []
    for cluster, processes in zip(clusters, in_cluster, strict=True):
        one = _late(_one_of(cluster), processes, clients)
        if one.cause is Cause.UNSEEN or (one.cause is Cause.COORDINATOR and one.took_ms < LONG_MS):
            steps = range(_MOST_STEPS + 1) if clients.slow else (1,)
            near = [each for step in steps for each in departed.get(one.number - step, ()) if each.place not in taken]
            cause = next((each for each in near if _may_begin(one, each)), None)
            if cause is not None:
                taken.add(cause.place)
                one = attrs.evolve(
                    one,
                    cause=cause.cause,
                    members=(cause.client,),
                    gone=(cause.client,),
                    detail=cause.detail,
                    places=merged_places((cause.place,), one.places),
                    begin_ms=min(one.begin_ms, cause.at_ms),
                )
            elif one.number - 1 in dealt and one.number in dealt:
                one = _by_dealt(one, dealt[one.number - 1], dealt[one.number])
        made.append(one)
    # a client that was out is in again: what put it out is told by the others already
    told = [one for one, cluster in zip(made, clusters, strict=True) if not (cluster[0].gone and set(cluster[0].places) & taken)]
    back = [
        attrs.evolve(one, cause=Cause.BACK, begin_ms=one.end_ms, detail="")
        if one.cause in (Cause.POLL_TIMEOUT, Cause.EXPIRED) and not one.gone and any(place in taken for place in one.places)
        else one
        for one in told
    ]
    return sorted(back, key=lambda each: (each.begin_ms, each.number))


def _late(one: Rebalance, processes: AbstractSet[str], clients: ClientStory) -> Rebalance:
    """Names the member that asked to join long after a rebalance had begun: it was busy."""
    asked_ms = {name: clients.asked_ms.get((name, one.number), 0) for name in processes}
    name = max(asked_ms, key=lambda each: (asked_ms[each], each), default="")
    if not name or asked_ms[name] - one.begin_ms < LATE_MS or one.cause not in _MAY_BE_LATE:
        return one
    who = clients.processes[name].shown
    whose = f" ({', '.join(one.members)})" if one.members else ""
    began = f"; it began when {one.cause.value}{whose}" if one.cause is not Cause.UNSEEN else ""
    detail = f"the rebalance waited {span_text(asked_ms[name] - one.begin_ms)} for {who}, which was busy{began}"
    return attrs.evolve(one, cause=Cause.LATE, members=(who,), detail=detail)


def _may_begin(one: Rebalance, left: Departure) -> bool:
    """Returns whether a client's departure may have begun a rebalance that others tell: it was a
    member until then, and says so soon if it left. One that was put out says it when it is back.
    """
    least_ms = _LEAST_SESSION_MS if left.cause in (Cause.EXPIRED, Cause.GONE) else 0
    if abs(left.at_ms - one.begin_ms) > _SAME_MS or left.heard_ms + least_ms > one.begin_ms:
        return False
    return left.cause is not Cause.LEFT or one.begin_ms - _TOLD_WITHIN_MS <= left.at_ms <= one.end_ms + _CLOCK_MS


def _by_dealt(one: Rebalance, before: DealtWork, after: DealtWork) -> Rebalance:
    """Returns who is in the leader's assignment, and was not in the one before, or the other way
    round.
    """
    both = (before.work.keys() - after.work.keys(), after.work.keys() - before.work.keys())
    gone, joined = ([observed(name, "", "") for name in sorted(each)] for each in both)
    places = merged_places(one.places, (after.place,))
    if gone and not joined:
        return attrs.evolve(one, cause=Cause.GONE, members=names_of(gone), gone=names_of(gone), places=places)
    if joined and not gone:
        return attrs.evolve(one, cause=Cause.JOINED, members=names_of(joined), joined=names_of(joined), places=places)
    if gone and joined:
        same = set(names_of(gone)) & set(names_of(joined))
        cause = Cause.RESTARTED if same else Cause.GONE
        return attrs.evolve(
            one, cause=cause, members=tuple(sorted(same)) or names_of(gone), gone=names_of(gone), joined=names_of(joined), places=places
        )
    return one


def _one_of(cluster: Sequence[Rebalance]) -> Rebalance:
    best = min(cluster, key=lambda each: (STRENGTH.index(each.cause) if each.cause in STRENGTH else 99, each.begin_ms))
    if len(cluster) == 1:
        return best
    same = [each for each in cluster if each.cause is best.cause]
    return attrs.evolve(
        best,
        begin_ms=min(each.begin_ms for each in cluster),
        end_ms=max(each.end_ms for each in cluster),
        members=tuple(sorted({name for each in same for name in each.members})),
        joined=tuple(sorted({name for each in cluster for name in each.joined})),
        gone=tuple(sorted({name for each in cluster for name in each.gone})),
        places=merged_places(*(each.places for each in [best, *cluster])),
    )
