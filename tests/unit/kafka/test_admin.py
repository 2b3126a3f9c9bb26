"""The admin client, without a broker."""

from __future__ import annotations

import pytest
from aiokafka.errors import NodeNotReadyError

from equipoise.kafka import aiokafka_admin
from equipoise.kafka.aiokafka_admin import DeployedAdmin
from equipoise.kafka.client import NewTopic


async def test_admin_whose_brokers_name_no_controller_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka_admin, "_CONTROLLER_S", 0.0)
    admin = DeployedAdmin(bootstrap_servers="127.0.0.1:1")
    try:
        with pytest.raises(NodeNotReadyError, match="no controller yet"):
            await admin.create_topics([NewTopic("t", 1, 1)])
    finally:
        await admin.stop()
