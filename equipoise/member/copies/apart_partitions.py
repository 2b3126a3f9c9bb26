"""Changelog partitions that cannot be read, which wait while others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from equipoise.kafka.client import TopicPartition
from equipoise.member.tasks.error_policy import error_text
from equipoise.member.tasks.refusals import is_missing_right, name_topic

_LOG = logging.getLogger(__name__)
APART_S = 1.0
"""For so long a changelog partition that cannot be read is left alone; twice as long each time."""
MOST_APART_S = 30.0


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers in rising order, consecutive ones as a range: ``0..5, 7``."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and found[-1][1] == each - 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in found)


class ApartPartitions:
    """Remembers which partitions are left alone, and until when."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._apart: dict[TopicPartition, tuple[float, float]] = {}
        """Partition -> when to try again, and how long that was waited."""
        self._forbidden: set[TopicPartition] = set()
        """Those of them that may not be read. Their ends may be known all the same."""
        self._each_until_s = 0.0

    def __bool__(self) -> bool:
        """Returns whether there are some, if only to be tried again."""
        return bool(self._apart)

    def includes_any(self, partitions: Iterable[TopicPartition]) -> bool:
        """Returns whether one of these is left alone now."""
        now_s = self._monotonic_s()
        return any(now_s < self._apart[tp][0] for tp in partitions if tp in self._apart)

    def is_forbidden(self, tp: TopicPartition) -> bool:
        """Returns whether a right to read it was missing."""
        return tp in self._forbidden

    def read_each(self, now_s: float) -> None:
        """Has each partition read by itself for a while: one cannot be read, and it is not known
        which.
        """
        self._each_until_s = now_s + MOST_APART_S

    def is_each_read(self, now_s: float) -> bool:
        """Returns whether each partition is read by itself (monotonic, s)."""
        return bool(self._apart) or now_s < self._each_until_s

    def put(self, failed: Mapping[TopicPartition, Exception]) -> set[TopicPartition]:
        """Leaves partitions alone for a while. Returns those that the member has no right to read."""
        said: dict[tuple[str, str], list[int]] = {}
        now_s, forbidden = self._monotonic_s(), set()
        for tp, error in failed.items():
            name_topic(error, tp.topic, "Read")
            if is_missing_right(error):
                forbidden.add(tp)
            _, former_s = self._apart.get(tp, (0.0, 0.0))
            if not former_s:
                said.setdefault((tp.topic, error_text(error)), []).append(tp.partition)
            for_s = min(MOST_APART_S, 2 * former_s or APART_S)
            self._apart[tp] = now_s + for_s, for_s
        self._forbidden |= forbidden
        for (topic, text), partitions in sorted(said.items()):
            _LOG.error(
                "changelog %s/%s cannot be read: %s. Its tasks and copies wait, others go on; it is tried again at least every %.0f s. See that "
                "the topic exists, that this member may read it, and that it can read its compression and records",
                topic,
                number_ranges(partitions),
                text,
                MOST_APART_S,
            )
        return forbidden

    def put_right(self, read: Iterable[TopicPartition]) -> None:
        """Notes that partitions were read."""
        again: dict[str, list[int]] = {}
        for tp in read:
            self._forbidden.discard(tp)
            if self._apart.pop(tp, None) is not None:
                again.setdefault(tp.topic, []).append(tp.partition)
        for topic, partitions in sorted(again.items()):
            _LOG.warning("changelog %s/%s can be read again", topic, number_ranges(partitions))
