"""Those who watch groups of others that equipoise leads, on a real broker: what `equipoise lead`
serves, what its log records, and what `equipoise cluster` and `status` say, is so.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import writer
from tests.live.group_clients import ROOT, aiokafka_command
from tests.live.seat_process import SeatProcess, answer_of, metric_in
from tests.live.test_broker_seat import answered
from tests.live.test_restorer import until
from tests.live.test_seat import Start, lead, start, started_behind, until_shared
from tools.brokers import free_ports

__all__ = ["lead", "start"]
"""Fixtures."""
RECORDS = 600


async def rows(bootstrap: str) -> list[dict[str, Any]]:
    """Every group, in the order in which `equipoise cluster` lists them."""
    said = await asyncio.to_thread(answered, "cluster", f"kafka://{bootstrap}", "--json")
    found: list[dict[str, Any]] = json.loads(said)["groups"]
    return found


async def row(bootstrap: str, group: str) -> dict[str, Any]:
    return next(each for each in await rows(bootstrap) if each["group"] == group)


async def shows(seat: SeatProcess, name: str, value: float, **labels: str) -> None:
    """Until the metric has this value."""
    for _ in range(300):
        found = seat.metric(f"equipoise_lead_{name}", **labels)
        if found == value:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{name}: {found} is not {value}\n{seat.asked('/metrics')[1]}\n{seat.said}")


async def test_seat_that_stands_by_is_nowhere_said_to_lead(start: Start, lead: Any, bootstrap: str, prefix: str) -> None:
    """Until it does, with --evict. A seat that hangs delays a rebalance, and is named by the other."""
    clients = await started_behind(start, bootstrap, prefix, ("first", "second"), aiokafka_command)
    await until_shared(*clients)
    by = lead()
    await until(lambda: "standing by" in by.said)
    await until(lambda: "lead-2 is over" in by.said)
    await shows(by, "seat", 1, group=prefix, state="stands_by")
    await shows(by, "members", 2, group=prefix)
    assert by.asked("/ready")[0] == 200
    assert "equipoise leads" not in by.said
    assert [each.planned.what for each in by.changes() if each.planned] == ["equipoise joins the group, and stands by until its leader ends"]
    assert "waits for the slowest member to poll" in by.said
    found = await row(bootstrap, prefix)
    assert (found["members"], found["seats"], found["could_be_led"]) == (2, 1, [])
    assert found["led_by"].endswith("; equipoise stands by")
    shown = await asyncio.to_thread(answered, "status", str(by.log))
    assert "every task runs" not in shown

    leads = lead("--evict")
    await until(lambda: leads.leads)
    await shows(leads, "seat", 1, group=prefix, state="leads")
    await shows(leads, "seats", 2, group=prefix)
    assert (await row(bootstrap, prefix))["led_by"] == "equipoise"
    assert f"group {prefix}: equipoise leads it, from generation" in leads.said
    await until_shared(*clients)

    leads.process.send_signal(signal.SIGSTOP)
    third = start("third", aiokafka_command)
    await until(lambda: "for another seat of equipoise" in by.said)
    await shows(by, "silent_seats_total", 1, group=prefix)
    leads.process.send_signal(signal.SIGCONT)
    await until(lambda: "this process did not run for" in leads.said)
    await until_shared(*clients, third)
    assert leads.end() == 0
    assert leads.verified()


async def test_group_that_only_seats_are_in_is_read_by_nobody(start: Start, lead: Any, bootstrap: str, prefix: str) -> None:
    client = start("only", aiokafka_command)
    await until(lambda: len(client.assigned) == 6)
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        for number in range(RECORDS):
            await producer.send(prefix, b"v", partition=number % 6)
    seat = lead("--evict")
    await until(lambda: seat.leads)
    await until(lambda: len(client.assigned) == 6)
    await shows(seat, "uncommitted_partitions", 0, group=prefix)
    client.signal(signal.SIGTERM)
    client.ended()
    async with writer(Connection(bootstrap=bootstrap)) as producer:
        for number in range(RECORDS):
            await producer.send(prefix, b"v", partition=number % 6)
    await shows(seat, "members", 0, group=prefix)
    await shows(seat, "lag_records", RECORDS, group=prefix)
    first, *_ = await rows(bootstrap)
    assert (first["group"], first["state"], first["members"], first["seats"]) == (prefix, "nobody reads", 0, 1)
    assert first["lag"] == RECORDS
    shown = await asyncio.to_thread(answered, "cluster", f"kafka://{bootstrap}", "--group", prefix)
    assert "nobody reads: the group has 1 seat of equipoise" in shown
    assert "could lead it" not in shown
    assert seat.end() == 0


@pytest.mark.slow
async def test_rebalances_of_a_watched_group_are_counted_by_cause(start: Start, bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """They are counted a minute after they were over."""
    (port,) = free_ports(1)
    words = ["record", f"kafka://{bootstrap}", "--to", str(tmp_path / "cluster.db"), "--group", prefix, "--metrics-port", str(port)]
    recording = subprocess.Popen([sys.executable, "-m", "equipoise", *words], cwd=ROOT)  # noqa: ASYNC220  # it returns at once

    def text() -> str:
        return answer_of(f"http://127.0.0.1:{port}/metrics")[1]

    try:
        await until(lambda: bool(text()))  # what was before it began is not counted
        first = start("first", aiokafka_command)
        await until(lambda: len(first.assigned) == 6)
        second = start("second", aiokafka_command)
        await until_shared(first, second)
        for _ in range(140):
            if metric_in(text(), "equipoise_rebalances_total", group=prefix, cause="joined"):
                break
            await asyncio.sleep(1)
        assert metric_in(text(), "equipoise_rebalances_total", group=prefix, cause="joined") == 1, text()
        assert metric_in(text(), "equipoise_rebalances_total", group=prefix, cause="expired") is None
    finally:
        recording.send_signal(signal.SIGINT)
        recording.wait(30)
