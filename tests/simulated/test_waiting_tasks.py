"""Tasks that wait for brokers that answer the rest of their member."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.replay.trouble import troubles
from equipoise.testing.simulated.kafka.broker_network import Network
from equipoise.testing.simulated.virtual_loops import S_US
from tests.simulated.test_start import NewGroup, group

__all__ = ["group"]


@pytest.mark.parametrize(("lost", "what"), [("InitProducerId", "its producer"), ("EndTxn", "the end of a commit")])
def test_task_whose_producer_has_no_answer_is_in_trouble_until_it_has(group: NewGroup, lost: str, what: str) -> None:
    network = group.cluster.network

    def trip_us(process: str, broker: int, request: str, *, back: bool) -> int | None:
        return None if (process, request) == ("m1", lost) else Network.trip_us(network, process, broker, request, back=back)

    def shown() -> set[str]:
        ((_, lead),) = group.worker.groups()
        return {each.text for each in troubles(lead.machine.state)}

    changed: dict[str, Any] = vars(network)
    group.start("m1", guarantee="exactly_once")
    if lost == "EndTxn":
        group.runs_all_after_s()
        group.settle(5)
    else:
        group.scheduler.run(group.scheduler.now_us + 30 * S_US, lambda: bool(list(group.worker.groups())))
    changed["trip_us"] = trip_us
    group.settle(5)
    group.send(0)
    group.settle(100)
    assert any(f"waits for {what}" in each for each in shown())
    del changed["trip_us"]
    group.settle(100)
    assert not any("waits for" in each for each in shown())
