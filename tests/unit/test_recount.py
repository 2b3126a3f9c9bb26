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
from examples.orders.recount import Recount, Recounting, recount


@attrs.frozen
class Row:
    key: bytes
    value: bytes
    offset: int
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = (("equipoise", b"g/0_0/1/0/log"),)


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


def rows_of(*counts: tuple[int, int]) -> list[Row]:
    """Counts of one customer: the fencing token, and the offset of the order."""
    rows: list[Row] = []
    for token, at in counts:
        value = {"orders": at + 1, "cents": 100 * (at + 1), "at": at, "after": at - 1}
        rows.append(Row(b"c", json.dumps(value).encode(), len(rows), headers=(("equipoise", b"g/0_0/%d/0/log" % token),)))
    return rows


@pytest.mark.parametrize(
    ("counts", "at_least_once", "faults"),
    [
        ([(1, 0), (1, 1), (2, 1), (2, 2)], {1}, []),  # a commit of 1 was cut off, and 2 counts it again
        ([(1, 0), (2, 1), (1, 1), (2, 2)], {1}, []),  # a late commit of 1
        ([(1, 0), (1, 1), (2, 1), (2, 2)], {2}, ["1 counts were said twice"]),
        ([(1, 0), (1, 1), (2, 1), (2, 2)], (), ["1 counts were said twice"]),
        ([(1, 0), (2, 1), (1, 1), (2, 2)], {2}, ["1 counts with a smaller fencing token come after one with a larger"]),
    ],
)
def test_recounting_changed_guarantee_judges_each_grant_by_its_own(counts: Any, at_least_once: Any, faults: list[str]) -> None:
    recounting = Recounting(exactly_once=True, at_least_once={f"log/g/0_0/{token}" for token in at_least_once})
    for offset in range(3):
        recounting.order(Row(b"c", json.dumps({"cents": 100}).encode(), offset))
    for row in rows_of(*counts):
        recounting.count(row)
    assert recounting.finish().faults == faults
