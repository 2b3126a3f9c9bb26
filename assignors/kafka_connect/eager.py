"""Connect's first protocol (version 0, `EagerAssignor`): whenever somebody comes or goes, or work
does, all stop everything, and all is dealt anew.

Connectors in the order of their ids, then tasks, in turn to the workers in the order of theirs. Who
ran what plays no part, nothing waits for anybody, and the leader keeps nothing in its memory but
what it dealt last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from equipoise.events.tasks import TaskId


def deal(tasks: Iterable[TaskId], workers: Collection[str], connectors: int | None) -> dict[TaskId, str]:
    """`connectors`: the sub-topology whose tasks are connectors; None: none is."""
    ordered = sorted(tasks, key=lambda task: (task.subtopology != connectors, task))
    names = sorted(workers)
    return {task: names[index % len(names)] for index, task in enumerate(ordered)} if names else {}
