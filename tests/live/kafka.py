"""Clients for tests, with all of aiokafka's methods."""

from __future__ import annotations

from typing import Any

from equipoise.kafka import started_clients

admin_client: Any = started_clients.admin_client
reader: Any = started_clients.reader
writer: Any = started_clients.writer
