"""Changelog partitions that cannot be read, which wait while others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from equipoise.kafka.client import TopicPartition
from equipoise.member.error_policy import error_text
from equipoise.member.refusals import is_missing_right, name_topic

_LOG = logging.getLogger(__name__)
APART_S = 1.0
"""For so long a changelog partition that cannot be read is left alone; twice as long each time."""
MOST_APART_S = 30.0


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

    def put(self, tp: TopicPartition, error: Exception) -> bool:
        """Leaves a partition alone for a while. Returns whether `error` is a missing right."""
        _, former_s = self._apart.get(tp, (0.0, 0.0))
        name_topic(error, tp.topic, "Read")
        if not former_s:
            _LOG.error(
                "changelog %s/%d cannot be read: %s. Its task and copies wait, others go on; it is tried again at least every %.0f s. See that "
                "the topic exists, that this member may read it, and that it can read its compression and records",
                *tp, error_text(error), MOST_APART_S,
            )  # fmt: skip
        for_s = min(MOST_APART_S, 2 * former_s or APART_S)
        self._apart[tp] = self._monotonic_s() + for_s, for_s
        if not is_missing_right(error):
            return False
        self._forbidden.add(tp)
        return True

    def put_right(self, tp: TopicPartition) -> None:
        """Notes that a partition was read."""
        self._forbidden.discard(tp)
        if self._apart.pop(tp, None) is not None:
            _LOG.warning("changelog %s/%d can be read again", *tp)
