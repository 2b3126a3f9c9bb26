"""`make soak` runs storms, seed after seed, until there were enough. Prints each failed seed, and
how to run it again.

usage: python -m tests.soak [--seeds N] [--steps N] [--first SEED] [--workers N]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time

from tests.storms import draw, run_storm

PRINT_EVERY_SEEDS = 50


def one(seed: int) -> tuple[int, int, int, str]:
    """Runs one storm: (seed, facts folded, simulated events, error or ""). Assignors change in
    every other storm.
    """
    outcome = run_storm(draw(seed, switching=seed % 2 == 1))
    return seed, outcome.facts, outcome.steps, "" if outcome.error is None else str(outcome)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Storms on the simulated cluster.")
    parser.add_argument("--seeds", type=int, default=1_000, help="at least so many storms (1000)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="and at least so many steps of the machine (1,000,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0); they follow each other")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (all processors)")
    given = parser.parse_args()
    began = time.monotonic()
    seeds = steps = events = 0
    failed: list[int] = []
    with multiprocessing.Pool(given.workers) as pool:
        for seed, facts, happened, problem in pool.imap(one, itertools.count(given.first), chunksize=1):
            seeds, steps, events = seeds + 1, steps + facts, events + happened
            if problem:
                failed.append(seed)
                print(problem, flush=True)
            if seeds % PRINT_EVERY_SEEDS == 0:
                print(f"seeds {given.first} to {seed}: {steps:,} steps, {events:,} events, {len(failed)} failed", flush=True)
            if seeds >= given.seeds and steps >= given.steps:
                break
        pool.terminate()
    took_s = time.monotonic() - began
    print(f"{seeds:,} seeds from {given.first}, {steps:,} steps, {events:,} events, {took_s:.0f} s: {len(failed)} failed")
    if failed:
        print(f"again: python -m tests.soak --first {failed[0]} --seeds 1 --steps 1 --workers 1")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
