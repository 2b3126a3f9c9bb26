"""Says in the log that brokers do not answer: one line, one more every 10 s, and one when they
answer again. A failure within 10 s of a line is said only if it lasts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from equipoise.kafka.started_clients import NotNowError, UnreachableError

_LOG = logging.getLogger(__name__)
AGAIN_S = 10.0
"""Time between two lines while brokers do not answer, or fail again and again."""
CALM_S = 1.0
"""Brokers answer again when a request is answered that began this long after the last failure:
connections fail one after the other.
"""


class BrokerWatch:
    """Collects the failures of one process's requests. Any thread may call it. `who`: the beginning
    of each line. `say`: writes a line; default: as a warning, into the log.
    """

    def __init__(self, who: str, monotonic_s: Callable[[], float], say: Callable[[str], None] = _LOG.warning) -> None:
        self._who, self._monotonic_s, self._say = who, monotonic_s, say
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._said_s = -AGAIN_S
        self._is_said = False
        """Whether a line has said that a broker does not answer."""

    @property
    def is_away(self) -> bool:
        """Returns whether a broker does not answer."""
        return self._since_s is not None

    def failed(self, what: str) -> None:
        """A request failed, or no connection was made. `what`: on one line."""
        now_s = self._monotonic_s()
        with self._lock:
            self._failed_s = now_s
            since_s = self._since_s
            if since_s is None:
                self._since_s = now_s
            if now_s - self._said_s < AGAIN_S:
                return
            self._said_s, self._is_said = now_s, True
        if since_s is None:
            self._say(f"{self._who}: a broker does not answer: {what}")
        else:
            self._say(f"{self._who}: a broker has not answered for {now_s - since_s:.0f} s: {what}")

    def noted(self, what: str, error: BaseException) -> bool:
        """Returns whether `error`, which ended `what`, means that a broker does not answer. Then
        this says it, and the caller need not.
        """
        if not _means_away(error, again=self.is_away):
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
            if not self._is_said:
                return
            self._said_s, self._is_said = self._monotonic_s(), False
        self._say(f"{self._who}: the brokers answer again, after {self._monotonic_s() - since_s:.1f} s")


def _means_away(error: BaseException, *, again: bool) -> bool:
    """Returns whether `error`, of a request, means that a broker does not answer, or cannot serve
    it until another one does. `again`: brokers do not answer already. One that starts does not know
    everything at once.
    """
    if isinstance(error, TimeoutError | UnreachableError | NotNowError):
        return True
    try:
        from aiokafka import errors
    except ImportError:  # a command on a file, without the extra
        return False

    away = (
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.RequestTimedOutError,
        errors.NodeNotReadyError,
        errors.NoBrokersAvailable,
        errors.LeaderNotAvailableError,
        errors.NotLeaderForPartitionError,
        errors.GroupCoordinatorNotAvailableError,
        errors.NotCoordinatorForGroupError,
        errors.GroupLoadInProgressError,
        errors.NotEnoughReplicasError,
        errors.NotEnoughReplicasAfterAppendError,
    )
    return isinstance(error, away) or (again and isinstance(error, errors.KafkaError) and error.retriable)
