"""End offsets between two samples: one pass over the samples answers questions in rising time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from equipoise.replay.importers.kafka_streams.source import EndOffsetSample


class EndOffsetStream:
    """Answers `at(ms)` for rising `ms` and yields the samples passed on the way. Holds two samples
    at a time.

    The first sample holds for earlier times, the last one for later times; a topic missing in a
    sample ends at 0 there.
    """

    def __init__(self, samples: Iterable[EndOffsetSample], every_ms: int) -> None:
        self._samples = iter(samples)
        self._before: EndOffsetSample | None = None
        self._after: EndOffsetSample | None = next(self._samples, None)
        self._every_ms = every_ms
        self._slot = -1
        self.held = 0
        """Number of questions before the first sample or after the last."""

    def upto(self, ms: int) -> Iterator[EndOffsetSample]:
        """Yields the samples up to `ms` that were not yielded before, thinned to the first in each
        `every_ms` of wall time.
        """
        while self._after is not None and self._after.ms <= ms:
            self._before, self._after = self._after, next(self._samples, None)
            slot = self._before.ms // self._every_ms
            if slot != self._slot:
                self._slot = slot
                yield self._before

    def at(self, ms: int, still_since_ms: Mapping[tuple[str, int], int] | None = None) -> Mapping[str, list[int]]:
        """Returns topic -> end offsets at `ms`, linear between the two samples around it. Exhaust
        `upto(ms)` first.

        A (topic, partition) in `still_since_ms` was not written from that time until `ms`: it grew
        before or after.
        """
        before, after = self._before, self._after
        if before is None or after is None:
            self.held += 1
            known = before or after
            return {} if known is None else known.end
        passed, ahead = ms - before.ms, after.ms - ms
        found: dict[str, list[int]] = {}
        for topic, ends in after.end.items():
            start = before.end.get(topic, [])
            found[topic] = [_between(start[partition] if partition < len(start) else 0, end, passed, ahead) for partition, end in enumerate(ends)]
        for (topic, partition), since_ms in (still_since_ms or {}).items():
            if partition < len(found.get(topic, ())):
                start = before.end.get(topic, [])
                wrote = max(0, min(since_ms, ms) - before.ms)
                found[topic][partition] = _between(start[partition] if partition < len(start) else 0, after.end[topic][partition], wrote, ahead)
        for topic, ends in before.end.items():
            found.setdefault(topic, ends)
        return found


def _between(start: int, end: int, passed: int, ahead: int) -> int:
    return start + (end - start) * passed // (passed + ahead) if passed + ahead else end
