"""Decides about a record that the application's handler cannot process."""

from __future__ import annotations

from typing import Literal, Self

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import ConsumedRecord, SentHeaders, Unsent, check_topic
from equipoise.member.tasks.refusals import sentence

LONGEST_BACKOFF_S = 60.0
MOST_ERROR_CHARS = 500
"""Of an error in a header or a report."""


@attrs.frozen(kw_only=True)
class ErrorPolicy:
    """Tells a member what to do with a record when its handler or a serde raises, or brokers refuse
    what the handler put or sent. That is dropped first. Made by `stop`, `skip`, `dead_letter` and
    `retry`.
    """

    action: Literal["stop", "skip", "dead_letter"] = "stop"
    topic: str = ""
    """Of dead letters."""
    retries: int = attrs.field(default=0, validator=fields.integer())
    backoff_s: float = 0.0

    @classmethod
    def stop(cls) -> Self:
        """The task fails, the default: it stays where it is and handles nothing more, until a
        process starts that can handle the record. Other tasks go on.
        """
        return cls()

    @classmethod
    def skip(cls) -> Self:
        """Logs the record's place and the error, and goes on behind it. The traceback of errors of
        one kind is logged once in 5 minutes.
        """
        return cls(action="skip")

    @classmethod
    def dead_letter(cls, topic: str) -> Self:
        """Sends the record to `topic` with its place and the error in headers
        (``equipoise.error.``...), and goes on behind it.
        """
        check_topic("ErrorPolicy.topic", topic)
        return cls(action="dead_letter", topic=topic)

    @classmethod
    def retry(cls, retries: int, *, backoff_s: float = 1.0, then: ErrorPolicy | None = None) -> ErrorPolicy:
        """Calls the handler again, at most `retries` times: after `backoff_s`, then twice as long
        each time, 60 s at most. Then it does as `then` says; None: `stop`. Raises FieldError for a
        back-off that is no number.
        """
        if not isinstance(backoff_s, int | float) or not backoff_s >= 0:
            raise FieldError("ErrorPolicy.backoff_s", f"{backoff_s!r} is not a number of seconds >= 0")
        return attrs.evolve(then or cls(), retries=retries, backoff_s=backoff_s)

    def backoff_of(self, attempt: int) -> float:
        """Seconds to wait after the attempt of this number, from 1."""
        return min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** min(attempt - 1, 30))


@attrs.frozen(kw_only=True)
class FailedTask:
    """A task that handles nothing more, because its handler raised, or brokers refuse what it put
    or sent, and the policy is to stop, or because brokers refuse whatever the task does. `topic`,
    `partition`, `offset`: of the record, or of the last one that was handled; "" and -1: none, or a
    timer.
    """

    task: TaskId
    topic: str
    partition: int
    offset: int
    error: str

    @property
    def place(self) -> str:
        """Returns what could not be processed."""
        return place_of(self.topic, self.partition, self.offset) if self.topic else "a timer"


def place_of(topic: str, partition: int, offset: int) -> str:
    """A record, for people."""
    return f"{topic}/{partition} at offset {offset}"


def error_text(error: BaseException) -> str:
    """The error on one line."""
    text = " ".join(sentence(error).split()).encode(errors="backslashreplace").decode().removesuffix(":")  # it may say nothing
    return text if len(text) <= MOST_ERROR_CHARS else f"{text[: MOST_ERROR_CHARS - 3]}..."


def dead_letter(record: ConsumedRecord, group: str, task: TaskId, error: BaseException, headers: SentHeaders) -> Unsent:
    """The record as it was, with its place and the error in headers."""
    said = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp_ms),
        "group": group,
        "task": str(task),
        "class": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": error_text(error),
    }
    own = [(f"equipoise.error.{name}", text.encode(errors="backslashreplace")) for name, text in said.items()]
    return record.key, record.value, [*record.headers, *own, *headers], None
