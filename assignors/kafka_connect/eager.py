"""Connect's first protocol (version 0, `EagerAssignor`): whenever a worker or work comes or goes,
all workers stop everything, and all work is dealt again.

Connectors in the order of their ids, then tasks, go in turn to the workers in the order of theirs.
Present owners play no part, nothing waits, and the leader remembers only the last deal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from equipoise.events.tasks import TaskId


def deal(tasks: Iterable[TaskId], workers: Collection[str], connectors: int | None) -> dict[TaskId, str]:
    """Worker -> its work. `connectors`: the sub-topology whose tasks are connectors; None: there
    are none.
    """
    ordered = sorted(tasks, key=lambda task: (task.subtopology != connectors, task))
    names = sorted(workers)
    return {task: names[index % len(names)] for index, task in enumerate(ordered)} if names else {}
