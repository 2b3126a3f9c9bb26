"""Sources and changelogs whose committed records end before an open transaction: consumers with
read_committed get nothing behind it until it ends, and a hanging one never ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

from equipoise.kafka.client import TopicPartition

_LOG = logging.getLogger(__name__)
HELD_S = 90.0
"""How long a transaction holds a partition before that is logged. Producers have 60 s by default
(transaction.timeout.ms), and coordinators abort overdue transactions every 10 s.
"""


@attrs.frozen
class ReadTo:
    """Where a reader of a partition is. `position`: offset of its next record. `stable`: the last
    stable offset. `end`: the high watermark. None: unknown.
    """

    position: int | None
    stable: int | None
    end: int | None

    @property
    def held_at(self) -> int | None:
        """The offset at which an open transaction holds the reader; None: none does."""
        if self.position is None or self.stable is None or self.end is None:
            return None
        return self.stable if self.stable < self.end and self.position >= self.stable else None


@attrs.define
class _Hold:
    offset: int
    since_s: float
    is_logged: bool = False


class HeldSources:
    """Logs once that a partition is held for longer than `HELD_S`, and once that this has ended.
    `what`: the partitions are of ``source`` topics, or each of a ``changelog``.
    """

    def __init__(self, what: str = "source") -> None:
        self._what = what
        self._holds: dict[TopicPartition, _Hold] = {}

    @property
    def troubles(self) -> list[str]:
        """Returns a sentence about each partition that is held for so long. Any thread may call it."""
        return [
            f"{self._what} {tp.topic}/{tp.partition}: records from offset {hold.offset} on wait for an open transaction; `equipoise doctor` names it"
            for tp, hold in sorted(self._holds.copy().items())
            if hold.is_logged
        ]

    def look(self, now_s: float, partitions: Mapping[TopicPartition, ReadTo]) -> None:
        """Compares with the last look. `now_s`: of a clock that never goes back. `partitions`: all
        that are read.
        """
        for tp in self._holds.keys() - partitions.keys():
            del self._holds[tp]
        for tp, read in partitions.items():
            offset, known = read.held_at, self._holds.get(tp)
            if known is not None and known.offset != offset:
                del self._holds[tp]
                if known.is_logged:
                    _LOG.warning(
                        "%s %s/%d: the transaction at offset %d has ended, reading goes on", self._what, tp.topic, tp.partition, known.offset
                    )
                known = None
            if offset is None:
                continue
            known = self._holds.setdefault(tp, _Hold(offset, now_s))
            if now_s - known.since_s >= HELD_S and not known.is_logged:
                known.is_logged = True
                _LOG.warning(
                    "%s %s/%d: records from offset %d to %d wait for a transaction that has been open for %.0f s. "
                    "`kafka-transactions.sh describe-producers --topic %s --partition %d` names its producer, `abort` ends a hanging one",
                    self._what,
                    tp.topic,
                    tp.partition,
                    offset,
                    (read.end or 0) - 1,
                    now_s - known.since_s,
                    tp.topic,
                    tp.partition,
                )
