"""Ends a process whose event loop does not run, when a signal asks it to end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

EXIT_BLOCKED = 1


class SignalWatch:
    """Waits for the loop to hear of a signal. `within_s`: so long; then `expired` is called, on
    another thread. A signal handler of Python runs while a loop is blocked by Python code, or by a
    system call.
    """

    def __init__(self, within_s: float, expired: Callable[[], None]) -> None:
        self._within_s, self._expired = within_s, expired
        self._heard: list[threading.Event] = []

    def signalled(self, *_: object) -> None:
        """A signal has come. Use it with `signal.signal`."""
        heard = threading.Event()
        self._heard.append(heard)
        threading.Thread(target=self._wait, args=(heard,), name="equipoise-signal", daemon=True).start()

    def heard(self) -> None:
        """The loop runs."""
        for each in self._heard:
            each.set()
        self._heard.clear()

    def _wait(self, heard: threading.Event) -> None:
        if not heard.wait(self._within_s):
            self._expired()


def end_at_once(who: str, within_s: float) -> None:
    """Ends the process, without another write. The log may be blocked, too."""
    text = f"equipoise: {who}: a handler has blocked the event loop for {within_s:g} s after a signal: the process ends at once\n"
    os.write(2, text.encode(errors="backslashreplace"))
    os._exit(EXIT_BLOCKED)
