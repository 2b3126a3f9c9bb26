"""Which records of a partition may be deleted (docs/protocol.md#l10). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from equipoise.log.kafka.bases_topic import Base

MOST_INTERVALS = 2
"""Between two bases the log's clock counts for at most so many intervals, so that a broker with a
wrong clock makes no record old.
"""


@attrs.frozen(kw_only=True)
class Retention:
    """`retention_ms`, `retention_bytes`: 0: no limit. `interval_ms`: usual time between two bases."""

    retention_ms: int
    retention_bytes: int
    interval_ms: int


@attrs.frozen(kw_only=True)
class Deletion:
    """`behind`: the base behind which records may be deleted; None: none may. `held_by`: why
    records stay that are due to be deleted; "": none do.
    """

    behind: Base | None
    held_by: str = ""


def deletion(
    bases: Sequence[Base], now_ms: int, running_bytes: int, retention: Retention, archives: Mapping[str, int], halted: Mapping[str, int]
) -> Deletion:
    """`bases`: the whole ones, by position. `now_ms`: the log's clock. `running_bytes`: written
    since the last base. `archives`: name -> position of each declared archive. `halted`: groups
    that have halted -> the fact at which they have.
    """
    due = _due(bases, now_ms, running_bytes, retention)
    if due is None:
        return Deletion(behind=None)
    held_by = ""
    first = {name: due.groups[name][0] + 1 if name in due.groups else 0 for name in halted}
    name = min(first, key=lambda each: (first[each], each), default="")
    if name and first[name] <= due.facts_offset and all(place[0] >= due.facts_offset for other, place in due.groups.items() if other != name):
        held_by = f"group {name} has halted at offset {halted[name]}"
    position, name = min(((position, name) for name, position in archives.items()), default=(due.facts_offset, ""))
    if position < due.facts_offset:
        held_by = f"archive {name} has the facts up to offset {position} only"
        due = next((base for base in reversed(bases) if base.position <= due.position and base.facts_offset <= position), None)
    return Deletion(behind=due, held_by=held_by)


def _due(bases: Sequence[Base], now_ms: int, running_bytes: int, retention: Retention) -> Base | None:
    """The newest base that has a newer one and is too old, or before which the log is too large."""
    found = None
    most_ms = MOST_INTERVALS * retention.interval_ms
    times_ms = [*(base.append_ms for base in bases), now_ms]
    steps_ms = [min(max(0, after - before), most_ms) for before, after in pairwise(times_ms)]
    sizes = [*(base.interval_bytes for base in bases), running_bytes]
    for index, base in enumerate(bases[:-1]):
        is_old = retention.retention_ms > 0 and sum(steps_ms[index:]) >= retention.retention_ms
        is_large = 0 < retention.retention_bytes < sum(sizes[index:])
        if is_old or is_large:
            found = base
    return found
