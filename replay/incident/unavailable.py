"""Tells when work stood still: partitions that had records to read, and no commit
(`equipoise.replay.numbers.WITHOUT_COMMITS`).
"""

from __future__ import annotations

import itertools
import statistics

import attrs

from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.numbers import LEAST_GAP_MS

LEAST_LAST_MS = 20_000
"""After the last commit that was recorded, when none has come yet, only longer gaps count."""
_TIMES_USUAL, _TIMES_SELDOM = 2.0, 8.0


@attrs.frozen
class Gap:
    """A span without a commit of `partition`, although it had records. `from_ms`: its last commit;
    `until_ms`: the next one, or the last moment that was recorded. `unavailable_ms`: the span less
    the usual time between two of its commits, or less the time in which its reader worked, where
    that is longer: a client that polls seldom commits all of a long batch at once. `came`: records
    that were unread in the span. `behind`: those that were not read by its end.
    """

    partition: str
    from_ms: int
    until_ms: int
    unavailable_ms: int
    came: int
    behind: int
    is_long: bool
    """A reader that works and commits seldom does not explain it: half of the records that came
    were unread at its end, or, where every commit is recorded, it is many times the usual time
    between two commits.
    """


def gaps(history: GroupHistory) -> list[Gap]:
    """Returns the gaps of all partitions, in the order in which they began. A partition counts as
    having records when an end-offset sample within the gap is past its last commit.
    """
    times_ms = [state.at_ms for state in history.states[-1:]] + history.end_times_ms[-1:] + [each[-1][0] for each in history.commits.values()]
    last_ms = max(times_ms, default=0)
    found: list[Gap] = []
    spans = [after - before for commits in history.commits.values() for (before, _), (after, _) in itertools.pairwise(commits)]
    adopted = [state.at_ms for state in history.states if state.group.is_adopted]  # its members commit elsewhere from then on
    usual_of_all = statistics.median(spans) if spans else 0.0
    paces = _Paces(history)
    for partition, commits in history.commits.items():
        usual = min(usual_of_all, history.usual_ms(partition) or usual_of_all)
        for (before_ms, committed), (next_ms, then) in zip(commits, [*commits[1:], (last_ms, commits[-1][1])], strict=True):
            after_ms = min((adopted_ms for adopted_ms in adopted if before_ms <= adopted_ms < next_ms), default=next_ms)
            worked_ms = paces.worked_ms(partition, (before_ms, committed), (next_ms, then))
            unavailable_ms = round(after_ms - before_ms - max(usual, worked_ms))
            if unavailable_ms < LEAST_GAP_MS or after_ms - before_ms < _TIMES_USUAL * usual:
                continue
            if (before_ms, committed) == commits[-1] and unavailable_ms < LEAST_LAST_MS:
                continue
            ends = [history.end_of(partition, at_ms) for at_ms in (before_ms + round(usual), (before_ms + after_ms) // 2, after_ms)]
            end = max((end for end in ends if end is not None), default=0)
            if end > committed:
                came, behind = end - committed, max(0, end - then)
                is_long = 2 * behind >= came or (history.has_every_commit and after_ms - before_ms >= _TIMES_SELDOM * usual)
                found.append(Gap(partition, before_ms, after_ms, unavailable_ms, came, behind, is_long))
    stops = [stop for stop in history.stops if stop.until_ms - stop.from_ms >= LEAST_GAP_MS]
    found += [Gap(each.partition, each.from_ms, each.until_ms, each.until_ms - each.from_ms, came=0, behind=0, is_long=False) for each in stops]
    return sorted(found, key=lambda gap: (gap.from_ms, gap.partition))


class _Paces:
    """Measures how fast readers are that have more to read than they can: between two commits a
    batch was read whose records were all there at the first of them.
    """

    def __init__(self, history: GroupHistory) -> None:
        self._history = history
        self._paces: dict[str, dict[int, float]] = {}
        """Partition -> time of the first commit -> records per ms."""
        for partition, commits in history.commits.items():
            for before, after in itertools.pairwise(commits):
                if after[0] - before[0] >= LEAST_GAP_MS and self._was_there(partition, before[0], after[1]):
                    self._paces.setdefault(partition, {})[before[0]] = (after[1] - before[1]) / (after[0] - before[0])

    def _was_there(self, partition: str, at_ms: int, offset: int) -> bool:
        end = self._history.end_of(partition, at_ms)
        return end is not None and end >= offset

    def worked_ms(self, partition: str, before: tuple[int, int], after: tuple[int, int]) -> float:
        """Returns how long the reader needs for what it has read between two commits, at the fastest
        that it was ever seen between two others; 0: not known.
        """
        if not self._was_there(partition, before[0], after[1]):
            return 0.0
        mine = {each: pace for each, pace in self._paces.get(partition, {}).items() if each != before[0]}
        fastest = max(mine.values(), default=0.0)
        return min((after[1] - before[1]) / fastest, after[0] - before[0]) if fastest > 0 else 0.0
