"""Incidents that came over several groups at once: a broker, the network, or one deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.values import Incident

WITHIN_MS = 10_000
LEAST_GROUPS = 3
_LEAST_PART = 0.1


@attrs.frozen(kw_only=True)
class AtOnce:
    """Groups with an incident that began within WITHIN_MS of the first. `causes`: how many of
    these incidents had which cause, the most frequent first.
    """

    begin_ms: int
    end_ms: int
    groups: tuple[str, ...]
    causes: tuple[tuple[Cause, int], ...]


def at_once(found: Mapping[str, Sequence[Incident]]) -> list[AtOnce]:
    """Returns what came over LEAST_GROUPS groups and a tenth of all, in order of time. `found`:
    group -> its incidents. The beginning of a group does not count.
    """
    begun = [(group, each) for group, mine in found.items() for each in mine if each.cause is not Cause.FIRST]
    spans: list[list[tuple[str, Incident]]] = []
    for group, each in sorted(begun, key=lambda pair: (pair[1].begin_ms, pair[0])):
        if spans and each.begin_ms - spans[-1][0][1].begin_ms <= WITHIN_MS:
            spans[-1].append((group, each))
        else:
            spans.append([(group, each)])
    least = max(LEAST_GROUPS, _LEAST_PART * len(found))
    return [_at_once(span) for span in spans if len({group for group, _ in span}) >= least]


def _at_once(span: Sequence[tuple[str, Incident]]) -> AtOnce:
    return AtOnce(
        begin_ms=span[0][1].begin_ms,
        end_ms=max(each.end_ms for _, each in span),
        groups=tuple(sorted({group for group, _ in span})),
        causes=tuple(Counter(each.cause for _, each in span).most_common()),
    )
