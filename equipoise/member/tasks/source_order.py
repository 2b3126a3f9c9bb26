"""In which order a task with several sources takes their records: the one with the lowest timestamp
comes first, as in Kafka Streams. Within a partition they stay in the order of their offsets.

While a partition has no record here, but may have some that are earlier, nothing is taken: until
its end is reached, as far as that is known, and `max_idle_ms` longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from equipoise.kafka.client import ConsumedRecord, TopicPartition
from equipoise.member.source import Source

LOOK_AGAIN_S = 0.05
"""While nothing is taken: of an end that is reached by the marker of a transaction nothing comes
that would say so.
"""
Run = tuple[TopicPartition, Sequence[ConsumedRecord]]
"""Records of one partition that are handled one after the other."""


class SourceOrder:
    """The order of one task's sources, under one grant. `clock`: seconds, rising."""

    def __init__(self, sources: Sequence[Source], max_idle_s: float, clock: Callable[[], float]) -> None:
        self._tables = {each.topic for each in sources if each.table}
        self._max_idle_s, self._clock = max_idle_s, clock
        self._tables_behind: list[TopicPartition] = []
        """Those that are to be read to their ends before the others."""
        self._highest_ms: dict[TopicPartition, int] = {}
        """Partition -> highest timestamp that was taken since no table was behind."""
        self._empty_since_s: dict[TopicPartition, float] = {}
        self._ends: Mapping[TopicPartition, int] | None = None
        self.look_again_s: float | None = None
        """For how long the last call of `take` held records back; None: it did not, or a fetch
        wakes the task.
        """
        self.out_of_order = 0
        """Records that came behind later ones of another source. Any thread may read it."""

    def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """The task is placed again."""
        self._tables_behind = [tp for tp in partitions if tp.topic in self._tables]
        self._empty_since_s, self._ends, self.look_again_s = {}, None, None

    def ends_are(self, ends: Mapping[TopicPartition, int]) -> None:
        """The ends of the partitions, by their leaders, after `begin`."""
        self._ends = ends

    def take(
        self,
        aside: dict[TopicPartition, Sequence[ConsumedRecord]],
        partitions: Sequence[TopicPartition],
        most: int,
        read_to: Callable[[TopicPartition], int | None],
        fetched_end: Callable[[TopicPartition], int | None],
    ) -> list[Run]:
        """Takes at most so many records out of `aside`. `read_to`: offset behind what was put
        there. `fetched_end`: end of a partition by its last fetch; None: unknown.
        """
        ends, self.look_again_s = self._ends, None
        if ends is None:
            return []  # the answer wakes the task
        if self._tables_behind:
            self._tables_behind = [tp for tp in self._tables_behind if tp in aside or (read_to(tp) or 0) < ends[tp]]
        partitions = self._tables_behind or partitions
        at, runs = dict.fromkeys(partitions, 0), []
        while most:
            heads = []
            for rank, tp in enumerate(partitions):
                index, records = at[tp], aside.get(tp, ())
                if index < len(records):
                    heads.append((records[index].timestamp_ms, rank))
                elif not self._may_pass(tp, (read_to(tp) or 0) >= max(ends[tp], fetched_end(tp) or 0)):
                    most = 0
            if not heads or not most:
                break
            heads.sort()
            rank = heads[0][1]
            tp = partitions[rank]
            records, begin = aside[tp], at[tp]
            end = min(len(records), begin + most)
            if heads[1:]:
                other_ms, other = heads[1]
                bound_ms = other_ms if rank < other else other_ms - 1
                last, end = end, begin + 1
                while end < last and records[end].timestamp_ms <= bound_ms:
                    end += 1
            run = records[begin:end]
            self._note(tp, run)
            runs.append((tp, run))
            at[tp], most = end, most - len(run)
        for tp, index in at.items():
            if index:
                rest = aside.pop(tp)[index:]
                if rest:
                    aside[tp] = rest
                self._empty_since_s.pop(tp, None)
        return runs

    def _may_pass(self, tp: TopicPartition, is_at_end: bool) -> bool:
        """Returns whether others may be taken although there is nothing of `tp`."""
        if is_at_end and not self._max_idle_s:
            return True
        wait_s = LOOK_AGAIN_S
        if is_at_end:
            now_s = self._clock()
            wait_s = self._empty_since_s.setdefault(tp, now_s) + self._max_idle_s - now_s
        else:
            self._empty_since_s.pop(tp, None)
        if is_at_end and wait_s <= 0:
            return True
        self.look_again_s = wait_s if self.look_again_s is None else min(wait_s, self.look_again_s)
        return False

    def _note(self, tp: TopicPartition, run: Sequence[ConsumedRecord]) -> None:
        if self._tables_behind:
            return
        times_ms = [each.timestamp_ms for each in run]
        highest_ms = self._highest_ms
        others_ms = max((highest for other, highest in highest_ms.items() if other != tp), default=0)
        if min(times_ms) < others_ms:
            self.out_of_order += sum(each < others_ms for each in times_ms)
        highest_ms[tp] = max(highest_ms.get(tp, 0), *times_ms)


def in_order(sources: Sequence[Source], partition: int, records: Mapping[str, Sequence[ConsumedRecord]]) -> list[ConsumedRecord]:
    """All records of a task, topic -> its records, in the order in which a task takes them that
    finds them all there.
    """
    order, partitions = SourceOrder(sources, 0.0, lambda: 0.0), [TopicPartition(each.topic, partition) for each in sources]
    aside = {tp: records[tp.topic] for tp in partitions if records[tp.topic]}
    order.begin(partitions)
    order.ends_are(dict.fromkeys(partitions, 0))
    found: list[ConsumedRecord] = []
    while aside:
        for _, run in order.take(aside, partitions, sum(map(len, aside.values())), lambda tp: 0, lambda tp: 0):
            found += run
    return found
