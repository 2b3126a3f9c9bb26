"""Incidents: a rebalance that something began, those that followed from it, what stood still
meanwhile, and what would have avoided it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from itertools import pairwise

import attrs

from equipoise.replay.importers.groups.observed import GroupKind, kind_is_classic
from equipoise.replay.incident.history import GroupHistory
from equipoise.replay.incident.rebalances import FOLLOWS, Cause, Rebalance, rebalances
from equipoise.replay.incident.restores import Restore, restores
from equipoise.replay.incident.unavailable import Gap, gaps
from equipoise.replay.timelines.costs import ROLLING_MS

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
_MANY = 20
"""As many rebalances that a member asked for, one after the other, are a loop."""
_FOR_A_MEDIAN = 3
_LEAST_USUAL_MS = 1_000
_STOPS = (Cause.EXPIRED, Cause.LEFT, Cause.GONE, Cause.RESTARTED, Cause.STATIC_BACK, Cause.POLL_TIMEOUT)


@attrs.frozen(kw_only=True)
class Incident:
    """`chain`: its rebalances, the one that it began with first; () where work stood still without
    one. `unavailable_ms`: summed over partitions. `is_rolling`: one of several members stopped
    after the other, and came back: a deployment. `before`: what earlier incidents of the same
    cause had cost (ms), to see what is unusual. `is_static`: those who stopped have instance ids.
    `restores`: tasks that took long from their assignment to their first commit.
    """

    begin_ms: int
    end_ms: int
    cause: Cause
    members: tuple[str, ...]
    chain: tuple[Rebalance, ...]
    gaps: tuple[Gap, ...]
    is_rolling: bool = False
    is_static: bool = False
    before: tuple[int, ...] = ()
    restores: tuple[Restore, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def unavailable_ms(self) -> int:
        return sum(gap.unavailable_ms for gap in self.gaps)

    @property
    def is_unusual(self) -> bool:
        """Whether it cost more than twice the median of those before, of which there are three or
        more.
        """
        return len(self.before) >= _FOR_A_MEDIAN and self.unavailable_ms > 2 * max(_LEAST_USUAL_MS, statistics.median(self.before))

    @property
    def moved(self) -> int:
        """Changes of owner, of all rebalances."""
        return sum(len(each.moved) + len(each.unowned) for each in self.chain)


def incidents(history: GroupHistory, from_ms: int = 0, until_ms: int = 2**62) -> list[Incident]:
    """Returns the incidents that touch a span of time, in order."""
    chains: list[list[Rebalance]] = []
    for each in rebalances(history):
        if chains and (each.cause in FOLLOWS or _belongs(chains[-1], each)):
            chains[-1].append(each)
        else:
            chains.append([each])
    shares: list[list[Gap]] = [[] for _ in chains]
    without: list[Gap] = []
    for gap in gaps(history):
        index = _chain_of(gap, chains)
        (without if index is None else shares[index]).append(gap)
    found = [_incident(chain, share) for chain, share in zip(chains, shares, strict=True)] + _without_rebalance(without) + _outside(history)
    found = [attrs.evolve(each, restores=tuple(restores(history, each.gaps))) for each in sorted(found, key=lambda incident: incident.begin_ms)]
    kind = history.states[-1].group.kind if history.states else GroupKind.OTHER
    return [
        attrs.evolve(
            each,
            is_rolling=rolls,
            before=tuple(other.unavailable_ms for other in found[:index] if other.cause is each.cause),
            advice=tuple(_advice(kind, each, is_rolling=rolls)),
        )
        for index, (each, rolls) in enumerate(zip(found, _rolling(found), strict=True))
        if each.begin_ms <= until_ms and each.end_ms >= from_ms
    ]


def _belongs(chain: list[Rebalance], each: Rebalance) -> bool:
    """Whether a rebalance is of the same incident: more threads of a process, processes that were
    started or stopped together, or a member that asks again and again.
    """
    first, last = chain[0], chain[-1]
    if each.cause is Cause.ASKED:
        return each.begin_ms - last.end_ms <= TOGETHER_MS
    return each.begin_ms - first.end_ms <= TOGETHER_MS and (each.cause is first.cause or first.cause is Cause.FIRST)


def _chain_of(gap: Gap, chains: list[list[Rebalance]]) -> int | None:
    """The chain that made work stand still: the first that overlaps, or the one that was just over
    when it began, if the next had not begun then; None: it was no rebalance.
    """
    index = next((number for number, chain in enumerate(chains) if any(_overlap(gap, each) for each in chain)), None)
    if not index:
        return index
    before, after = chains[index - 1][-1], chains[index][0]
    is_of_before = gap.from_ms - before.end_ms <= TOGETHER_MS and gap.from_ms < after.begin_ms - max(after.stopped_ms, _SEEN_AFTER_MS)
    return index - 1 if is_of_before else index


def _overlap(gap: Gap, rebalance: Rebalance) -> bool:
    return gap.from_ms <= rebalance.end_ms and gap.until_ms >= rebalance.begin_ms


def _incident(chain: list[Rebalance], mine: list[Gap]) -> Incident:
    first = chain[0]
    return Incident(
        begin_ms=min([first.begin_ms - max(0, first.stopped_ms), *(gap.from_ms for gap in mine)]),
        end_ms=max([chain[-1].end_ms, *(gap.until_ms for gap in mine)]),
        cause=first.cause,
        members=tuple(sorted({name for each in chain if each.cause is first.cause for name in each.members})),
        chain=tuple(chain),
        gaps=tuple(mine),
        is_static=first.is_static,
    )


def _without_rebalance(alone: list[Gap]) -> list[Incident]:
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
            begin_ms=each[0].from_ms, end_ms=max(gap.until_ms for gap in each), cause=Cause.NOTHING, members=(), chain=(), gaps=tuple(each)
        )
        for each in told
    ]  # fmt: skip


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
    restarts = [(index, each) for index, each in enumerate(found) if each.cause in _STOPS and _is_back(each, found[index + 1 :])]
    rolls = {
        index
        for index, each in restarts
        if any(other.members != each.members and abs(other.begin_ms - each.begin_ms) <= ROLLING_MS for _, other in restarts)
    }
    return [index in rolls for index in range(len(found))]


def _is_back(incident: Incident, later: list[Incident]) -> bool:
    """Whether a member that stopped joined again, in this incident or soon after."""
    stopped = set(incident.members)
    if any(stopped & set(each.joined) for each in incident.chain):
        return True
    return any(each.begin_ms - incident.end_ms <= ROLLING_MS and stopped & set(each.members) and each.cause is Cause.BACK for each in later)


def _advice(kind: GroupKind, incident: Incident, *, is_rolling: bool) -> list[str]:
    """What would have avoided it, the best first."""
    found = []
    cause, chain = incident.cause, incident.chain
    back = is_rolling or (any(set(incident.members) & set(each.joined) for each in chain) and cause in _STOPS)
    if cause is Cause.POLL_TIMEOUT:
        found.append("lower max.poll.records, or raise max.poll.interval.ms above the longest time that a batch takes")
    if back and kind not in (GroupKind.STREAMS, GroupKind.CONNECT):  # neither takes a group.instance.id
        found.append("set group.instance.id, and session.timeout.ms above the time of a restart: a member that is back in time begins no rebalance")
        if kind is GroupKind.CLASSIC_CONSUMER:
            found.append("lead the group with `equipoise lead --hold`: partitions wait for a member that will be back")
    elif cause is Cause.EXPIRED:
        session = "session.timeout.ms" if kind_is_classic(kind) else "the brokers' session timeout"
        found.append(f"lower {session}: work stands still until the session is over")
    if kind is GroupKind.CLASSIC_STREAMS and any(each.moved or each.unowned for each in chain):
        found.append("let equipoise decide the rounds (docs/streams.md): copies are made first, and tasks move when they are ready")
    if kind is GroupKind.STREAMS and (back or incident.restores):
        found.append("keep copies, so that a task need not be restored: set the group's streams.num.standby.replicas (kafka-configs)")
    if kind is GroupKind.CONNECT and cause in _STOPS:
        found.append(
            "set scheduled.rebalance.max.delay.ms a little above the time of a restart: what a worker had waits so long, whether it is back or not"
        )
    if any(each.is_stuck for each in incident.restores):
        tasks = ", ".join(f"{each.task} at {each.member}" for each in incident.restores if each.is_stuck)
        found.append(f"look at these processes: the restore of their task does not end, or the task hangs: {tasks}")
    if sum(each.cause is Cause.PROBING and not (each.moved or each.unowned) for each in chain) > 1:
        found.append("raise acceptable.recovery.lag, or probing.rebalance.interval.ms: copies do not get ready between two probes")
    if sum(each.cause is Cause.ASKED for each in chain) >= _MANY:
        found.append("members ask again and again: look for two assignors or subscriptions that never agree, and for clients that need an upgrade")
    if cause is Cause.OUTSIDE:
        found.append("look for a process that was removed from the group and works on, or one that has partitions by hand under this group id")
    if cause is Cause.EXPIRED and incident.is_static:
        found.append("static members (group.instance.id) do not leave: set session.timeout.ms as long as a restart takes, and remove one for good")
    if cause is Cause.NOTHING:
        found.append("look at the process that has these partitions: it is a member and polls, but commits nothing")
    return found
