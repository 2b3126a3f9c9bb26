"""Which groups a pattern of `equipoise lead` means."""

from __future__ import annotations

import pytest

from equipoise.broker_seat.led_groups import leads
from equipoise.broker_seat.seat_queue import PREFIX
from equipoise.kafka.listed_groups import ListedGroup


def group(name: str = "orders-1", group_type: str = "classic", protocol_type: str = "consumer", state: str = "Stable") -> ListedGroup:
    return ListedGroup(name=name, group_type=group_type, protocol_type=protocol_type, state=state)


@pytest.mark.parametrize(
    "found",
    [
        group(), group(group_type="consumer"), group(group_type="streams", protocol_type="streams"), group(state="PreparingRebalance"),
        group(state="Reconciling", group_type="consumer"), group("payments"),
    ],
)  # fmt: skip
def test_groups_with_members_of_each_protocol_are_led(found: ListedGroup) -> None:
    assert leads(found, ("orders-*", "payments"))


@pytest.mark.parametrize(
    "found",
    [
        group("ORDERS-1"), group("my-orders-1"), group("payments2"), group(state="Empty"), group(state="Dead"), group(group_type="share"),
        group(protocol_type="connect"), group(f"{PREFIX}orders-1"),
    ],
)  # fmt: skip
def test_other_groups_are_left_alone(found: ListedGroup) -> None:
    assert not leads(found, ("orders-*", "payments", f"{PREFIX}*"))
