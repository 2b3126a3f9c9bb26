"""Holds back what aiokafka logs about brokers that do not answer: several lines a second, from each
of its clients. Others say it in one line. Of everything else that it repeats, as of a right that is
missing, a line comes once each 10 s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise.events.log.kafka.client import BrokerFailures

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
        "Could not send %r: %r",
        "Got error produce response: %s",
        "Error sending %s to node %s [%s] -- marking coordinator dead",
        "Heartbeat send request failed: %s. Will retry.",
    }
)
"""Formats of lines which say that a request or a connection failed."""
CONSEQUENCES = frozenset(
    {
        "FindCoordinator Request failed: %s",
        "Group Coordinator Request failed: %s",
        "Got error produce response on topic-partition %s, retrying. Error: %s",
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
LOGGERS = tuple(
    logging.getLogger(name)
    for name in ("aiokafka", "aiokafka.cluster", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator", "aiokafka.producer.sender")
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
        elif (record.msg not in CONSEQUENCES or not any(each.is_away for each in tuple(self.heard_by))) and not self._is_repeated(record):
            return True
        return _LOG.isEnabledFor(logging.DEBUG) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        line = record.name, record.getMessage()
        with self.lock:
            if record.created - self._said_s.get(line, 0.0) < AGAIN_S:
                return True
            if len(self._said_s) >= _MOST_REMEMBERED:
                self._said_s.clear()
            self._said_s[line] = record.created
        return False


_FILTER = _HoldBack()


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
