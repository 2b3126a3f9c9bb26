"""Replay as a library: verifies a log from the simulated cluster, shows its history, and tries
other settings.

::

    python -m examples.replay [FOLDER]    # FOLDER (default: out/replay) gets the pictures

The same steps work in a notebook, cell by cell. For your own log, use its location as `log`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from equipoise import replay
from examples.fleet.many_groups import Fleet, make_fleet

GROUP = "g000"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "fleet"
    make_fleet(Fleet(groups=1, records=3_000, seed=11), log)

    # 1. Did every decision replay?
    verification = replay.verify(log)
    (group,) = verification.groups
    print(f"{group.group}: {verification.verdict.value}, {group.compared} decisions of {group.facts:,} facts")

    # 2. Which member ran what when, and when did no member?
    history = replay.timeline(log, group=GROUP)
    totals = history.totals()
    print(f"{len(history.lifelines)} incarnations, {totals.moves} moves in {totals.rounds} rounds")
    print(f"{totals.stopped_ms / 1_000:,.1f} task-seconds without a running owner, at most {totals.longest_ms / 1_000:.1f} s at a stretch")
    (folder / "history.svg").write_text(replay.render_picture(history), encoding="utf-8")

    # 3. What would another setting have cost?
    asked = [
        replay.Configuration(name="one warm-up", settings={"max_warmups": 1}),
        replay.Configuration(name="a standby", settings={"num_standbys": 1}),
        replay.Configuration(name="Kafka Streams", assignor="kafka_streams"),
    ]
    costs = replay.what_if(log, asked, group=GROUP)
    for each in (costs.factual, *costs.outcomes):
        assert each.metrics is not None, each.error
        restored = (each.metrics.records_restored or 0) / 1_000_000
        text = f"{each.metrics.unavailable_task_seconds:8,.1f} task-s unavailable {restored:6.1f} million restored {each.metrics.moves:4.0f} moves"
        print(f"{each.configuration.name:14} {text}")
    print(replay.advise(costs).line)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out/replay"))
