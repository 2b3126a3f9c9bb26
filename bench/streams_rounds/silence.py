"""What the application's samples say: silences of tasks and changes of owner."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs

THRESHOLD_MS = 1_000
"""A task is silent when no instance handled a record of it for longer, as in the recorded runs."""


@attrs.frozen(kw_only=True)
class Span:
    """Records of one task that one instance handled, from the first to the last."""

    first_ms: int
    last_ms: int
    task: str
    instance: str
    gap_ms: int
    """The longest time between two of them."""


@attrs.frozen(kw_only=True)
class Window:
    """One action. `silent_s`: task-seconds; `changes`: of owner."""

    name: str
    silent_s: float
    longest_s: float
    changes: int


def read_spans(files: Iterable[Path]) -> list[Span]:
    """The samples of all instances, by time. An instance that was killed may have left half a line."""
    spans = []
    for file in files:
        for line in file.read_text().splitlines():
            words = line.split()
            if len(words) == 5 and words[4].isdigit():
                spans.append(Span(first_ms=int(words[0]), last_ms=int(words[1]), task=words[2], instance=words[3], gap_ms=int(words[4])))
    return sorted(spans, key=lambda span: (span.first_ms, span.last_ms, span.task, span.instance))


def windows(spans: Iterable[Span], marks: list[tuple[int, str]], end_ms: int) -> list[Window]:
    """Each mark begins a window. A silence belongs to the window in which it began; one that is
    still going on at `end_ms` counts until then.
    """
    silences: list[tuple[int, int]] = []
    moved: list[int] = []
    last: dict[str, tuple[int, str]] = {}
    for span in spans:
        before = last.get(span.task)
        if before is not None:
            if span.first_ms - before[0] > THRESHOLD_MS:
                silences.append((before[0], span.first_ms))
            if before[1] != span.instance:
                moved.append(span.first_ms)
        if span.gap_ms > THRESHOLD_MS:
            silences.append((span.first_ms, span.first_ms + span.gap_ms))
        last[span.task] = (max(span.last_ms, 0 if before is None else before[0]), span.instance)
    silences += [(at_ms, end_ms) for at_ms, _ in last.values() if end_ms - at_ms > THRESHOLD_MS]
    found = []
    for (from_ms, name), (to_ms, _) in zip(marks, [*marks[1:], (end_ms, "")], strict=True):
        mine = [until - max(since, from_ms) for since, until in silences if from_ms - 1_500 <= since < to_ms - 1_500 and until > from_ms]
        found.append(
            Window(
                name=name,
                silent_s=sum(mine) / 1_000,
                longest_s=max(mine, default=0) / 1_000,
                changes=sum(from_ms <= at_ms < to_ms for at_ms in moved),
            )
        )
    return found
