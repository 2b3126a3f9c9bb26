"""Commands while one of three brokers is stopped: it keeps its connections, takes new ones, and
answers nothing. Each command ends within the timeouts of its requests, and gives its answer, or
names the broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.member.copies.fencing import EXACTLY_ONCE
from tests.live.builds import THIS_BUILD, run_in, started
from tests.live.orders import Orders
from tools.brokers import Brokers

pytestmark = pytest.mark.slow
PREFIX = "silent"
MOST_S = 100.0
SESSION_MS = 6_000
FENCED_S = 15.0
"""By then the other brokers lead all partitions."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers(3, **{"broker.session.timeout.ms": str(SESSION_MS)}) as running:
        yield running


async def test_commands_end_while_a_broker_is_silent(brokers: Brokers, tmp_path: Path) -> None:
    address = ["--bootstrap", brokers.bootstrap, "--prefix", PREFIX]
    with Orders(brokers.bootstrap, PREFIX, tmp_path, EXACTLY_ONCE) as orders:
        await orders.make_topics()
        worker = started(["equipoise", "worker", *address, "--http-port", "0"], tmp_path / "worker.out")
        try:
            orders.start("m1")
            group, log = ["--group", orders.group], f"kafka://{brokers.bootstrap}/{PREFIX}"
            commands = [
                ["status", *address, *group],
                ["verify", log],
                ["doctor", *address],
                ["configure", *address, *group, "--set", "max_warmups=5"],
                ["record", f"kafka://{brokers.bootstrap}", "--to", str(tmp_path / "recorded.db"), "--once"],
                ["archive", log, "--to", str(tmp_path / "archived.db")],
            ]
            await asyncio.sleep(FENCED_S)
            os.kill(brokers.pid(0), signal.SIGSTOP)
            try:
                found = {words[0]: await _ran(words) for words in commands}
                await asyncio.sleep(FENCED_S)
                later = {words[0]: await _ran(words) for words in commands}
            finally:
                os.kill(brokers.pid(0), signal.SIGCONT)
            for name, (took_s, code, said) in (found | {f"{name} later": each for name, each in later.items()}).items():
                assert took_s <= MOST_S, name
                assert "Traceback" not in said, name
                assert "defect" not in said, name
                assert code in (0, 1) or "broker" in said, (name, said)
            assert {code for name, (_, code, _) in later.items() if name != "doctor"} == {0}, later
        finally:
            worker.kill()
            worker.wait()


async def _ran(words: list[str]) -> tuple[float, int, str]:
    """Seconds, exit code and what it says."""
    began_s = time.monotonic()
    done = await asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", *words)
    return round(time.monotonic() - began_s, 1), done.returncode, (done.stderr + done.stdout)[-2_000:]
