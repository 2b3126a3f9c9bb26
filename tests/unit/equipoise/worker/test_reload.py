"""Settings of a worker that are read again."""

from __future__ import annotations

import attrs

from equipoise.worker.app import Worker
from equipoise.worker.settings import RELOADED, WorkerSettings

BEFORE = WorkerSettings()
AFTER = attrs.evolve(
    BEFORE, log_level="DEBUG", log_format="json", observe_interval_ms=500, checkpoint_facts=7, metrics_groups=0, partitions=9, sasl_password="x"
)


def test_reload_takes_over_what_is_safe_and_names_the_rest() -> None:
    worker = Worker(BEFORE)
    assert worker.reload(AFTER) == ["sasl_password", "partitions"]
    assert {name: getattr(worker.settings, name) for name in RELOADED} == {
        "log_level": "DEBUG",
        "log_format": "json",
        "observe_interval_ms": 500,
        "checkpoint_facts": 7,
        "metrics_groups": 0,
    }
    assert worker.settings.partitions == BEFORE.partitions
    assert worker.reload(worker.settings) == []
