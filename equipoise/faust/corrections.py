"""Two places where Faust 0.15.3 loses records in a rebalance, corrected in the running process.

What is lost are source records that nobody processes, and changelog records that a standby lacks
for ever without being any further behind. So a standby could not be trusted with its task.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

_LOOK_S = 0.02


def correct(app: Any, consumer: Any) -> None:
    """Corrects an application, and the aiokafka consumer of its thread, once."""
    if not hasattr(app.flow_control, "corrected_by_equipoise"):
        app.flow_control.corrected_by_equipoise = True
        _clear_once(app.flow_control)
    if not hasattr(consumer._fetcher, "corrected_by_equipoise"):
        consumer._fetcher.corrected_by_equipoise = True
        _take_active_alone(consumer._fetcher)


def _clear_once(flow_control: Any) -> None:
    """A rebalance ends with `resume`, several times, and each clears all queues although records
    are being fetched since the first. Here only the first does, which ends `suspend`.
    """
    stock = flow_control.resume

    def resume() -> None:
        if not flow_control.is_active():
            stock()

    flow_control.resume = resume


def _take_active_alone(fetcher: Any) -> None:
    """Faust asks for the records of the partitions that are not paused. While all are paused, it
    asks for those of no partition, for which aiokafka gives those of all, and Faust drops them. The
    set may become empty while aiokafka waits for records, so here it waits outside.
    """
    stock = fetcher.fetched_records

    async def fetched_records(partitions: Any, timeout: float = 0, max_records: int | None = None) -> Any:  # noqa: ASYNC109  # aiokafka's signature
        if partitions is None:
            return await stock(partitions, timeout, max_records)
        end_s = time.monotonic() + (timeout or 0)
        while True:
            may_take = bool(partitions) and not fetcher._subscriptions.reassignment_in_progress
            if may_take:
                found = await stock(partitions, 0, max_records)
                if found:
                    return found
            left_s = end_s - time.monotonic()
            if left_s <= 0 or fetcher._closed:
                return {}
            if may_take:
                waiter = fetcher._create_fetch_waiter()
                await asyncio.wait([waiter], timeout=left_s)
                if waiter.done():
                    waiter.result()
                else:
                    waiter.cancel()
            else:
                await asyncio.sleep(min(_LOOK_S, left_s))

    fetcher.fetched_records = fetched_records
