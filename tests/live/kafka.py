"""Clients for tests, with all of aiokafka's methods."""

from __future__ import annotations

from typing import Any

from equipoise.events.log.kafka import opening

admin_client: Any = opening.admin_client
reader: Any = opening.reader
writer: Any = opening.writer
