"""Counts what failed in application code, says when an error of a kind is worth its traceback, and
measures handlers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from equipoise.member.tasks.drops import Drops

AGAIN_S = 300.0
"""The traceback of errors of one kind is in the log once in this time."""
MOST_KINDS = 200
"""Kinds of errors that are remembered."""
SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the buckets of handler times; the last one has none."""
OUTCOMES = ("retried", "parked")
"""Of source records. What is left out is in `Drops`; of timers 'skipped' is counted here."""


class Failures:
    """Failures of one member's handlers, serdes and timers, and how long handlers take.
    `monotonic_s`: the clock. `sources`: processor and source topic, which are counted from 0 on,
    so that a rate sees the first failure.
    """

    def __init__(self, monotonic_s: Callable[[], float] = lambda: 0.0, sources: Iterable[tuple[str, str]] = ()) -> None:
        self.monotonic_s = monotonic_s
        sources = list(sources)
        self.drops = Drops(sources)
        self._counts: Counter[tuple[str, str]] = Counter({(topic, outcome): 0 for _, topic in sources for outcome in OUTCOMES})
        self._buckets, self._seconds = [0] * (len(SECONDS) + 1), 0.0
        self._said_s: dict[tuple[type[BaseException], str, int], float] = {}

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Source topic ("": a timer) and outcome -> number. Any thread may read it."""
        return self._counts.copy()

    @property
    def handler_times(self) -> tuple[Sequence[int], float]:
        """Returns how many of the calls that were measured are in each bucket of SECONDS, and above
        them, and their sum in seconds. Any thread may read it.
        """
        return tuple(self._buckets), self._seconds

    def handled_in(self, seconds: float) -> None:
        """Notes how long a call of a handler took."""
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def note(self, topic: str, outcome: str) -> None:
        """Counts one of OUTCOMES."""
        self._counts[topic, outcome] += 1

    def traceback_of(self, error: BaseException) -> BaseException | None:
        """The error, if its traceback is to be logged: the first of its kind, and again later."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        kind = type(error), "" if trace is None else trace.tb_frame.f_code.co_filename, 0 if trace is None else trace.tb_lineno
        now_s = self.monotonic_s()
        said_s = self._said_s.get(kind)
        if said_s is not None and now_s - said_s < AGAIN_S:
            return None
        if len(self._said_s) >= MOST_KINDS:
            self._said_s.clear()
        self._said_s[kind] = now_s
        return error
