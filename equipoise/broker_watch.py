"""Says in the log that brokers do not answer: one line, one more every 10 s, and one when they
answer again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from equipoise.events.log.kafka.opening import NotNowError, UnreachableError

_LOG = logging.getLogger(__name__)
AGAIN_S = 10.0
"""Time between two lines while brokers do not answer."""
CALM_S = 1.0
"""Brokers answer again when a request is answered that began this long after the last failure:
connections fail one after the other.
"""


class BrokerWatch:
    """Collects the failures of one process's requests. Any thread may call it. `who`: the beginning
    of each line.
    """

    def __init__(self, who: str, monotonic_s: Callable[[], float]) -> None:
        self._who, self._monotonic_s = who, monotonic_s
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._failed_s = self._said_s = 0.0

    @property
    def is_away(self) -> bool:
        """Whether a broker does not answer."""
        return self._since_s is not None

    def failed(self, what: str) -> None:
        """A request failed, or no connection was made. `what`: on one line."""
        now_s = self._monotonic_s()
        with self._lock:
            self._failed_s = now_s
            since_s = self._since_s
            if since_s is None:
                self._since_s = now_s
            elif now_s - self._said_s < AGAIN_S:
                return
            self._said_s = now_s
        if since_s is None:
            _LOG.warning("%s: a broker does not answer: %s", self._who, what)
        else:
            _LOG.warning("%s: a broker has not answered for %.0f s: %s", self._who, now_s - since_s, what)

    def noted(self, what: str, error: BaseException) -> bool:
        """Whether `error`, which ended `what`, means that a broker does not answer. Then this says
        it, and the caller need not.
        """
        if not _means_away(error):
            return False
        self.failed(f"{what}: {error!r}")
        return True

    def answered(self, asked_s: float) -> None:
        """A request that began at `asked_s` was answered."""
        if self._since_s is None:
            return
        with self._lock:
            since_s = self._since_s
            if since_s is None or asked_s < self._failed_s + CALM_S:
                return
            self._since_s = None
        _LOG.warning("%s: the brokers answer again, after %.1f s", self._who, self._monotonic_s() - since_s)


def _means_away(error: BaseException) -> bool:
    """Whether `error`, of a request, means that a broker does not answer, or cannot serve it until
    another one does.
    """
    from aiokafka import errors

    away = (
        errors.KafkaConnectionError, errors.KafkaTimeoutError, errors.RequestTimedOutError, errors.NodeNotReadyError, errors.NoBrokersAvailable,
        errors.LeaderNotAvailableError, errors.NotLeaderForPartitionError, errors.GroupCoordinatorNotAvailableError,
        errors.NotCoordinatorForGroupError, errors.GroupLoadInProgressError, errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError,
    )  # fmt: skip
    return isinstance(error, (TimeoutError, UnreachableError, NotNowError, *away))
