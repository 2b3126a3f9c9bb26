"""Tasks and lags."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from equipoise.events.errors import FieldError

_TEXT_FORM = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})", re.ASCII)


class TaskId(NamedTuple):
    """A task: sub-topology and partition, both >= 0. Its text form is ``0_3``. Sorts by
    sub-topology, then partition.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


class LagSentinel(enum.Enum):
    """The lag of a copy where it is not a number of records."""

    ACTIVE = "active"
    """The member runs the task, so the copy is up to date by definition (Kafka Streams: -2)."""

    UNKNOWN = "unknown"
    """The member has a copy and does not know its lag (Kafka Streams: -3). Never caught up; ranks
    as if there were no report.
    """

    def __repr__(self) -> str:
        return self.name


Lag = int | LagSentinel
"""Records still to restore, >= 0, or a sentinel. A missing entry means: no copy; the rank is the
whole changelog.
"""


MOST_KNOWN_TASKS = 1_000_000
"""Most tasks whose text forms are cached: ten times the largest planned group."""


class _ParsedTasks(dict[str, TaskId]):
    """Text form -> TaskId, filled on demand. A lag report names the same tasks every three seconds."""

    def __missing__(self, text: str) -> TaskId:
        match = _TEXT_FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise FieldError("task", f"{text!r} is not a task id; write <sub-topology>_<partition>, as in 0_3")
        task = TaskId(int(match[1]), int(match[2]))
        if len(self) < MOST_KNOWN_TASKS:
            self[text] = task
        return task


PARSED_TASKS: Mapping[str, TaskId] = _ParsedTasks()
"""``PARSED_TASKS["0_3"] == TaskId(0, 3)``. Raises FieldError for text that is not a task id."""


class _TaskTexts(dict[TaskId, str]):
    """TaskId -> text form, filled on demand."""

    def __missing__(self, task: TaskId) -> str:
        text = f"{task[0]}_{task[1]}"
        if PARSED_TASKS[text] != task:  # raises, too, when a number is out of range
            raise FieldError("task", f"{task!r} is not a task")
        if len(self) < MOST_KNOWN_TASKS:
            self[task] = text
        return text


TASK_TEXTS: Mapping[TaskId, str] = _TaskTexts()
"""``TASK_TEXTS[TaskId(0, 3)] == "0_3"``. Raises FieldError for a task that has no text form."""


def parse_task(text: str) -> TaskId:
    """Parses the text form of a task: ``"0_3"`` gives ``TaskId(0, 3)``. Raises FieldError when
    `text` is not a task id.
    """
    if not isinstance(text, str):
        raise FieldError("task", f"{text!r} is not a task id; write <sub-topology>_<partition>, as in 0_3")
    return PARSED_TASKS[text]


def tasks_text(tasks: Iterable[TaskId]) -> str:
    """Returns tasks in text form, in the given order: ``(0_0,0_1)``."""
    return f"({','.join(map(str, tasks))})"


def ranges(tasks: Iterable[TaskId]) -> str:
    """Tasks in rising order, consecutive ones as a range: ``0_0..5, 0_7, 1_2``."""
    texts: list[str] = []
    first: TaskId | None = None
    last: TaskId | None = None
    for task in sorted(tasks):
        if last is not None and task == TaskId(last.subtopology, last.partition + 1):
            texts[-1] = f"{first}..{task.partition}"
        else:
            first = task
            texts.append(str(task))
        last = task
    return ", ".join(texts)
