"""Tasks with several sources take them in order, on simulated brokers: at the first start, after a
restart and a hand-over, with either guarantee.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from equipoise import JsonSerde, Record, Source, StringSerde, TaskContext
from equipoise.testing import Group, TaskDriver

COUNTRIES = ["SE", "NO", "DE"]
USERS = Source("users", table=True, value_serde=StringSerde())
SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde(), "state_serde": JsonSerde()}


def enrich(record: Record, context: TaskContext) -> None:
    if record.topic == "users":
        context.state.put(record.key, record.value)
    else:
        context.send("enriched", [record.value, context.state.get(record.key)], key=record.key)


def group(guarantee: str, sources: list[str | Source], seed: int = 0) -> Group:
    return Group(enrich, sources=sources, state="countries", outputs="enriched", guarantee=guarantee, partitions=2, seed=seed, **SERDES)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", range(3))
def test_table_is_there_before_the_first_record_that_is_joined_with_it(guarantee: str, seed: int) -> None:
    with group(guarantee, ["clicks", USERS], seed) as running:
        for number in range(1_500):  # they are older, and more than a task takes at once
            running.send(number, key=f"u{number % 30}", topic="clicks", timestamp_ms=number)
        for number in range(30):
            running.send(COUNTRIES[number % 3], key=f"u{number}", topic="users", timestamp_ms=1_000_000 + number)
        running.join("m1", "m2")
        running.settle()
        for number in range(30):
            running.send(COUNTRIES[number % 3].lower(), key=f"u{number}", topic="users", timestamp_ms=2_000_000 + number)
        for number in range(300):
            running.send(-number, key=f"u{number % 30}", topic="clicks", timestamp_ms=1_500_000 + number)
        running.crash("m1")
        running.settle()
        found = [each.value for each in running.outputs()]
        assert {country for number, country in found if number > 0} == set(COUNTRIES)
        assert {country for number, country in found if number < 0} <= {*COUNTRIES, *map(str.lower, COUNTRIES)}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_sources_are_read_by_their_timestamps_across_restarts(guarantee: str) -> None:
    with group(guarantee, ["clicks", Source("users", value_serde=StringSerde())]) as running:
        for number in range(3_000):
            running.send(number, key="u", topic="clicks", timestamp_ms=10 * number)
        for number in range(300):
            running.send(str(number), key="u", topic="users", timestamp_ms=100 * number - 1)
        running.join("m1")
        running.advance(0.6)
        running.crash("m1")
        running.join("m1")
        running.settle()
        assert {(number, country) for number, country in (each.value for each in running.outputs())} == {
            (number, str(number // 10)) for number in range(3_000)
        }
        running.recount()


def test_driver_reads_each_source_with_its_serde() -> None:
    async def run() -> None:
        driver = TaskDriver(enrich, sources=["clicks", USERS], **SERDES)
        await driver.send("SE", key="ann", topic="users")
        (sent,) = await driver.send({"page": "/"}, key="ann")
        assert sent.value == [{"page": "/"}, "SE"]

    asyncio.run(run())
