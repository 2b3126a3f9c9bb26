"""What a target costs beyond changes of owner, counted the same way for every assignor."""

from __future__ import annotations

from collections.abc import Mapping

from assignors.situation import Situation
from events.tasks import TaskId


def restore_records(situation: Situation, target: Mapping[TaskId, str]) -> int:
    """Records to be restored before the target is reached: by members that do not own the task yet and are not caught up."""
    return sum(
        situation.records(member, task)
        for task, member in target.items()
        if situation.tasks[task].stateful and situation.owner.get(task) != member and not situation.caught_up(member, task)
    )


def cross_rack(situation: Situation, target: Mapping[TaskId, str]) -> int:
    """Source partitions whose replicas are all in other racks than the task's owner in the target; unknown racks do not count."""
    return sum(
        1
        for task, owner in target.items()
        if situation.members[owner].rack is not None
        for partition in situation.tasks[task].source
        if partition.racks and situation.members[owner].rack not in partition.racks
    )
