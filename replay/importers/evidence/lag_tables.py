"""Tables of ``kafka-consumer-groups`` as problems for an assignor: who has what, and how far each
partition is behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from equipoise.replay.importers.evidence.tables import Look

_CROSS_TOPIC = {"options": {"cross_topic": True}}


def problem_of(looks: Sequence[Look]) -> str | None:
    """Returns the problem of one group, as `equipoise.assignors.assign_json` reads it, from looks
    at it: a table of partitions, one of members, or both. None: no table names a partition and a
    member. A partition whose lag is not in a table counts as one that has none.
    """
    lags: dict[str, tuple[str, int, int]] = {}
    owned: dict[str, set[str]] = {}
    for look in looks:
        for row in look.partitions:
            lags[row.work] = (row.topic, row.partition, max(row.lag or 0, 0))
            if row.member:
                owned.setdefault(row.member, set()).add(row.work)
        for member in look.members:
            mine = owned.setdefault(member.member, set())
            mine.update(member.work or ())
    for works in owned.values():
        for work in works - lags.keys():
            topic, _, number = work.rpartition("-")
            lags[work] = (topic, int(number), 0)
    seen: set[str] = set()
    for member_works in owned.values():  # two looks that differ: the first owner stays
        member_works -= seen
        seen |= member_works
    if not lags or not owned:
        return None
    tasks = [{"id": work, "topic": topic, "partition": number, "lag": lag} for work, (topic, number, lag) in sorted(lags.items())]
    members = [{"id": name, "active": sorted(works)} for name, works in sorted(owned.items())]
    return json.dumps({"assignor": "lag_aware", "config": _CROSS_TOPIC, "tasks": tasks, "members": members})
