"""The recount of the sample application while orders still arrive, on topics made here. With a
broker: tests/live/test_recount.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from examples.orders import recount as module
from examples.orders.recount import Recount, recount


@attrs.frozen
class Row:
    key: bytes
    value: bytes
    offset: int
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = (("equipoise", b"g/0_0/1"), ("equipoise.log", b"log"))


def counted(*places: int) -> list[Row]:
    befores = (-1, *places)
    values = [{"orders": index + 1, "cents": 100 * (index + 1), "at": at, "after": befores[index]} for index, at in enumerate(places)]
    return [Row(b"c", json.dumps(value).encode(), index) for index, value in enumerate(values)]


async def recounted(monkeypatch: pytest.MonkeyPatch, counts: list[Row], *, arriving: bool) -> Recount:
    """Three orders, at 0 to 2. `arriving`: a fourth comes while the counts are read."""
    orders = [Row(b"c", json.dumps({"cents": 100}).encode(), offset) for offset in range(3)]
    topics = {"orders": [orders, [*orders, orders[-1]] if arriving else orders], "orders-counts": [counts]}

    async def ends_of(options: Any, topic: str, isolation_level: str) -> dict[int, int]:
        states = topics[topic]
        return {0: len(states.pop(0) if len(states) > 1 else states[0])}

    async def everything(options: Any, topic: str, isolation_level: str, *, until: dict[int, int]) -> AsyncIterator[Row]:
        for row in topics[topic][-1][: until[0]]:
            yield row

    monkeypatch.setattr(module, "ends_of", ends_of)
    monkeypatch.setattr(module, "everything", everything)
    return await recount({}, "orders", exactly_once=True)


async def test_recount_input_at_rest_every_order_counted_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await recounted(monkeypatch, counted(0, 1, 2), arriving=False)
    assert (found.faults, found.is_arriving, found.not_yet_counted) == ([], False, 0)


async def test_recount_input_at_rest_newest_order_not_counted_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await recounted(monkeypatch, counted(0, 1), arriving=False)
    assert found.faults == ["c: 1 of 3 orders were not counted, the first at 2"]


async def test_recount_input_arriving_newest_order_not_counted_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await recounted(monkeypatch, counted(0, 1), arriving=True)
    assert (found.faults, found.is_arriving, found.not_yet_counted) == ([], True, 1)


async def test_recount_input_arriving_order_passed_over_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await recounted(monkeypatch, counted(0, 2), arriving=True)
    assert "the order at 1 is lost" in found.faults[0]
    assert "c: 1 of 3 orders were not counted, the first at 1" in found.faults
