"""Clients for tests, with all of aiokafka's methods."""

from __future__ import annotations

from typing import Any

from equipoise.events.log.kafka import log_opening

admin_client: Any = log_opening.admin_client
reader: Any = log_opening.reader
writer: Any = log_opening.writer
