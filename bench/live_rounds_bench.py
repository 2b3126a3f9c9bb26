"""Time of a round of a Kafka Streams application at a deployed worker, from the question to the
answer over HTTP: an application of 1,000 tasks, and a small one beside a client whose questions are
wrong.

The questions are those of an application whose copies are ready one round after they began: every
round asks with what the answer before made of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from typing import Any

import aiohttp

from bench.live import Row, WorkerProcess, broker, quantile
from equipoise.worker.settings import WorkerSettings

TASKS, PROCESSES, RECORDS = 1_000, 40, 50_000
CHANGES = 10
GOAL_MS = 250
SMALL_ROUNDS = 200
BESIDE = 3.0
"""How much longer a round of another group may take beside wrong questions: these take turns with
it on the worker's loop.
"""
STRANGE = (b"{", b"[" * 100_000, b'{"version": 1, "tasks": [' + b" " * 7_000_000, b" " * 10_000_000, b"\xff" * 300_000)


class Application:
    """An application as its leader sees it."""

    def __init__(self, name: str, tasks: int, processes: int) -> None:
        self.name, self.rounds = name, 0
        self._tasks = [f"{number % 4}_{number // 4}" for number in range(tasks)]
        self._made = 0
        self._active: dict[str, list[str]] = {}
        self._standby: dict[str, list[str]] = {}
        self.join(processes)

    def join(self, count: int) -> None:
        for _ in range(count):
            self._made += 1
            name = f"{self._made:08x}-0000-4000-8000-000000000000"
            self._active[name], self._standby[name] = [], []

    def leave(self) -> None:
        gone = min(self._active)
        del self._active[gone], self._standby[gone]

    def question(self) -> bytes:
        """The next question, as JSON."""
        self.rounds += 1
        tasks = []
        for task in self._tasks:
            topic, _, number = task.partition("_")
            source = [{"topic": f"source-{topic}", "partition": int(number), "racks": [f"rack-{int(number) % 3}"]}]
            changelog = [{"topic": f"{self.name}-{topic}-changelog", "partition": int(number)}]
            tasks.append({"id": task, "stateful": True, "records": RECORDS, "source": source, "changelog": changelog})
        processes = [
            {
                "id": name,
                "consumers": [f"i{name[:8]}-StreamThread-1-consumer"],
                "threads": 2,
                "active": self._active[name],
                "standby": self._standby[name],
                "lags": {**dict.fromkeys(self._active[name], -2), **dict.fromkeys(self._standby[name], 0)},
            }
            for name in self._active
        ]
        settings = {"acceptable.recovery.lag": 10_000, "num.standby.replicas": 1}
        return json.dumps({"version": 1, "round": str(self.rounds), "settings": settings, "tasks": tasks, "processes": processes}).encode()

    def apply(self, answer: dict[str, Any]) -> bool:
        """Takes the answer; returns whether it wants another round."""
        for name, given in answer["processes"].items():
            self._active[name], self._standby[name] = given["active"], given["standby"]
        return answer["follow_up_ms"] is not None


async def asked(http: aiohttp.ClientSession, application: Application) -> tuple[float, bool]:
    """Milliseconds of one round, and whether another one is wanted."""
    body = application.question()
    began_s = time.perf_counter()
    async with http.post(f"/v1/groups/{application.name}/rounds", data=body) as response:
        text = await response.text()
    took_ms = (time.perf_counter() - began_s) * 1_000
    if response.status != 200:
        raise RuntimeError(f"{application.name}: {response.status}: {text}")
    return took_ms, application.apply(json.loads(text))


async def settled(http: aiohttp.ClientSession, application: Application) -> list[float]:
    """Milliseconds of the rounds until none is wanted."""
    found = []
    for _ in range(100):
        took_ms, again = await asked(http, application)
        found.append(took_ms)
        if not again:
            return found
    raise RuntimeError(f"{application.name} does not come to rest in 100 rounds")


async def disturb(http: aiohttp.ClientSession) -> None:
    """Sends wrong questions for a group of its own, one after another, for ever."""
    while True:
        for body in STRANGE:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.post("/v1/groups/strange/rounds", data=body) as response:
                    await response.read()
                    if response.status not in (400, 413):
                        raise RuntimeError(f"a wrong question was answered with {response.status}")


async def measured(port: int) -> tuple[dict[str, list[float]], list[float], list[float]]:
    """Rounds of the large application by what began them; those of a small one, alone and beside
    wrong questions. Milliseconds.
    """
    base = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(base) as http, aiohttp.ClientSession(base) as other:
        large = Application("large", TASKS, PROCESSES)
        found = {"start": await settled(http, large), "rest": [(await asked(http, large))[0] for _ in range(2 * CHANGES)], "join": [], "leave": []}
        for _ in range(CHANGES):
            large.join(1)
            found["join"] += await settled(http, large)
            large.leave()
            found["leave"] += await settled(http, large)
        small = Application("small", 26, 3)
        await settled(http, small)
        alone = [(await asked(http, small))[0] for _ in range(SMALL_ROUNDS)]
        disturbing = asyncio.create_task(disturb(other))
        beside = [(await asked(http, small))[0] for _ in range(SMALL_ROUNDS)]
        if disturbing.done():
            disturbing.result()
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
    return found, alone, beside


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap, WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix="rounds")) as worker:
        worker.until_said("taken over")
        port = re.search(r"http://[^:]+:(\d+)", worker.said)
        assert port is not None, worker.said
        found, alone, beside = asyncio.run(measured(int(port[1])))
    rows = []
    for what, times_ms in found.items():
        note = f"{len(times_ms)} rounds, longest {max(times_ms):.0f} ms"
        value = quantile(times_ms, 0.5)
        rows.append((f"{TASKS:,} tasks on {PROCESSES} processes, a standby each: a round, {what}, median, ms", value, note))
        rows.append((f"the same, longest, of {GOAL_MS} ms", max(times_ms) / GOAL_MS, "goal: at most 1"))
    note = f"median {quantile(beside, 0.5):.1f} over {quantile(alone, 0.5):.1f} ms, longest {max(beside):.0f} over {max(alone):.0f}"
    ratio = quantile(beside, 0.5) / quantile(alone, 0.5)
    rows.append(("26 tasks: a round beside wrong questions of 10 MB / alone, median", ratio, f"{note}; goal: at most {BESIDE:.0f}"))
    return rows
