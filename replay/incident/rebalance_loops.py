"""Rebalances that come again and again, from one cause: one incident, with its period."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import attrs

from equipoise.replay.incident.causes import Cause, Rebalance

_LONGEST_PAUSE_MS = 1_200_000
"""From the end of a rebalance to the next of the same loop, at most: some poll intervals of five
minutes.
"""
_PAUSES, _LEAST_PAUSE_MS = 4.0, 60_000
"""So many times the pauses before, and at least so long, a loop may pause."""
_DENSE_MS = 15_000
"""Rebalances of other members that come so soon after each other are one storm, if it goes on."""
_TIMES = {Cause.POLL_TIMEOUT: 3, Cause.TWICE: 2, Cause.STATIC_BACK: 3, Cause.LATE: 3, Cause.TOO_SLOW: 3}
"""Cause -> how often it comes for one member in a loop, at least."""
_OTHER_TIMES, _STORM_TIMES = 6, 12
_STATIC_AGAIN_MS = 60_000
_ENDS = (Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.LEFT, Cause.GONE, Cause.RESTARTED, Cause.TOO_SLOW)
_ORDER = (
    Cause.TWICE,
    Cause.POLL_TIMEOUT,
    Cause.TOO_SLOW,
    Cause.EXPIRED,
    Cause.RESTARTED,
    Cause.LEFT,
    Cause.GONE,
    Cause.STATIC_BACK,
    Cause.LATE,
    Cause.ASKED,
    Cause.PARTITIONS,
    Cause.SUBSCRIBED,
    Cause.CONNECTORS,
    Cause.COORDINATOR,
    Cause.BACK,
    Cause.JOINED,
    Cause.UNSEEN,
)


@attrs.frozen(kw_only=True)
class Loop:
    """`times`: how often its cause came. `period_ms`: the usual time from one to the next.
    `causes`: what all its rebalances began with, the most frequent first.
    """

    cause: Cause
    members: tuple[str, ...]
    times: int
    period_ms: int
    causes: tuple[tuple[Cause, int], ...]


@attrs.define
class _Run:
    chains: list[list[Rebalance]]
    names: set[str]
    pause_ms: float = 0.0

    def takes(self, chain: Sequence[Rebalance], names: set[str]) -> bool:
        pause_ms = chain[0].begin_ms - self.chains[-1][-1].end_ms
        if chain[0].cause is Cause.FIRST or self.chains[-1][0].cause is Cause.FIRST:
            return False
        if pause_ms > (_LONGEST_PAUSE_MS if len(self.chains) < 3 else min(_LONGEST_PAUSE_MS, max(_LEAST_PAUSE_MS, _PAUSES * self.pause_ms))):
            return False
        return bool(names & self.names) or (not names and not self.names) or pause_ms <= _DENSE_MS

    def add(self, chain: list[Rebalance], names: set[str]) -> None:
        pause_ms = max(0, chain[0].begin_ms - self.chains[-1][-1].end_ms)
        self.pause_ms = max(float(pause_ms), 0.9 * self.pause_ms)
        self.chains.append(chain)
        self.names |= names


def with_loops(chains: Sequence[list[Rebalance]]) -> list[tuple[list[Rebalance], Loop | None]]:
    """Joins chains that are one loop, in order of time. Linear in the number of rebalances."""
    runs: list[_Run] = []
    for chain in chains:
        names = {name for each in chain for name in (*each.members, *each.joined, *each.gone)}
        if runs and runs[-1].takes(chain, names):
            runs[-1].add(list(chain), names)
        else:
            runs.append(_Run([list(chain)], names))
    found: list[tuple[list[Rebalance], Loop | None]] = []
    for run in runs:
        flat = [each for chain in run.chains for each in chain]
        loop = loop_of(flat)
        found += [(flat, loop)] if loop is not None else [(chain, loop_of(chain)) for chain in run.chains]
    return found


def loop_of(flat: Sequence[Rebalance]) -> Loop | None:
    """Returns what the loop is, that these rebalances are; None: they are none."""
    if len(flat) < 2:
        return None
    times: dict[tuple[Cause, str], list[int]] = {}
    for each in flat:
        for name in each.members or ("",):
            times.setdefault((each.cause, name), []).append(each.begin_ms)
    for (cause, name), begins in list(times.items()):
        if cause is Cause.STATIC_BACK and len(begins) >= _TIMES[cause] and _period(begins) <= _STATIC_AGAIN_MS:
            times.setdefault((Cause.TWICE, name), []).extend(begins)
    named = {key: begins for key, begins in times.items() if len(begins) >= _TIMES.get(key[0], _OTHER_TIMES) and key[0] in _ORDER}
    named = {key: begins for key, begins in named.items() if key[0] not in (Cause.BACK, Cause.JOINED) or len(begins) >= _OTHER_TIMES}
    if sum(each.cause in _ENDS for each in flat) >= max(3, len(flat) // 4):  # what is known of some says more
        named = {key: begins for key, begins in named.items() if key[0] is not Cause.UNSEEN}
    if named:
        cause = min((key[0] for key in named), key=_ORDER.index)
        members = sorted(((len(begins), name) for (one, name), begins in named.items() if one is cause and name), reverse=True)
        begins = sorted({begin for (one, _), all_of in named.items() if one is cause for begin in all_of})
        return _loop(flat, cause, tuple(name for _, name in members[:_MOST_MEMBERS]), begins)
    if len(flat) < _STORM_TIMES or _period([each.begin_ms for each in flat]) > 2 * _DENSE_MS:
        return None
    came: set[str] = set()
    went = 0
    for each in flat:
        went += sum(name in came for name in each.gone)
        came.update(each.joined)
    is_nameless = not any(each.members or each.joined or each.gone for each in flat)
    if went < _OTHER_TIMES and not is_nameless and len({name for each in flat for name in each.joined}) < _STORM_TIMES:
        return None
    causes = Counter(each.cause for each in flat)
    cause = next((one for one in _ENDS if causes[one] >= len(flat) // 4), causes.most_common(1)[0][0])
    counts = Counter(name for each in flat for name in each.members)
    begins = [each.begin_ms for each in flat if each.cause is cause]
    return _loop(flat, cause, tuple(name for name, _ in counts.most_common(_MOST_MEMBERS)), begins)


_MOST_MEMBERS = 8


def _loop(flat: Sequence[Rebalance], cause: Cause, members: tuple[str, ...], begins: Sequence[int]) -> Loop:
    causes = Counter(each.cause for each in flat).most_common()
    return Loop(cause=cause, members=members, times=len(begins), period_ms=round(_period(begins)), causes=tuple(causes))


def _period(begins: Sequence[int]) -> float:
    ordered = sorted(begins)
    return statistics.median(after - before for before, after in pairwise(ordered)) if len(ordered) > 1 else 0.0
