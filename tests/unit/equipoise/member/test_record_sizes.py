"""What a member learns of the sizes that topics take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from equipoise.kafka.client import SentBatch
from equipoise.member.tasks import sizes
from equipoise.member.tasks.sizes import BATCH_BYTES, RecordSizes


def refuse(known: RecordSizes, records: int = 10) -> None:
    appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    known.note("out", [SentBatch(records, appended)], lambda start, end: False)
    appended.set_exception(MessageSizeTooLargeError())


async def test_batches_of_a_topic_that_was_refused_grow_again_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "GROW_S", 0.02)
    known = RecordSizes()
    refuse(known)
    await asyncio.sleep(0)
    refuse(known)
    await asyncio.sleep(0)
    seen = [known.of("out")]
    async with asyncio.timeout(5):
        while known.of("out") != BATCH_BYTES:
            await asyncio.sleep(0.001)
            if known.of("out") != seen[-1]:
                seen.append(known.of("out"))
    assert seen == [BATCH_BYTES // 4, BATCH_BYTES // 2, BATCH_BYTES]


async def test_batches_that_are_refused_again_begin_to_grow_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "GROW_S", 0.05)
    known = RecordSizes()
    refuse(known)
    await asyncio.sleep(0.03)
    refuse(known)
    await asyncio.sleep(0.03)
    assert known.of("out") == BATCH_BYTES // 4
