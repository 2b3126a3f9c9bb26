"""Topics of a log are made among brokers that do not know a new one at the same time."""

from __future__ import annotations

from typing import Any, cast

from aiokafka.errors import UnknownTopicOrPartitionError

from equipoise.kafka.client import Admin
from equipoise.log.kafka.log_topics import MUST_BE, Topics
from equipoise.log.kafka.topic_making import check_topics


class LateBroker:
    """Answers as a broker that describes a topic before it knows its settings."""

    def __init__(self, late: int) -> None:
        self.late, self.asked = late, 0

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"topic": name, "error_code": 0, "partitions": [{"leader": 1}]} for name in names]

    async def topic_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        self.asked += 1
        if self.asked <= self.late:
            raise UnknownTopicOrPartitionError
        must = {Topics("log").name_of(what): dict(settings) for what, settings in MUST_BE.items()}
        return {name: must[name] for name in names}


async def test_settings_of_a_new_topic_are_waited_for() -> None:
    broker = LateBroker(late=2)
    await check_topics(cast(Admin, broker), Topics("log"))
    assert broker.asked == 3
