"""Incidents: a rebalance that something began, those that followed from it, what stood still
meanwhile, and what would have avoided it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from equipoise.replay.importers.groups.observed import GroupKind
from equipoise.replay.incident.causes import FOLLOWS, Cause, Rebalance
from equipoise.replay.incident.client_advice import advice_of
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.long_restores import restores
from equipoise.replay.incident.planned_causes import changes_meanwhile
from equipoise.replay.incident.rebalance_loops import Loop, with_loops
from equipoise.replay.incident.rebalances import name_of, rebalances
from equipoise.replay.incident.unavailable import Gap, gaps
from equipoise.replay.incident.values import Incident
from equipoise.replay.known_changes import KnownChange
from equipoise.replay.timelines.history_costs import ROLLING_MS

TOGETHER_MS = 10_000
"""Members that join or leave so soon after each other do so in one incident."""
_SEEN_AFTER_MS = 8_000
"""A rebalance is recorded so long after it began, at most, when no member is missed: the time in
which all members learn of it and join, and a commit interval.
"""
OUTSIDE_AFTER_MS = 10_000
"""Commits that come so soon after a member lost a partition are the last of it."""
LEAST_ALONE_MS = 5_000
"""Work that stood still without a rebalance is told from here on: a slow batch is no incident."""
LEAST_UNCOMMITTED_MS = 60_000
"""A group that has just begun commits within this time: Kafka Streams does each 30 s."""
_MOST_BEFORE = 50
"""Of earlier incidents, the last."""
_RESTARTS = (Cause.EXPIRED, Cause.LEFT, Cause.GONE, Cause.RESTARTED, Cause.STATIC_BACK)
"""What a deployment looks like; a member that does not poll is none."""


def incidents(history: GroupHistory, from_ms: int = 0, until_ms: int = 2**62, changes: Sequence[KnownChange] = ()) -> list[Incident]:
    """Returns the incidents that touch a span of time, in order. `changes`: those of the group that
    equipoise's log has.
    """
    chains: list[list[Rebalance]] = []
    for each in rebalances(history):
        if chains and (each.cause in FOLLOWS or _belongs(chains[-1], each)):
            chains[-1].append(each)
        else:
            chains.append([each])
    looped = with_loops(chains)
    chains = [chain for chain, _ in looped]
    shares: list[list[Gap]] = [[] for _ in chains]
    without: list[Gap] = []
    places = _Places(chains)
    for gap in gaps(history):
        index = places.chain_of(gap)
        (without if index is None else shares[index]).append(gap)
    found = [_incident(chain, loop, share) for (chain, loop), share in zip(looped, shares, strict=True)]
    found += _without_rebalance(history, without) + _uncommitted(history) + _outside(history)
    found.sort(key=lambda incident: incident.begin_ms)
    found = [
        attrs.evolve(each, restores=tuple(restores(history, each.gaps))) if each.gaps and each.cause is not Cause.UNCOMMITTED else each
        for each in found
    ]
    kind = history.states[-1].group.kind if history.states else GroupKind.OTHER
    told: list[Incident] = []
    costs: dict[Cause, list[int]] = {}
    for one, rolls in zip(found, _rolling(found), strict=True):
        before = costs.setdefault(one.cause, [])
        if one.begin_ms <= until_ms and one.end_ms >= from_ms:
            first_ms = one.chain[0].begin_ms if one.chain else one.begin_ms + TOGETHER_MS
            meanwhile = changes_meanwhile(changes, one.cause, one.begin_ms, first_ms, one.end_ms)
            known = attrs.evolve(one, is_rolling=rolls, before=tuple(before[-_MOST_BEFORE:]), changes=meanwhile)
            told.append(attrs.evolve(known, advice=tuple(advice_of(history, kind, known, is_rolling=rolls))))
        before.append(one.unavailable_ms)
    return told


def _belongs(chain: list[Rebalance], each: Rebalance) -> bool:
    """Returns whether a rebalance is of the same incident: more threads of a process, processes
    that were started or stopped together, or a member that asks again and again.
    """
    first, last = chain[0], chain[-1]
    if each.cause is Cause.ASKED:
        return each.begin_ms - last.end_ms <= TOGETHER_MS
    return each.begin_ms - first.end_ms <= TOGETHER_MS and (each.cause is first.cause or first.cause is Cause.FIRST)


class _Places:
    """Finds the chain that made work stand still, by time."""

    def __init__(self, chains: Sequence[Sequence[Rebalance]]) -> None:
        self._chains = chains
        flat = sorted(((each.begin_ms, each.end_ms, number) for number, chain in enumerate(chains) for each in chain), key=lambda one: one[:1])
        self._flat = flat
        self._ends = list(itertools.accumulate((end_ms for _, end_ms, _ in flat), max))

    def chain_of(self, gap: Gap) -> int | None:
        """The first that overlaps, or the one that was just over when the gap began, if the next
        had not begun then; None: it was no rebalance.
        """
        index = None
        for begin_ms, end_ms, number in itertools.islice(self._flat, bisect_left(self._ends, gap.from_ms), None):
            if begin_ms > gap.until_ms:
                break
            if end_ms >= gap.from_ms:
                index = number
                break
        if not index:
            return index
        before, after = self._chains[index - 1][-1], self._chains[index][0]
        is_of_before = gap.from_ms - before.end_ms <= TOGETHER_MS and gap.from_ms < after.begin_ms - max(after.stopped_ms, _SEEN_AFTER_MS)
        return index - 1 if is_of_before else index


def _incident(chain: list[Rebalance], loop: Loop | None, mine: list[Gap]) -> Incident:
    first = chain[0]
    cause = first.cause if loop is None else loop.cause
    return Incident(
        begin_ms=min([first.begin_ms - max(0, first.stopped_ms), *(gap.from_ms for gap in mine)]),
        end_ms=max([chain[-1].end_ms, *(gap.until_ms for gap in mine)]),
        cause=cause,
        members=tuple(sorted({name for each in chain if each.cause is cause for name in each.members})) if loop is None else loop.members,
        chain=tuple(chain),
        gaps=tuple(mine),
        is_static=first.is_static,
        loop=loop,
    )


def _without_rebalance(history: GroupHistory, alone: list[Gap]) -> list[Incident]:
    """Gaps that no rebalance explains, those together that overlap."""
    found: list[list[Gap]] = []
    for gap in alone:
        if not gap.is_long:
            continue
        if found and gap.from_ms <= max(each.until_ms for each in found[-1]):
            found[-1].append(gap)
        else:
            found.append([gap])
    told = [each for each in found if max(gap.unavailable_ms for gap in each) >= LEAST_ALONE_MS]
    return [
        Incident(
            begin_ms=each[0].from_ms,
            end_ms=max(gap.until_ms for gap in each),
            cause=Cause.NOTHING,
            members=(owners := _owners(history, each)),
            chain=(),
            gaps=tuple(each),
            whose=owners,
        )
        for each in told
    ]


def _uncommitted(history: GroupHistory) -> list[Incident]:
    """Partitions that members have had for LEAST_UNCOMMITTED_MS, to which records came, and of
    which there is no commit at all. What these members do with the records nobody can know.
    """
    spans: dict[str, tuple[int, int]] = {}
    last_ms = max(history.end_times_ms, default=0)
    for state, after in itertools.zip_longest(history.states, history.states[1:]):
        for work in state.group.owners:
            for partition in state.group.partitions_of(work):
                if partition not in history.commits:
                    spans[partition] = spans.get(partition, (state.at_ms, 0))[0], last_ms if after is None else after.at_ms
    found: list[Gap] = []
    for partition, (from_ms, until_ms) in sorted(spans.items()):
        ends = [history.end_of(partition, at_ms) for at_ms in (from_ms, until_ms)]
        came = (ends[1] or 0) - (history.first_end(partition) if ends[0] is None else ends[0])
        if until_ms - from_ms >= LEAST_UNCOMMITTED_MS and came > 0:
            found.append(Gap(partition, from_ms, until_ms, until_ms - from_ms, came, came, is_long=True))
    if not found:
        return []
    owners = _owners(history, found)
    begin_ms, end_ms = min(each.from_ms for each in found), max(each.until_ms for each in found)
    return [Incident(begin_ms=begin_ms, end_ms=end_ms, cause=Cause.UNCOMMITTED, members=owners, chain=(), gaps=tuple(found), whose=owners)]


def _owners(history: GroupHistory, gaps: Sequence[Gap]) -> tuple[str, ...]:
    """Names of the members that had these partitions."""
    found: set[str] = set()
    for gap in gaps:
        group = history.state_at(gap.from_ms)
        for work, who in group.owners.items() if group is not None else ():
            if group is not None and gap.partition in group.partitions_of(work):
                found.update(name_of(group.members[name]) for name in who)
    return tuple(sorted(found))


def _outside(history: GroupHistory) -> list[Incident]:
    """Spans in which commits of partitions that no member had went on: a process that was removed
    and works on, or one that was assigned its partitions by hand.
    """
    spans = [
        (times[0], times[-1])
        for partition, from_ms, until_ms in _unowned(history)
        if len(times := _progress(history.commits.get(partition, []), from_ms + OUTSIDE_AFTER_MS, until_ms)) > 1
    ]
    found: list[tuple[int, int]] = []
    for from_ms, until_ms in sorted(spans):
        if found and from_ms <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until_ms)
        else:
            found.append((from_ms, until_ms))
    return [Incident(begin_ms=begin_ms, end_ms=end_ms, cause=Cause.OUTSIDE, members=(), chain=(), gaps=()) for begin_ms, end_ms in found]


def _progress(commits: list[tuple[int, int]], from_ms: int, until_ms: int) -> list[int]:
    """Times of the commits within a span that are further than the one before."""
    begin, end = (bisect_left(commits, (each, 0)) for each in (from_ms, until_ms))
    return [at_ms for (_, before), (at_ms, committed) in pairwise(commits[max(0, begin - 1) : end]) if committed > before]


def _unowned(history: GroupHistory) -> list[tuple[str, int, int]]:
    """Partition, begin and end of the spans in which no member of a group of consumers had it."""
    found: list[tuple[str, int, int]] = []
    since: dict[str, int] = {}
    for state in history.states:
        if state.group.kind not in (GroupKind.CLASSIC_CONSUMER, GroupKind.CONSUMER):
            return []
        owned = state.group.owners.keys()
        found += [(partition, since.pop(partition), state.at_ms) for partition in list(since) if partition in owned]
        for partition in history.commits.keys() - owned - since.keys():
            since[partition] = state.at_ms
    return found + [(partition, from_ms, 2**62) for partition, from_ms in since.items()]


def _rolling(found: list[Incident]) -> list[bool]:
    """For each incident, whether it is a restart with another member's restart soon before or
    after.
    """
    backs: dict[str, list[int]] = {}
    for each in found:
        for name in each.members if each.cause is Cause.BACK else ():
            backs.setdefault(name, []).append(each.begin_ms)
    restarts = [(index, each) for index, each in enumerate(found) if each.cause in _RESTARTS and each.loop is None and _is_back(each, backs)]
    rolls: set[int] = set()
    other = -1
    """The last restart of other members."""
    for place, (index, each) in enumerate(restarts):
        if place and restarts[place - 1][1].members != each.members:
            other = place - 1
        if other >= 0 and each.begin_ms - restarts[other][1].begin_ms <= ROLLING_MS:
            rolls |= {index, restarts[other][0]}
    other = -1
    for place in range(len(restarts) - 1, -1, -1):
        index, each = restarts[place]
        if place + 1 < len(restarts) and restarts[place + 1][1].members != each.members:
            other = place + 1
        if other >= 0 and restarts[other][1].begin_ms - each.begin_ms <= ROLLING_MS:
            rolls.add(index)
    return [index in rolls for index in range(len(found))]


def _is_back(incident: Incident, backs: Mapping[str, Sequence[int]]) -> bool:
    """Returns whether a member that stopped joined again, in this incident or soon after."""
    stopped = set(incident.members)
    if any(stopped & set(each.joined) for each in incident.chain):
        return True
    for name in stopped:
        times = backs.get(name, ())
        place = bisect_left(times, incident.begin_ms)
        if place < len(times) and times[place] - incident.end_ms <= ROLLING_MS:
            return True
    return False
