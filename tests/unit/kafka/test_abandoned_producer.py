"""A producer that is abandoned while a batch is sent again leaves no error behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from equipoise.kafka.aiokafka_producer import DeployedProducer
from equipoise.kafka.client import TopicPartition

aiokafka = pytest.importorskip("aiokafka")


@pytest.mark.parametrize("again", ["waits to be sent again", "fails after the end"])
async def test_batch_that_is_sent_again(again: str) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    producer = DeployedProducer(bootstrap_servers="127.0.0.1:1", enable_idempotence=True)
    accumulator = producer._message_accumulator
    producer._txn_manager.set_pid_and_epoch(7, 0)
    (sent,) = producer.send_batches(TopicPartition("t", 0), [(b"k", b"v", [], None)])
    batch = accumulator._pop_batch(aiokafka.TopicPartition("t", 0))
    await asyncio.sleep(0)
    if again == "waits to be sent again":
        accumulator.reenqueue(batch)
    await producer.abandon()
    await asyncio.sleep(0)
    if again == "fails after the end":
        accumulator.reenqueue(batch)
    assert isinstance(sent.appended.exception(), aiokafka.errors.ProducerClosed)
    del batch, sent, accumulator, producer
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
