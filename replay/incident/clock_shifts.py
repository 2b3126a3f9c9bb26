"""Compares the clocks of log files, by the generations that the files share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def clock_shifts(numbers: Sequence[tuple[int, int, int, bool]]) -> dict[int, int]:
    """Returns how much each file's clock is ahead, ms, of the first broker's. `numbers`: file,
    generation, time of its end, and whether a broker said it. Of each file the median over the
    generations that it shares with the brokers.
    """
    brokers: dict[int, list[int]] = {}
    for _, number, at_ms, is_broker in numbers:
        if is_broker:
            brokers.setdefault(number, []).append(at_ms)
    shifts: dict[int, list[int]] = {}
    for file, number, at_ms, is_broker in numbers:
        if not is_broker and len(brokers.get(number, ())) == 1:
            shifts.setdefault(file, []).append(at_ms - brokers[number][0])
    return {file: round(statistics.median(found)) for file, found in shifts.items() if len(found) >= 2 or abs(found[0]) < 60_000}
