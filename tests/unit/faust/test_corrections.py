"""What is corrected of Faust."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mode.utils.queues import FlowControlEvent, FlowControlQueue

from equipoise.faust.corrections import correct


def queue_of(flow: FlowControlEvent) -> Any:
    return FlowControlQueue(flow_control=flow, clear_on_resume=True)


async def test_queue_is_cleared_when_flow_goes_on_and_not_again() -> None:
    flow = FlowControlEvent()
    queue = queue_of(flow)
    correct(SimpleNamespace(flow_control=flow), SimpleNamespace(_fetcher=Fetcher()))
    queue.put_nowait("of before")
    flow.resume()
    assert queue.empty()
    queue.put_nowait("fetched since")
    flow.resume()
    assert queue.qsize() == 1


class Fetcher:
    """As aiokafka's: asked for no partition, it gives the records of all."""

    def __init__(self) -> None:
        self.taken: list[set[str]] = []
        self._closed = False
        self._subscriptions = SimpleNamespace(reassignment_in_progress=False)

    async def fetched_records(self, partitions: Any, timeout: float = 0, max_records: int | None = None) -> Any:  # noqa: ASYNC109  # aiokafka's
        self.taken.append(set(partitions))
        return {"in-0": ["record"], "log-0": ["record"]} if not partitions else {place: ["record"] for place in partitions}


async def test_nothing_is_taken_while_no_partition_is_read() -> None:
    fetcher = Fetcher()
    correct(SimpleNamespace(flow_control=FlowControlEvent()), SimpleNamespace(_fetcher=fetcher))
    read: set[str] = set()
    assert await fetcher.fetched_records(read, timeout=0.1) == {}
    assert fetcher.taken == []
    read.add("in-0")
    assert await fetcher.fetched_records(read, timeout=0.1) == {"in-0": ["record"]}
