"""Deferred interrupts. SIGINT and SIGTERM raise an exception wherever the main thread is, and some
steps must not be left half done.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Defers SIGINT and SIGTERM until the block ends. Does nothing outside the main thread, which
    signals do not interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each, handler in before.items():
        if callable(handler):
            signal.signal(each, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for each, handler in before.items():
            if callable(handler):
                signal.signal(each, handler)
        for number, frame in came[:1]:
            handler = before[signal.Signals(number)]
            assert callable(handler), "only signals with a handler of Python's are caught"
            handler(number, frame)
