"""Settings of `equipoise lead` (`equipoise.hosting.live_settings` says how they are read)."""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.kafka.connection import MOST_PORT, Connection
from equipoise.kafka.declared_settings import setting


@attrs.frozen(kw_only=True)
class LeadSettings(Connection):
    """Settings of one process: how it reaches the brokers, and where it is watched."""

    http_host: str = setting("127.0.0.1", "Address that serves health and metrics; 0.0.0.0 for everybody.", validator=fields.text())
    http_port: int = setting(0, "Port of that address; 0: any free one, which the log names.", validator=fields.integer(0, MOST_PORT))
