"""Tasks and lags: the two smallest words of the vocabulary."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from equipoise.events.errors import FieldError

_TEXT_FORM = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})", re.ASCII)


class TaskId(NamedTuple):
    """A task: sub-topology and partition, both >= 0. Sorts by sub-topology, then partition; text
    form ``0_3``.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


class LagSentinel(enum.Enum):
    """What a member may say of its copy instead of a number of records."""

    ACTIVE = "active"
    """It says that it runs the task, so it is up to date by definition (Kafka Streams: -2)."""

    UNKNOWN = "unknown"
    """It has a copy and does not know how far behind it is (Kafka Streams: -3). Never caught up;
    ranks as no report.
    """

    def __repr__(self) -> str:
        return self.name


Lag = int | LagSentinel
"""Records still to restore, >= 0, or a sentinel. No entry at all means: no copy, rank = the whole
changelog.
"""


MOST_KNOWN_TASKS = 1_000_000
"""Tasks whose text form is remembered: ten times the largest planned group."""


class _ParsedTasks(dict[str, TaskId]):
    """Text form -> TaskId, filled on demand: a lag report names the same tasks every three seconds.
    """

    def __missing__(self, text: str) -> TaskId:
        match = _TEXT_FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise FieldError("task", f"{text!r} is not a task id; write <sub-topology>_<partition>, as in 0_3")
        task = TaskId(int(match[1]), int(match[2]))
        if len(self) < MOST_KNOWN_TASKS:
            self[text] = task
        return task


PARSED_TASKS: Mapping[str, TaskId] = _ParsedTasks()
"""``PARSED_TASKS["0_3"] == TaskId(0, 3)``; raises FieldError for text that is no task id."""


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
"""``TASK_TEXTS[TaskId(0, 3)] == "0_3"``; raises FieldError for a task that has no text form."""


def parse_task(text: str) -> TaskId:
    """``"0_3"`` -> ``TaskId(0, 3)``. Raises FieldError when `text` is no task id."""
    if not isinstance(text, str):
        raise FieldError("task", f"{text!r} is not a task id; write <sub-topology>_<partition>, as in 0_3")
    return PARSED_TASKS[text]


def tasks_text(tasks: Iterable[TaskId]) -> str:
    """``(0_0,0_1)``: tasks in text form, in the order given."""
    return f"({','.join(map(str, tasks))})"
