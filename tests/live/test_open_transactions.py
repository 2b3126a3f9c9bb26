"""`equipoise doctor` names the transaction that holds a source, on a real broker."""

from __future__ import annotations

import itertools

import pytest

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, writer
from equipoise.operations.doctor.open_transactions import OpenTransaction, of_sources, of_transactions
from tests.live.test_restorer import make_topic

_NAMES = (f"held-{number}" for number in itertools.count())
ANSWER_MS = 5_000


@pytest.mark.smoke
async def test_doctor_names_the_transaction_that_holds_a_source_until_it_ends(bootstrap: str) -> None:
    connection, topic = Connection(bootstrap=bootstrap), next(_NAMES)
    await make_topic(bootstrap, topic, partitions=2)
    places = [TopicPartition(topic, partition) for partition in range(2)]
    async with admin_client(connection) as asking, writer(connection, transactional_id=f"{topic}-writer") as producer:
        assert await of_sources(connection, asking, places, ANSWER_MS) == []
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"1", key=b"k", partition=1)
        (found,) = await of_sources(connection, asking, places, ANSWER_MS)
        assert (found.check, found.status) == ("topics", "warning")
        assert found.text == f"{topic}/1: records from offset 0 on wait for an open transaction of transactional id {topic}-writer"
        await producer.commit_transaction()
        assert await of_sources(connection, asking, places, ANSWER_MS) == []


def test_transaction_that_no_coordinator_shows_is_a_problem_with_the_command_that_ends_it() -> None:
    (found,) = of_transactions([OpenTransaction(TopicPartition("in", 3), 17, 4_000)], "b:9092")
    assert found.status == "problem"
    assert "in/3: records from offset 17 on wait for an open transaction of producer 4000" in found.text
    assert found.fix == "kafka-transactions.sh --bootstrap-server b:9092 abort --topic in --partition 3 --start-offset 17"
