"""Runs a module as a program that does not outlive its starter: the end of stdin kills it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_stdin() -> None:
    while os.read(0, 4_096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
