"""The worker's settings, declared once: flags, environment variables and TOML keys have the same
names (`equipoise.live`).
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.log.kafka.settings import setting
from equipoise.live import LiveSettings


@attrs.frozen(kw_only=True)
class WorkerSettings(LiveSettings):
    """Besides where the log is. Times in milliseconds."""

    partitions: int = setting(1, "Partitions of a log that this worker makes; one that is there stays as it is.", validator=fields.integer(1, 10_000))
    replication: int = setting(0, "Copies of topics that it makes; 0: three, or as many as there are brokers.", validator=fields.integer(0, 100))
    http_host: str = setting("127.0.0.1", "Where health, metrics and states are served; 0.0.0.0 for everybody.", validator=fields.text())
    http_port: int = setting(8090, "The port for that; 0: any that is free.", validator=fields.integer(0, 65_535))
    worker_session_timeout_ms: int = setting(
        10_000, "A silent worker's partitions go to another one after this long.", validator=fields.integer(1_000, 3_600_000)
    )
    observe_interval_ms: int = setting(10_000, "Between two looks at the end offsets of the groups' topics.", validator=fields.integer(100))
    checkpoint_facts: int = setting(20_000, "Facts in a partition between two checkpoints of all its groups.", validator=fields.integer(1))
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR.", validator=fields.one_of("DEBUG", "INFO", "WARNING", "ERROR"))
