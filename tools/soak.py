"""`make soak` runs storms, seed after seed, until there were enough. Prints each failed seed, and
how to run it again.

usage: python -m tools.soak [--seeds N] [--steps N] [--first SEED] [--workers N] [--state FILE]
       python -m tools.soak --shrink SEED [--kind KIND]
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from tests.properties.test_extreme_values import fold
from tests.seeds import KINDS, base, setting_of
from tests.shrinking import kind_of_failure, shrink
from tests.storms import START_MS, run_storm

PRINT_EVERY_S = 30.0
COLLECT_EVERY = 10
"""Garbage is collected before one storm of so many. They are short and leave little."""
EXTREMES_EVERY = 5
"""Before one storm of so many, facts with extreme values are drawn, too (`tests.extremes`)."""


@attrs.frozen
class Stormed:
    """What one seed's storm came to. `cpu_s`: processor time that it took."""

    seed: int
    facts: int
    events: int
    cpu_s: float
    problem: str
    kind: str
    """Of the failure; "": none."""


def begin() -> None:
    """In each process: garbage is collected between storms only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.disable()


def one(seed: int) -> Stormed:
    """Runs one storm. Its kind follows from the seed (`tests.seeds`)."""
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    began_s = time.process_time()
    if seed % EXTREMES_EVERY == 0:
        try:
            fold(seed)
        except Exception as error:  # noqa: BLE001  # whatever it is, it halted a group
            return Stormed(seed, 0, 0, time.process_time() - began_s, f"extreme facts of seed {seed}: {error!s:.500}", "extremes")
    outcome = run_storm(setting_of(seed))
    failure = kind_of_failure(outcome.error)
    kind = "" if failure is None else " ".join(str(getattr(part, "__name__", part)) for part in failure)
    return Stormed(seed, outcome.facts, outcome.steps, time.process_time() - began_s, "" if failure is None else str(outcome), kind)


@attrs.define
class Soak:
    """What was done so far; `Soak.read` goes on where a former run was stopped."""

    first: int
    next: int
    steps: int = 0
    events: int = 0
    cpu_s: float = 0.0
    failed: list[int] = attrs.field(factory=list)
    kinds: dict[str, int] = attrs.field(factory=dict)

    @classmethod
    def read(cls, path: Path | None, first: int) -> Soak:
        if path is None or not path.exists():
            return cls(first, first)
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_suffix(".half")
            half.write_text(json.dumps(attrs.asdict(self)))
            half.replace(path)

    def add(self, done: Stormed) -> None:
        self.next = done.seed + 1
        self.steps += done.facts
        self.events += done.events
        self.cpu_s += done.cpu_s
        if done.problem:
            self.failed.append(done.seed)
            self.kinds[done.kind] = self.kinds.get(done.kind, 0) + 1

    def __str__(self) -> str:
        speed = f"{self.steps / self.cpu_s:,.0f} a CPU second" if self.cpu_s else "none yet"
        done = f"{self.steps:,} steps ({speed}), {self.events:,} events, {len(self.failed)} failed"
        return f"{self.next - self.first:,} seeds from {self.first}: {done}"


def soak(state: Soak, given: argparse.Namespace) -> int:
    began_s, before = time.monotonic(), state.steps
    told_s = began_s
    with multiprocessing.Pool(given.workers, initializer=begin) as pool:
        try:
            for done in pool.imap(one, itertools.count(state.next), chunksize=1):
                state.add(done)
                if done.problem:
                    print(f"{done.problem}\n  fewest faults: python -m tools.soak --shrink {done.seed}", flush=True)
                now_s = time.monotonic()
                enough = state.next - state.first >= given.seeds and state.steps >= given.steps
                if enough or now_s - told_s >= PRINT_EVERY_S:
                    told_s = now_s
                    state.write(given.state)
                    a_second = (state.steps - before) / (now_s - began_s)
                    left_s = max(0, given.steps - state.steps) / a_second
                    print(f"{state}; {a_second:,.0f} a second, {left_s / 60:.0f} min left", flush=True)
                if enough:
                    break
        except KeyboardInterrupt:
            state.write(given.state)
            print(f"{state}; stopped")
            return 130
        finally:
            pool.terminate()
    for kind, count in sorted(state.kinds.items()):
        print(f"  {kind}: {count}")
    if state.failed:
        print(f"keep what is a defect in tests/data/seeds.txt: {', '.join(map(str, state.failed))}")
    return 1 if state.failed else 0


def shrunk(seed: int, kind: str | None) -> int:
    """Prints the fewest faults with which the seed's storm fails as it does with all."""
    whole = setting_of(seed, kind)
    found = shrink(whole, run_storm, tell=lambda line: print(f"  {line[:150]}", flush=True))
    if found.error is None:
        print(f"{found}: it holds")
        return 0
    left = found.setting
    print(f"{found}\n{len(left.faults)} of {len(whole.faults)} faults, {len(left.changes)} of {len(whole.changes)} changes, ms from the start:")
    for at_ms, what in sorted([(each.at_ms, str(each)) for each in left.faults] + [(at_ms, str(change)) for at_ms, change in left.changes]):
        print(f"{at_ms - START_MS:9,} {what}")
    counted = collections.Counter(each.kind for each in left.faults)
    print(", ".join(f"{count} {name}" for name, count in sorted(counted.items())))
    return 1


def main() -> int:
    parser: Any = argparse.ArgumentParser(prog="python -m tools.soak", description="Storms on the simulated cluster.")
    parser.add_argument("--seeds", type=int, default=1_000, help="at least so many storms (1000)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="and at least so many steps of the machine (1,000,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0); they follow each other")
    parser.add_argument("--rolling", action="store_true", help="the first seed by SEED_BASE, or by the time of the last commit")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (all processors)")
    parser.add_argument("--state", type=Path, help="file of what was done, to go on from when stopped")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find the fewest faults with which this seed's storm fails")
    parser.add_argument("--kind", choices=KINDS, help="with --shrink: of the storm (by its seed)")
    given = parser.parse_args()
    if given.shrink is not None:
        return shrunk(given.shrink, given.kind)
    state = Soak.read(given.state, base() if given.rolling else given.first)
    print(f"storms from seed {state.next} on; again: python -m tools.soak --first {state.next}", flush=True)
    return soak(state, given)


if __name__ == "__main__":
    sys.exit(main())
