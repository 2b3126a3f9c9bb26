"""The state directory: whose it is, and where each task's stores are.

::

    <state directory>/<group>/<member id>/
        lock                      held by the process that is this member, for as long as it lives
        incarnation.json          the last incarnation that began here
        tasks/0_3/<changelog>/    the store of task 0_3 for one of its changelog topics

Names are percent-encoded. Who gets the lock knows that whoever had it is dead, and with it the incarnation written down here: that is the proof
of `MemberJoined.ended_incarnation` (PROTOCOL M5). It holds where the lock does: on a file system of this machine, not on a shared one whose server
may forget its locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

from events.errors import FieldError, InputError
from events.tasks import TaskId, parse_task


class StateDirectory:
    """One member's part of a state directory, locked while this is open.

    Raises InputError when a live process has it, or when it cannot be written.
    """

    def __init__(self, root: str | os.PathLike[str], group: str, member_id: str) -> None:
        self.folder = Path(root) / _name(group) / _name(member_id)
        self._tasks = self.folder / "tasks"
        self._incarnation = self.folder / "incarnation.json"
        try:
            self._tasks.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"state_directory: {self.folder} cannot be written ({error.strerror}); mend that, or name another") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            problem = f"a live process has {self.folder}"
            raise InputError(f"state_directory: {problem}; a member id is for one process at a time, so give this one another") from None

    @property
    def last_incarnation(self) -> int | None:
        """The last one that began here. Its process is dead, or is this one. None: none did, or nobody can tell."""
        try:
            written = json.loads(self._incarnation.read_text())["incarnation"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return written if written.__class__ is int and written >= 0 else None

    def begin(self, incarnation: int) -> None:
        """Writes down that `incarnation` begins. To be done before it joins."""
        part = self._incarnation.with_suffix(".part")
        with open(part, "w") as file:
            json.dump({"incarnation": incarnation}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._incarnation)

    def store(self, task: TaskId, topic: str) -> Path:
        """The folder of one store."""
        return self._tasks / str(task) / _name(topic)

    def stores(self) -> list[tuple[TaskId, str]]:
        """Task and changelog topic of every store that is here, in order."""
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
        """Gives the lock back. Nothing of this member may run any more."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _name(text: str) -> str:
    name = quote(text, safe="")
    return name.replace(".", "%2E") if name.startswith(".") else name
