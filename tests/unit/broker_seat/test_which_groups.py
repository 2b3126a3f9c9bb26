"""Which groups a pattern of `equipoise lead` means."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from equipoise.cli.lead import configuration
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ListedGroup
from equipoise.lead.broker_seat import led_groups
from equipoise.lead.broker_seat.led_groups import HowToLead, LedGroups, leads
from equipoise.lead.broker_seat.seat_queue import PREFIX
from equipoise.lead.seat.generation import SeatSettings


def group(name: str = "orders-1", group_type: str = "classic", protocol_type: str = "consumer", state: str = "Stable") -> ListedGroup:
    return ListedGroup(name=name, group_type=group_type, protocol_type=protocol_type, state=state)


@pytest.mark.parametrize(
    "found",
    [
        group(),
        group(group_type="consumer"),
        group(group_type="streams", protocol_type="streams"),
        group(state="PreparingRebalance"),
        group(state="Reconciling", group_type="consumer"),
        group("payments"),
        group("a[1]-x"),
    ],
)
def test_groups_with_members_of_each_protocol_are_led(found: ListedGroup) -> None:
    assert leads(found, ("orders-*", "payments", "a[1]-*"))


@pytest.mark.parametrize(
    "found",
    [
        group("ORDERS-1"),
        group("my-orders-1"),
        group("payments2"),
        group(state="Empty"),
        group(state="Dead"),
        group(group_type="share"),
        group(protocol_type="connect"),
        group(f"{PREFIX}orders-1"),
        group("a1-x"),
    ],
)
def test_other_groups_are_left_alone(found: ListedGroup) -> None:
    assert not leads(found, ("orders-*", "payments", f"{PREFIX}*", "a[1]-*"))


@pytest.mark.parametrize("raised", [KeyError(0), OSError("away"), RuntimeError("closed")])
async def test_groups_that_cannot_be_listed_are_asked_for_again(
    raised: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the client raises: a worker that leads them beside others goes on."""
    asked: list[Connection] = []
    stopped = asyncio.Event()

    async def listed_groups(connection: Connection) -> list[ListedGroup]:
        asked.append(connection)
        if len(asked) < 3:
            raise raised
        stopped.set()
        return []

    monkeypatch.setattr(led_groups, "listed_groups", listed_groups)
    monkeypatch.setattr(led_groups, "LOOK_S", 0.01)
    how = HowToLead(connection=Connection(), settings=SeatSettings(), config=configuration(()), streams_config=configuration((), streams=True))
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(LedGroups(how, ("orders-*",), tmp_path / "logs").run(stopped), 10)
    assert caplog.text.count("groups cannot be listed") == 1
    assert len(asked) == 3
