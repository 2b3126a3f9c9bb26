"""The local stores of copies: opens them, keeps those that nothing reads or runs, and gives up
damaged ones.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from equipoise.events.tasks import TaskId
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.fencing import FencedStore
from equipoise.member.copies.stores import DamagedStoreError, OpenStore, StoreError, opened

_LOG = logging.getLogger(__name__)
NOWHERE = Path("/nowhere")
"""Folder of the stores of a member without state directory. Stores on disk fail there."""
DAMAGED_AGAIN_S = 60.0
"""A copy that is damaged again so soon is on a disk that is no good."""
TaskStores = dict[str, FencedStore]
"""Changelog topic -> store."""


class CopyStores:
    """The stores of one member. `changelogs`: task -> its changelog topics, for every stateful
    task. `directory`: None: stores are in memory.
    """

    def __init__(
        self, changelogs: Mapping[TaskId, tuple[str, ...]], open_store: OpenStore, directory: StateDirectory | None, monotonic_s: Callable[[], float]
    ) -> None:
        self._changelogs, self._open_store, self._directory, self._monotonic_s = changelogs, open_store, directory, monotonic_s
        self._kept: dict[TaskId, TaskStores] = {}
        """Open stores: in memory, or from the start."""
        self._on_disk: dict[TaskId, dict[str, int]] = {}
        """Closed stores: changelog topic -> offset."""
        self.damaged_copies = 0
        """Number of copies that were given up because they were damaged."""
        self._given_up_s: dict[TaskId, float] = {}
        """When a copy was given up last."""

    @property
    def tasks(self) -> list[TaskId]:
        """Tasks of which stores are kept here, open or closed."""
        return [*self._kept, *self._on_disk]

    def has(self, task: TaskId) -> bool:
        """Returns whether stores of `task` are kept here, open or closed."""
        return task in self._kept or task in self._on_disk

    def offsets(self) -> dict[TaskId, dict[str, int]]:
        """Task of which stores are kept here -> changelog topic -> offset."""
        return {task: {topic: store.offset for topic, store in stores.items()} for task, stores in self._kept.items()} | self._on_disk

    def stored(self) -> list[tuple[TaskId, str]]:
        """Task and changelog topic of each store in the directory."""
        if self._directory is None:
            return []
        return [(task, topic) for task, topic in self._directory.stores() if topic in self._changelogs.get(task, ())]

    def open_all(self, stored: Iterable[tuple[TaskId, str]]) -> None:
        """Opens these stores, which stay open: a member that is back goes on with most of them.
        Raises StoreError.
        """
        found: dict[TaskId, TaskStores] = {}
        for task, topic in stored:
            found.setdefault(task, {})[topic] = self._open(task, topic)
        for task, stores in found.items():
            if len(stores) == len(self._changelogs[task]):
                self._kept[task] = stores
            else:
                self.put_away(task, stores)

    def take(self, task: TaskId) -> TaskStores:
        """Returns the open stores of `task`, which are no longer kept here. Raises StoreError."""
        self._on_disk.pop(task, None)
        kept = self._kept.pop(task, None)
        return {topic: self._open(task, topic) for topic in self._changelogs[task]} if kept is None else kept

    def take_all(self) -> list[TaskStores]:
        """Returns all open stores, which are no longer kept here."""
        kept, self._kept = list(self._kept.values()), {}
        return kept

    def put_away(self, task: TaskId, stores: TaskStores) -> None:
        """Keeps the stores of `task`: closed if they are on disk, otherwise open."""
        wipe_damaged(stores)
        if all(each.store.lasting for each in stores.values()):
            self._on_disk[task] = {topic: store.offset for topic, store in stores.items()}
            _close(stores)
        else:
            self._kept[task] = stores

    def kept_beside(self, wanted: Iterable[TaskId]) -> list[TaskId]:
        """Returns tasks with open stores that are not in `wanted`."""
        return sorted(set(self._kept).difference(wanted))

    def drop(self, task: TaskId) -> None:
        """Drops the copy of `task` if it is in memory, and closes it if it is on disk."""
        stores = self._kept.pop(task)
        if all(each.store.lasting for each in stores.values()):
            self.put_away(task, stores)
        else:
            _close(stores)

    def note_given_up(self, task: TaskId, error: DamagedStoreError) -> None:
        """Counts a copy that is given up. Raises StoreError when that happened a moment ago."""
        now_s = self._monotonic_s()
        former_s = self._given_up_s.get(task)
        if former_s is not None and now_s - former_s < DAMAGED_AGAIN_S:
            raise StoreError(f"task {task}: its local copy is damaged again after {now_s - former_s:.0f} s, see the disk: {error}") from error
        self._given_up_s[task] = now_s
        self.damaged_copies += 1
        _LOG.error("task %s: %s. Its local copy is given up, and restored from the changelog", task, error)

    def _open(self, task: TaskId, topic: str) -> FencedStore:
        folder, place = NOWHERE if self._directory is None else self._directory.store(task, topic), f"{topic}/{task.partition}"
        try:
            return self._open_in(folder, place)
        except DamagedStoreError as error:
            self.note_given_up(task, error)
            if self._directory is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return self._open_in(folder, place)

    def _open_in(self, folder: Path, place: str) -> FencedStore:
        store = opened(self._open_store, folder, place)
        try:
            return FencedStore(store, place)
        except DamagedStoreError:
            store.close()
            raise


def wipe_damaged(stores: TaskStores) -> None:
    """Wipes those of the stores that are marked as damaged."""
    for each in stores.values():
        if each.is_damaged:
            each.wipe()


def put_down(stores: TaskStores) -> None:
    """Closes stores for good. Raises StoreError."""
    wipe_damaged(stores)
    _close(stores)


def _close(stores: TaskStores) -> None:
    for each in stores.values():
        each.store.close()
