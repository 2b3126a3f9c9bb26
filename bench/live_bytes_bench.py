"""What groups at rest write: 200 groups of 20 members, with the intervals of deployed members, on a
real broker. The growth of the log's files in some minutes, extrapolated to a day.

Members come to rest within a keepalive interval after they have joined, so the measurement begins
later. `MEASURE_S` in the environment measures for longer or less than 5 minutes; KAFKA_BOOTSTRAP is
not used, because the files must be seen.
"""

from __future__ import annotations

import os
import time

from bench.live import KEEPALIVE_MS, Groups, Row, WorkerProcess
from equipoise.worker.settings import WorkerSettings
from tools.brokers import FAST_JAVA, Brokers

GROUPS, MEMBERS, TASKS = 200, 20, 40
REST_S = 2 * KEEPALIVE_MS / 1_000
SECONDS = float(os.environ.get("MEASURE_S", "300"))
DAY_S = 86_400
GB = 1_000_000_000


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with Brokers(java=FAST_JAVA) as brokers:
        settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix="bytes")
        topics = {name: getattr(settings.topics, name) for name in ("facts", "decisions", "checkpoints")}
        with WorkerProcess(settings) as worker:
            worker.until_said("taken over")
            with Groups(settings, GROUPS, MEMBERS, TASKS, alone=True) as groups:
                time.sleep(REST_S)
                before = {name: brokers.written_bytes(topic) for name, topic in topics.items()}
                sent, cpu_s, begun_s = groups.counted(), worker.cpu_s, time.monotonic()
                time.sleep(SECONDS)
                after = {name: brokers.written_bytes(topic) for name, topic in topics.items()}
                counted, took_s = groups.counted(), time.monotonic() - begun_s
                cores = (worker.cpu_s - cpu_s) / took_s
    a_day = {name: (after[name] - before[name]) / took_s * DAY_S / GB for name in topics}
    facts = (counted["sent"] - sent["sent"]) / took_s
    parts = ", ".join(f"{name} {amount:.3f}" for name, amount in a_day.items())
    lost = f"{counted['lost']} members lost, {counted['overlaps']} tasks run twice"
    return [
        (f"GB a day on disk, {GROUPS} groups of {MEMBERS} at rest", sum(a_day.values()), f"{parts}; in {took_s:.0f} s; goal: at most 1.5"),
        ("facts of members a second", facts, f"{(after['facts'] - before['facts']) / took_s / facts:.0f} bytes for each, with the worker's ticks"),
        ("cores of the worker's", cores, lost),
    ]
