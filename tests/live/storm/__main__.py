"""`make storm`: prints its seed, and how to play it again; ends with 1 when something does not
hold.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.live.storm.checks import Check
from tests.live.storm.faults import WIRE, Kind, draw
from tests.live.storm.run import TASKS, Storm, run_storm, summary

GUARANTEES = ("exactly_once", "at_least_once")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.storm", description="Random faults on a real deployment, and what holds after them.")
    parser.add_argument("--seed", type=int, default=None, help="of the plan (a random one)")
    parser.add_argument("--faults", type=int, default=100, help="how many (100)")
    parser.add_argument("--guarantee", choices=GUARANTEES, default=GUARANTEES[0])
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two, about (5)")
    names = [kind.name.lower() for kind in Kind]
    parser.add_argument("--kinds", default=",".join(names), help=f"with commas between; of {', '.join(names)} (all), or wire: those of connections")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"that there are at first ({TASKS})")
    parser.add_argument("--folder", type=Path, help="for what processes print; kept when something fails (a new one)")
    parser.add_argument("--plan", action="store_true", help="print the faults and do nothing")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    kinds = WIRE if given.kinds == "wire" else tuple(Kind[name.upper()] for name in given.kinds.split(","))
    plan = draw(seed, given.faults, given.every, kinds)
    if given.plan:
        print(*(f"{fault.at_s:7.1f} {fault}" for fault in plan), sep="\n")
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"equipoise-storm-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    storm = Storm(seed=seed, faults=given.faults, guarantee=given.guarantee, every_s=given.every, folder=folder, kinds=kinds, tasks=given.tasks)
    print(f"storm: {storm}: {summary(plan)}", flush=True)
    only = ("" if kinds == tuple(Kind) else f" KINDS={given.kinds}") + ("" if given.tasks == TASKS else f" TASKS={given.tasks}")
    print(f"again: make storm SEED={seed} FAULTS={given.faults} GUARANTEE={given.guarantee} EVERY={given.every:g}{only}", flush=True)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers die here; that it cannot reach them is no news
    began_s = time.monotonic()
    try:
        found = asyncio.run(_until_stopped(storm))
    except asyncio.CancelledError:
        print(f"seed {seed}: stopped; what the processes printed: {folder}")
        return 130
    print(f"\n{storm}, in {time.monotonic() - began_s:.0f} s:")
    for check in found:
        _show(check)
    if all(check.holds for check in found):
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"seed {seed}: it holds")
        return 0
    print(f"seed {seed}: it does not hold; what the processes printed: {folder}")
    return 1


async def _until_stopped(storm: Storm) -> list[Check]:
    """Whoever stops it, what it has started is ended first. A shell's background jobs do not hear
    SIGINT by themselves.
    """
    running = asyncio.ensure_future(run_storm(storm))
    for which in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(which, running.cancel)
    return await running


def _show(check: Check) -> None:
    print(f"  {'holds' if check.holds else 'FAILS'}  {check.name}: {check.found}")
    for line in check.more:
        print(f"           {line[:240]}")


if __name__ == "__main__":
    sys.exit(main())
