"""The state directory: the lock of its owner, the stores of each task, and the proof that the
former owner is dead.

::

    <state directory>/<group>/<member id>/
        lock                      locked (flock) by the member's process while it lives
        incarnation.json          the last incarnation that began here, and its lock
        tasks/0_3/<changelog>/    the store of task 0_3 for one of its changelog topics

Names are percent-encoded; one of more than 255 bytes is shortened, and ends with a hash.

`MemberJoined.ended_incarnation` claims that an incarnation is dead (docs/protocol.md#m5). Holding
the lock proves that, if it is the same lock in the same boot of the same machine. A copy of the
directory has a lock of its own, which is free while the original's owner lives. So `begin` stores
the boot id and the device and inode of the lock file beside the incarnation, and the claim is made
only if both are still the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import TaskId, parse_task
from equipoise.hosting.runtime import BOOT_ID, DEPLOYED, Runtime

FORMAT = 2
"""Format of incarnation.json. Format 1 lacks the boot id and the lock."""


MOST_NAME_BYTES = 255
"""Longest name of a folder on ordinary file systems."""
HASH_DIGITS = 40


class StateDirectory:
    """One member's folder in a state directory, locked while this is open. Raises InputError when a
    live process has it, or it cannot be written.
    """

    def __init__(self, root: str | os.PathLike[str], group: str, member_id: str, runtime: Runtime = DEPLOYED) -> None:
        self._runtime = runtime
        self.folder = Path(root) / _name(group) / _name(member_id)
        self._tasks = self.folder / "tasks"
        self._incarnation = self.folder / "incarnation.json"
        try:
            self._tasks.mkdir(parents=True, exist_ok=True)
            self._lock = runtime.lock(self.folder / "lock")
        except BlockingIOError:
            raise InputError(f"state_directory: a live process has {self.folder}; give this process another member id") from None
        except OSError as error:
            raise InputError(f"state_directory: {self.folder} cannot be written ({error.strerror}); fix that, or name another folder") from None
        former = self._read()
        self.last_incarnation: int | None = former.get("incarnation")
        """The last incarnation that began in this directory, or in the one that it is a copy of;
        None: none, or the file is unreadable.
        """
        log_id = former.get("log_id")
        self.last_log_id: str | None = log_id if isinstance(log_id, str) else None
        """Id of the log that it joined; None: unknown."""
        self.unproven = "" if self.last_incarnation is None else self._why_unproven(former)
        """Why `last_incarnation` is not proven dead; "" when it is, or when there was none."""

    @property
    def ended_incarnation(self) -> int | None:
        """The incarnation that is proven dead; None: there is no proof."""
        return None if self.unproven else self.last_incarnation

    def begin(self, incarnation: int, log_id: str | None = None) -> None:
        """Stores on disk that `incarnation` begins in the log `log_id`, and the lock it holds. Call
        it before the incarnation joins. Raises OSError.
        """
        part = self._incarnation.with_suffix(".part")
        with open(part, "w") as file:
            json.dump({"format": FORMAT, "incarnation": incarnation, "log_id": log_id, **self._holds()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._incarnation)

    def _read(self) -> dict[str, Any]:
        try:
            written = json.loads(self._incarnation.read_text())
        except (OSError, ValueError):
            return {}
        incarnation = written.get("incarnation") if isinstance(written, dict) else None
        return written if incarnation.__class__ is int and incarnation >= 0 else {}

    def _holds(self) -> dict[str, Any]:
        """The machine's boot id, and device and inode of the lock file."""
        return {"boot_id": self._runtime.boot_id(), "lock": self._lock.identity}

    def _why_unproven(self, former: dict[str, Any]) -> str:
        holds = self._holds()
        if former.get("format") != FORMAT:
            return "the directory was written by another version of equipoise"
        if holds["boot_id"] is None:
            return f"this system has no {BOOT_ID}, which identifies a boot of a machine"
        if former.get("boot_id") != holds["boot_id"]:
            return "it began on another machine, or before the last boot of this one"
        if former.get("lock") != holds["lock"]:
            return "the lock file is another one: the directory was copied or restored, or the file was replaced"
        return ""

    @property
    def lock(self) -> tuple[str, Sequence[int]]:
        """Path of the lock file, and its device and inode."""
        return str(self.folder / "lock"), self._lock.identity

    def store(self, task: TaskId, topic: str) -> Path:
        """The folder of the store of `task` for the changelog `topic`."""
        return self._tasks / str(task) / _name(topic)

    def stores(self) -> list[tuple[TaskId, str]]:
        """Task and changelog topic of every store here, sorted."""
        found = []
        for folder in self._tasks.iterdir():
            try:
                task = parse_task(folder.name)
            except FieldError:
                continue
            found += [(task, unquote(store.name)) for store in folder.iterdir() if store.is_dir()]
        return sorted(found)

    def remove(self, task: TaskId) -> None:
        """Removes the closed stores of a task."""
        shutil.rmtree(self._tasks / str(task), ignore_errors=True)

    def close(self) -> None:
        """Releases the lock. All tasks of the member must have stopped."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _name(text: str) -> str:
    """The folder's name: percent-encoded. One that is too long is shortened, and ends with ``%``
    and a hash of the text: no encoded name has a ``%`` before anything but two digits in capitals.
    """
    name = quote(text, safe="")
    name = name.replace(".", "%2E") if name.startswith(".") else name
    if len(name) <= MOST_NAME_BYTES:
        return name
    ending = "%h" + hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    return name[: MOST_NAME_BYTES - len(ending)] + ending
