"""`python -m bench.prediction_speed`: how long predictions take for a group of 100 tasks and 20
members, each member with copies of five tasks beside its own: reading its log, of which an hour is
simulated, and 200 runs of a change. Goal: 60 s on two cores. Ends with 1 when one takes longer.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import click

from bench.changes import lived
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.replay.prediction.planned_change import Join, Kill, PlannedChange, RestartAll
from equipoise.replay.prediction.predict import RUNS, predict
from equipoise.replay.prediction.reading import read_present
from equipoise.replay.replayer import Replayer

MEMBERS, TASKS, HOUR_MS, MOST_S = 20, 100, 3_600_000, 60.0
CHANGES: tuple[PlannedChange, ...] = (Join(members=1), Kill(members=("m01",)), RestartAll())


@click.command()
@click.option("--runs", default=RUNS, show_default=True, help="Simulated runs of each prediction.")
def main(runs: int) -> None:
    """Predicts changes, and says how long that took."""
    _, sink, _ = lived(random.Random("speed"), MEMBERS, TASKS, 1, rests_ms=HOUR_MS)
    with tempfile.TemporaryDirectory(prefix="equipoise-speed-") as folder:
        place = Path(folder) / "hour.db"
        with open_log(place, "a") as log, log.transaction():
            for entry in sink.entries:
                if isinstance(entry, FactRecord):
                    log.append_fact(entry.group, entry.append_ms, entry.event)
                else:
                    log.append_decisions([entry])
        with open_log(place) as log:
            began_s = time.monotonic()
            present, habits = read_present(log.read())
            took_s = time.monotonic() - began_s
            replayer = Replayer()
            deque(replayer.follow(log.read()), maxlen=0)
            began_s = time.monotonic()
            read_present(log.read(), state=replayer.machine.state)
            known_s = time.monotonic() - began_s
    click.echo(f"an hour, {len(sink.entries):,} records, is read in {took_s:.1f} s; a day of it takes {24 * took_s:.0f}")
    click.echo(f"where a worker's checkpoint tells the state: {known_s:.1f} s; a day {24 * known_s:.0f}")
    longest_s = 0.0
    for change in CHANGES:
        began_s = time.monotonic()
        predict(present, habits, change, runs=runs, processes=os.cpu_count() or 1)
        longest_s = max(longest_s, took_s := time.monotonic() - began_s)
        click.echo(f"{runs} runs of {change.text()}: {took_s:.1f} s; goal: at most {MOST_S:g}")
    sys.exit(longest_s > MOST_S)


if __name__ == "__main__":
    main()
