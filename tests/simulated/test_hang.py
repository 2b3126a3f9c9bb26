"""A handler that never returns does not keep its member, nor its process, from ending."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise import Record, TaskContext
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

SESSION_MS = 10_000
ENDS_S = 40.0


@pytest.mark.parametrize("how", ["close", "leave", "an error of another task"])
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.slow)])
def test_member_whose_handler_never_returns_ends_within_a_bound(group: NewGroup, how: str, guarantee: str) -> None:
    async def hang(record: Record, context: TaskContext) -> None:
        await asyncio.Event().wait()

    def do_nothing(record: Record, context: TaskContext) -> None: ...

    member = group.start("m1", handler=hang, session_timeout_ms=SESSION_MS, guarantee=guarantee)
    group.start("m2", handler=do_nothing, guarantee=guarantee)
    group.settle(5)
    group.send(next(task.partition for task, name in group.assigned if name == "m1"))
    group.settle(5)
    assert member._host is not None
    if how == "close":
        member.close()
    elif how == "leave":
        member._host.leave()
    else:
        member._host.fail(SystemExit(7))
    group.settle(ENDS_S if how != "leave" else 2 * ENDS_S)
    assert group.ended.keys() == {"m1"}
    group.settle(ENDS_S)
    assert len(dict(group.assigned)) == TASKS
    assert set(dict(group.assigned).values()) == {"m2"}


BLOCKED = """
import asyncio, signal, sys, time
from equipoise.hosting.runtime import SignalWatch, end_at_once

async def main():
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    watch = SignalWatch(1.0, lambda: end_at_once("member m1 of group g", 1.0))
    def end():
        watch.heard()
        over.set()
    loop.add_signal_handler(signal.SIGTERM, end)
    signal.signal(signal.SIGTERM, watch.signalled)
    print("ready", flush=True)
    if sys.argv[1] == "sleeps": time.sleep(60)
    if sys.argv[1] == "spins":
        while True: pass
    await over.wait()
    await asyncio.sleep(1.5)  # longer than the watch waits
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["sleeps", "spins", "runs"])
def test_process_whose_loop_is_blocked_ends_after_a_signal(how: str) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        status = process.wait(20)
        said = process.stderr.read()
    assert status == (0 if how == "runs" else 1)
    assert (b"a handler has blocked the event loop for 1 s" in said) == (how != "runs")
