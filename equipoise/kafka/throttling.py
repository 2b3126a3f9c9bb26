"""Measures for how long quotas of the brokers hold back a process: each answer says for how long
the broker reads nothing more from its connection (KIP-124, KIP-219).
"""

from __future__ import annotations

import logging
import threading
from collections import deque

_LOG = logging.getLogger(__name__)
WINDOW_S = 60.0
MOST_S = 20.0
"""Throttled for longer than this of the last WINDOW_S, a process is held up. That is logged."""
LOOK_S = 1.0
"""Many answers a second may name a short time; the sum over WINDOW_S is made no more often."""
QUOTAS = "`kafka-configs.sh --describe --entity-type users`, or clients, shows its quotas"


class Throttling:
    """Measures that for one process. Any thread may call it. Times are of a clock that never goes
    back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.throttled_s = 0.0
        """In all. Connections that are throttled at the same time count once."""
        self._until_s = 0.0
        self._spans: deque[tuple[float, float]] = deque()
        """Beginning and end of each time, rising."""
        self._is_held_up = False
        self._looked_s = 0.0

    def note(self, throttle_ms: int, now_s: float) -> None:
        """Notes an answer that names this time."""
        if throttle_ms <= 0:
            return
        with self._lock:
            begin_s, end_s = max(now_s, self._until_s), now_s + throttle_ms / 1_000
            if end_s > begin_s:
                self.throttled_s += end_s - begin_s
                self._until_s = end_s
                self._spans.append((begin_s, end_s))
        if now_s - self._looked_s >= LOOK_S:
            self.held_up_s(now_s)

    def held_up_s(self, now_s: float) -> float | None:
        """Returns how long it was throttled of the last WINDOW_S; None: not for longer than MOST_S.
        Logs when that begins, and when it is over.
        """
        with self._lock:
            self._looked_s = now_s
            since_s = now_s - WINDOW_S
            while self._spans and self._spans[0][1] <= since_s:
                self._spans.popleft()
            within_s = sum(min(end_s, now_s) - max(begin_s, since_s) for begin_s, end_s in self._spans if begin_s < now_s)
            # Over only when hardly any is left: else a load at the limit is logged again and again.
            is_held_up = within_s > (MOST_S / 2 if self._is_held_up else MOST_S)
            changed, self._is_held_up = is_held_up != self._is_held_up, is_held_up
        if changed and is_held_up:
            _LOG.warning("quotas of the brokers held back this process for %.0f s of the last %.0f; %s", within_s, WINDOW_S, QUOTAS)
        elif changed:
            _LOG.warning("quotas of the brokers hold back this process no more, or little")
        return within_s if is_held_up else None
