"""`equipoise incident` on a long log of a broker, in which few lines are of groups, and on one that
is nothing but rebalances: memory, lines of the answer, and whether time grows with the log.

BENCH_LOG_MB (default 250) sets the size of the first.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

Row = tuple[str, float, str]
MB = int(os.environ.get("BENCH_LOG_MB", "250"))
GROUPS = 50
OTHERS = 100
"""Lines of other parts of the broker before each rebalance of the first log: 58,000 rebalances in a
gigabyte.
"""
REBALANCES = 20_000
PART = 4
"""The same log with so much fewer of them takes so much less."""
OTHER = "INFO [ProducerStateManager partition=orders-{}] Wrote producer snapshot at offset {} with 12 producer ids in 3 ms. ({}) {}\n"
CLASS = "org.apache.kafka.storage.internals.log.ProducerStateManager"
FILLER = "x" * 24
COORDINATOR = "(kafka.coordinator.group.GroupCoordinator)"


def lines(others: int) -> Iterator[str]:
    """Yields the text of one rebalance after the other, each of a member that expired."""
    at = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    number = 0
    while True:
        group, generation = f"orders-{number % GROUPS}", number // GROUPS + 1
        at += dt.timedelta(seconds=7)
        stamp = f"[{at:%Y-%m-%d %H:%M:%S},000] "
        member = f"consumer-{group}-1-3f1c0c8e-0000-4000-8000-{number:012}"
        text = "".join(stamp + OTHER.format(line, number, CLASS, FILLER) for line in range(others))
        coordinator = f"{stamp}INFO [GroupCoordinator 1]: "
        text += f"{coordinator}Member {member} in group {group} has failed, removing it from the group {COORDINATOR}\n"
        text += f"{coordinator}Preparing to rebalance group {group} in state PreparingRebalance with old generation {generation} "
        text += f"(__consumer_offsets-7) (reason: removing member {member} on heartbeat expiration) {COORDINATOR}\n"
        after = f"[{at + dt.timedelta(seconds=3):%Y-%m-%d %H:%M:%S},000] INFO [GroupCoordinator 1]: "
        text += f"{after}Stabilized group {group} generation {generation + 1} (__consumer_offsets-7) with 2 members {COORDINATOR}\n"
        text += f"{after}Assignment received from leader consumer-{group}-2-77aa for group {group} for generation {generation + 1}. "
        text += f"The group has 2 members, 0 of which are static. {COORDINATOR}\n"
        yield text
        number += 1


def measured(path: Path) -> tuple[float, float, int]:
    """Returns CPU seconds, the most memory in MB, and lines of the answer."""
    child = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    *answer, last = done.stdout.splitlines()
    cpu_s, memory_mb = last.split()
    return float(cpu_s), float(memory_mb), len(answer)


_CHILD = """
import resource, sys
from equipoise.cli import main
try:
    main(["incident", sys.argv[1]])
except SystemExit as end:
    assert not end.code, end.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with tempfile.TemporaryDirectory() as folder:
        long, short, shorter = (Path(folder) / name for name in ("long.log", "rebalances.log", "fewer.log"))
        with open(long, "w") as log:
            rebalances = 0
            for text in lines(OTHERS):
                log.write(text)
                rebalances += 1
                if log.tell() >= MB * 1_000_000:
                    break
        for path, count in ((short, REBALANCES), (shorter, REBALANCES // PART)):
            with open(path, "w") as log:
                log.writelines(text for _, text in zip(range(count), lines(0), strict=False))
        cpu_s, memory_mb, shown = measured(long)
        short_s, short_mb, short_shown = measured(short)
        shorter_s, _, _ = measured(shorter)
    size = f"{MB} MB, {rebalances:,} rebalances of {GROUPS} groups"
    return [
        ("a broker's log: MB of memory", memory_mb, f"{size}: {cpu_s:.1f} s of CPU, {shown} lines of answer; goal: at most 100"),
        (f"{REBALANCES:,} rebalances: MB of memory", short_mb, f"{short_s:.1f} s of CPU, {short_shown} lines of answer; goal: at most 100"),
        (f"{REBALANCES:,} rebalances over {REBALANCES // PART:,}: CPU", short_s / shorter_s, f"{shorter_s:.1f} s; goal: at most {PART + 0.5}"),
    ]
