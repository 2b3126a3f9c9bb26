"""Calls a function in several processes, which end when their parent ends, however it ends."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from equipoise.events.errors import EquipoiseError
from equipoise.replay.interrupts import undisturbed

T = TypeVar("T")
R = TypeVar("R")

_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_PATIENCE_S = 10.0
"""Seconds for a terminated process to remove unfinished files before it is killed."""
_AFTER_CALLBACK_S = 0.01
"""Seconds until a process ends again whose end was raised in a callback, where Python drops it."""


class ProcessDiedError(EquipoiseError):
    """A process ended without an answer. Perhaps the kernel killed it because memory was short."""


class _Ended(KeyboardInterrupt):
    """The parent terminated this process."""


def in_processes(function: Callable[[T], R], arguments: Iterable[T], processes: int) -> Iterator[R]:
    """Calls `function` with each argument in one of `processes` processes; yields the results as
    they arrive.

    `function`, arguments and results must be picklable. Raises what `function` raises, and
    ProcessDiedError when a process ends without an answer. When the caller stops early (an
    exception, an interrupt, enough results), the processes end first: SIGTERM unwinds `function`
    there, and SIGINT is ignored.
    """
    waiting = iter(arguments)
    running: dict[Connection, BaseProcess] = {}
    try:
        for argument in _first(waiting, processes):
            connection, process = _started(function)
            running[connection] = process
            connection.send(argument)
        while running:
            for ready in wait(list(running)):
                assert isinstance(ready, Connection), "only connections are waited for"
                result = _received(ready, running[ready])
                following = next(waiting, _NOTHING)
                if following is _NOTHING:
                    _end({ready: running.pop(ready)})
                else:
                    ready.send(following)
                yield result
    finally:
        _end(running)


_NOTHING: Any = object()


def _first(waiting: Iterator[T], count: int) -> Iterator[T]:
    for _ in range(count):
        following = next(waiting, _NOTHING)
        if following is _NOTHING:
            return
        yield following


def _started(function: Callable[[T], R]) -> tuple[Connection, BaseProcess]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(function, theirs), daemon=True)
    # Signals are deferred, because Python drops exceptions that are raised in its hooks around a
    # fork. The mask protects the new process until it has its own handlers.
    with undisturbed():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, process


def _received(connection: Connection, process: BaseProcess) -> Any:
    try:
        result, error = connection.recv()
    except (EOFError, OSError):
        process.join(_PATIENCE_S)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        raise ProcessDiedError(f"a process {how} in the middle of its work; was memory short? Ask for fewer processes") from None
    if error is not None:
        raise error
    return result


def _end(running: dict[Connection, BaseProcess]) -> None:
    for connection, process in running.items():
        with contextlib.suppress(OSError):
            connection.close()
        process.terminate()
    for process in running.values():
        process.join(_PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """Runs in the process: answers each argument until the parent is gone or terminates it."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once; what follows is cleanup
        raise _Ended

    def end_again(dropped: sys.UnraisableHookArgs) -> None:
        # Python drops exceptions that are raised in destructors and callbacks of weak references.
        if isinstance(dropped.exc_value, _Ended):
            signal.setitimer(signal.ITIMER_REAL, _AFTER_CALLBACK_S)
        else:
            sys.__unraisablehook__(dropped)

    sys.unraisablehook = end_again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    gc.freeze()  # what the parent made lives as long as this process: it need not be looked through
    with contextlib.suppress(_Ended, EOFError, OSError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        while True:
            argument = connection.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = (function(argument), None)
            except (EquipoiseError, OSError) as error:
                answer = (None, error)
            except Exception as error:  # noqa: BLE001 - the parent raises it
                answer = (None, RuntimeError(f"{error.__class__.__name__}: {error}\n{traceback.format_exc()}"))  # the exception may not be picklable
            connection.send(answer)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only children come here"
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
