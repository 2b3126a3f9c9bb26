"""The copies of tables that a worker has on its disk, and its name, which is on the disk, too."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from typing import Any

from faust.types import TP

NAME_FILE = "equipoise-worker"


def worker_name(folder: Path) -> str:
    """The name of the worker with this data directory: the host's, and eight digits that are kept
    there, so that it is the same one after a restart.
    """
    file = folder / NAME_FILE
    try:
        kept = file.read_text().strip()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        kept = uuid.uuid4().hex[:8]
        file.write_text(kept)
    return f"{socket.gethostname()[:100]}-{kept[:8]}"


def is_persistent(table: Any) -> bool:
    """Returns whether a worker that has a copy of the table need not read all of its changelog. A
    global table is on every worker, so it does not count.
    """
    return not table.is_global and hasattr(_store(table), "partition_path")


def _store(table: Any) -> Any:
    return table.data


class Copies:
    """The offsets of all copies on the disk. To be used in the thread in which the tables are."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._closed: dict[TP, int | None] = {}
        """Offsets of copies that are not open, so they do not change."""

    def offsets(self) -> dict[str, dict[int, int]]:
        """Changelog topic -> partition -> offset of the last record that the copy has."""
        found: dict[str, dict[int, int]] = {}
        for table in self._app.tables.values():
            if not is_persistent(table):
                continue
            topic = table.changelog_topic.get_topic_name()
            for number in self._partitions(_store(table)):
                offset = self._offset(_store(table), TP(topic, number))
                if offset is not None:
                    found.setdefault(topic, {})[number] = offset
        return found

    def _partitions(self, store: Any) -> list[int]:
        """Partitions with a file, or that are open."""
        prefix, suffix = store.partition_path(0).name.rsplit("-0", 1)
        numbers = {int(part) for path in store.path.glob(f"{prefix}-*{suffix}") if (part := path.name[len(prefix) + 1 : -len(suffix)]).isdigit()}
        return sorted(numbers | set(store._dbs))

    def _offset(self, store: Any, tp: TP) -> int | None:
        if tp.partition in store._dbs:
            self._closed.pop(tp, None)
            return store.persisted_offset(tp)  # type: ignore[no-any-return]
        if tp not in self._closed:
            try:
                self._closed[tp] = store.persisted_offset(tp)
            finally:
                opened = store._dbs.pop(tp.partition, None)
                if opened is not None:
                    opened.close()
        return self._closed[tp]
