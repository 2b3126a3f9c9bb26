"""Holds back what aiokafka logs about brokers that do not answer: several lines a second, from each
of its clients. Others say it in one line. Of everything else that it repeats, as of a right that is
missing, a line comes once each 10 s.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise.kafka.client import BrokerFailures

FAILURES = frozenset(
    {
        'Unable connect to "%s:%s": %s',
        'Unable to request metadata from "%s:%s": %s',
        "Unable connect to node with id %s: %s",
        "Unable to request metadata from node with id %s: %r",
        "Unable to update metadata from %s",
        "Failed fetch messages from %s: %s",
        "Failed fetch offsets from %s: %s",
        "Cannot send %r to %s: %r",
        "Got error produce response: %s",
        "Error sending %s to node %s [%s] -- marking coordinator dead",
        "Heartbeat send request failed: %s. Will retry.",
    }
)
"""Formats of lines which say that a request or a connection failed."""
CONSEQUENCES = frozenset(
    {
        "Got error produce response on topic-partition %s, retrying. Error: %s",
        "Group Coordinator Request failed: %s",
        "Heartbeat failed for group %s: coordinator (node %s) is either not started or not valid",
        "Heartbeat session expired - marking coordinator dead",
        "LeaveGroup request failed: %s",
        "Marking the coordinator dead (node %s)for group %s.",
        "OffsetCommit failed before join, ignoring: %s",
        "Topic %s is not available during auto-create initialization",
        "Error fetching metadata for topic %s: %s",
    }
)
"""Formats of lines that are held back while a broker does not answer, and mean something else
otherwise.
"""
ONCE = frozenset({("Group Coordinator Request failed: %s", "GroupCoordinatorNotAvailableError")})
"""Formats of lines, and errors in them, that mean something only when they come again: the first
group of a new broker has no coordinator for a moment.
"""
LOGGERS = tuple(
    logging.getLogger(name)
    for name in (
        "aiokafka",
        "aiokafka.cluster",
        "aiokafka.consumer.fetcher",
        "aiokafka.consumer.group_coordinator",
        "aiokafka.producer.sender",
        "equipoise.kafka.group_coordinators",
        "equipoise.kafka.consumer.shell",
        "equipoise.kafka.producer.shell",
    )
)
AGAIN_S = 10.0
_MOST_REMEMBERED = 1_000
_LOG = logging.getLogger(__name__)


class _HoldBack(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.heard_by: list[BrokerFailures] = []
        self._said_s: dict[tuple[str, str], float] = {}
        """Logger and line -> when it was let through."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg in FAILURES:
            for each in tuple(self.heard_by):
                each.failed(record.getMessage())
        elif (record.msg, _error_of(record)) in ONCE and self._is_first(record):
            pass
        elif (record.msg not in CONSEQUENCES or not any(each.is_away for each in tuple(self.heard_by))) and not self._is_repeated(record):
            return True
        return _LOG.isEnabledFor(logging.DEBUG) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)

    def _is_first(self, record: logging.LogRecord) -> bool:
        line = record.name, record.getMessage()
        with self.lock:
            return self._said_s.setdefault(line, record.created) == record.created

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        line = record.name, record.getMessage()
        with self.lock:
            if record.created - self._said_s.get(line, 0.0) < AGAIN_S:
                return True
            if len(self._said_s) >= _MOST_REMEMBERED:
                self._said_s.clear()
            self._said_s[line] = record.created
        return False


def _error_of(record: logging.LogRecord) -> str:
    """Name of the error that a line is about."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return type(first).__name__


_FILTER = _HoldBack()


class FailedConnections:
    """The reasons for which brokers could not be connected to, within one attempt."""

    is_away = False

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}

    def failed(self, what: str) -> None:
        found = _CONNECT.fullmatch(what)
        if found is None:
            return
        number = _ERRNO.match(found["why"])
        said = found["why"] if number is None else os.strerror(int(number["number"])) if int(number["number"]) > 0 else number["text"]
        self._reasons[f"{found['address']}: {said}"] = None

    def text(self) -> str:
        """The reasons; "": none is known."""
        return "; ".join(self._reasons)


_CONNECT = re.compile(r'Unable (?:connect to|to request metadata from) "(?P<address>[^"]*)": (?P<why>.*)', re.DOTALL)
_ERRNO = re.compile(r"\[Errno (?P<number>-?\d+)\] (?P<text>.*)", re.DOTALL)


@contextmanager
def hold_back_log(failures: BrokerFailures) -> Iterator[None]:
    """See `client.Clients.hold_back_log`."""
    with _FILTER.lock:
        _FILTER.heard_by.append(failures)
        for logger in LOGGERS:
            logger.addFilter(_FILTER)  # once, however often
    try:
        yield
    finally:
        with _FILTER.lock:
            _FILTER.heard_by.remove(failures)
            for logger in () if _FILTER.heard_by else LOGGERS:
                logger.removeFilter(_FILTER)
