"""Counts what failed in application code, and says when an error of a kind is worth its traceback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

AGAIN_S = 300.0
"""The traceback of errors of one kind is in the log once in this time."""
MOST_KINDS = 200
"""Kinds of errors that are remembered."""
OUTCOMES = ("retried", "skipped", "dead_lettered", "parked")


class Failures:
    """Failures of one member's handlers, serdes and timers. `monotonic_s`: the clock. `topics`:
    sources, which are counted from 0 on, so that a rate sees the first failure.
    """

    def __init__(self, monotonic_s: Callable[[], float] = lambda: 0.0, topics: Iterable[str] = ()) -> None:
        self._monotonic_s = monotonic_s
        self._counts: Counter[tuple[str, str]] = Counter({(topic, outcome): 0 for topic in topics for outcome in OUTCOMES})
        self._said_s: dict[tuple[type[BaseException], str, int], float] = {}

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Source topic ("": a timer) and outcome -> number. Any thread may read it."""
        return self._counts.copy()

    def note(self, topic: str, outcome: str) -> None:
        """One of OUTCOMES."""
        self._counts[topic, outcome] += 1

    def traceback_of(self, error: BaseException) -> BaseException | None:
        """The error, if its traceback is to be logged: the first of its kind, and again later."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        kind = type(error), "" if trace is None else trace.tb_frame.f_code.co_filename, 0 if trace is None else trace.tb_lineno
        now_s = self._monotonic_s()
        said_s = self._said_s.get(kind)
        if said_s is not None and now_s - said_s < AGAIN_S:
            return None
        if len(self._said_s) >= MOST_KINDS:
            self._said_s.clear()
        self._said_s[kind] = now_s
        return error
