"""Members' stores against their changelogs: on whatever disk a store is, running, followed or left
behind, it holds the changelog up to its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from equipoise.events.tasks import TaskId, parse_task
from equipoise.kafka.client import TopicPartition
from equipoise.member.copies.fencing import FENCE_KEY, TOPIC_KEY, ChangelogFence
from equipoise.testing.simulated.kafka.partition_log import StoredRecord
from tests.simulated.deployment import Deployment, Seat

OriginFields = tuple[int, str, str, str, int]
"""Epoch, log id, group, task, token: origins in their order (docs/protocol.md#m6)."""
_NOBODY: OriginFields = (0, "", "", "", 0)


def store_faults(deployment: Deployment, *members: str) -> list[str]:
    """Each store of these members, or of all, that holds anything but its changelog up to its
    offset.
    """
    faults: list[str] = []
    for seat in map(deployment.members.__getitem__, members or deployment.members):
        for folder, content in sorted(seat.machine.stores.items()):
            if not folder.exists():
                continue
            task = parse_task(folder.parent.name)
            partition = deployment.cluster.partition(TopicPartition(folder.name, task.partition))  # a mistaken build has others
            assert partition is not None, "it was created"
            known = deployment.remember(partition)
            wanted, owner = _folded(known[offset] for offset in sorted(known) if offset < content.offset)
            found = {key: value for key, value in content.values.items() if key not in (FENCE_KEY, TOPIC_KEY)}
            place = f"store of {task} at {seat.name}, {_use(seat, folder, task, deployment)}, offset {content.offset}"
            if content.offset > partition.log.end:
                faults.append(f"{place}: the changelog ends at {partition.log.end}")
            elif content.offset > partition.log.last_stable_offset:
                continue  # the transaction before it is not over
            # The earlier records of these keys may have been compacted away before they were read.
            newer = {record.key for offset, record in known.items() if content.offset <= offset < partition.log.compacted_below}
            different = [key for key in sorted((found.keys() | wanted.keys()) - newer) if found.get(key) != wanted.get(key)]
            faults += [f"{place}: {key!r} is {found.get(key)!r}; the changelog has {wanted.get(key)!r}" for key in different]
            if _owner(content.values.get(FENCE_KEY)) != owner:
                faults.append(f"{place}: its owner is {_owner(content.values.get(FENCE_KEY))}; the changelog's is {owner}")
    return faults


def _use(seat: Seat, folder: Path, task: TaskId, deployment: Deployment) -> str:
    host = None if seat.member is None else seat.member._host
    if host is None or folder != deployment.store_folder(seat, task):
        return "left behind"
    return "running" if task in host.work.running else "followed" if task in host._restorer._copies else "closed"


def _folded(records: Iterable[StoredRecord]) -> tuple[dict[bytes, bytes], OriginFields]:
    """The state, and the highest origin. No code of the member says which records count."""
    state: dict[bytes, bytes] = {}
    highest = _NOBODY
    for record, origin in _with_origins(records):
        if origin < highest:
            continue
        highest = origin
        if record.key is None or record.key == FENCE_KEY:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state, highest


def _with_origins(records: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, OriginFields]]:
    for record in records:
        named = {name: content.decode() for name, content in record.headers}
        group, task, token, epoch, log_id = named["equipoise"].rsplit("/", 4)
        yield record, (int(epoch), log_id, group, task, int(token))


def _owner(packed: bytes | None) -> OriginFields:
    owner = ChangelogFence.unpack(packed).owner
    if owner is None:
        return _NOBODY
    origin = owner.origin
    return origin.epoch, origin.log_id, origin.group, origin.task, origin.token
