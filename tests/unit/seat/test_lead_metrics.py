"""What `equipoise lead` shows to those who watch it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from equipoise.cli import main
from equipoise.lead.metrics import LeadCollector, lead_server
from equipoise.lead.seat_status import MOST_SILENT_S, SeatState, SeatStatus
from tools.brokers import free_ports


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def status(clock: Clock, group: str = "g") -> SeatStatus:
    return SeatStatus(group=group, monotonic_s=clock)


def shown(*statuses: SeatStatus) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(LeadCollector(lambda: statuses))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for line in lines if not line.startswith("#") for name, _, value in [line.rpartition(" ")]}


def test_seat_that_joins_is_not_ready_and_knows_nothing() -> None:
    seat = status(Clock())
    found = shown(seat)
    assert found['equipoise_lead_seat{group="g",state="joins"}'] == 1
    assert not [name for name in found if name.startswith(("equipoise_lead_members", "equipoise_lead_lag", "equipoise_lead_decision"))]
    assert seat.unready() == "group g: the seat is not in the group yet"


def test_seat_that_leads_shows_since_when_as_of_when_and_what_is_missing() -> None:
    clock = Clock()
    seat = status(clock)
    seat.sees(3, 2)
    seat.become(SeatState.LEADS)
    clock.now_s += 50
    seat.decided(4)
    seat.lag_records, seat.uncommitted, seat.answered_s = 2_869, 1, clock.now_s - 2
    clock.now_s += 5
    found = shown(seat)
    expected = {
        "state_seconds": 55,
        "answer_age_seconds": 7,
        "decision_age_seconds": 5,
        "pending_moves": 4,
        "members": 3,
        "seats": 2,
        "lag_records": 2_869,
        "uncommitted_partitions": 1,
    }
    assert {name: found[f'equipoise_lead_{name}{{group="g"}}'] for name in expected} == expected
    assert seat.unready() == ""
    clock.now_s += MOST_SILENT_S
    assert seat.unready() == "group g: its coordinator has not answered for 22 s"
    seat.waits_since_s = clock.now_s - 20
    assert seat.unready() == "", "the coordinator keeps the answer until everybody has joined"


def test_seat_that_stands_by_or_is_refused_has_nothing_to_carry_out() -> None:
    seat = status(Clock())
    seat.become(SeatState.LEADS)
    seat.decided(4)
    assert seat.become(SeatState.STANDS_BY, leader="app-1")
    assert seat.become(SeatState.STANDS_BY, leader="app-2"), "another one leads"
    assert not seat.become(SeatState.STANDS_BY, leader="app-2")
    assert shown(seat)['equipoise_lead_pending_moves{group="g"}'] == 0
    seat.sees(3, 1)
    seat.become(SeatState.REFUSED, problem="no jar")
    assert (seat.unready(), seat.members) == ("", None)


async def test_server_is_ready_when_every_seat_is_in_its_group() -> None:
    import asyncio

    seat = status(Clock())
    server = lead_server("g", lambda: [seat], seat.unready, "127.0.0.1", 0)
    port = await server.start()

    def asked(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        code, text = await asyncio.to_thread(asked, "/ready")
        assert (code, json.loads(text)["problem"]) == (503, "group g: the seat is not in the group yet")
        assert (await asyncio.to_thread(asked, "/health"))[0] == 200
        seat.become(SeatState.STANDS_BY)
        assert (await asyncio.to_thread(asked, "/ready"))[0] == 200
        assert 'equipoise_lead_seat{group="g",state="stands_by"} 1.0' in (await asyncio.to_thread(asked, "/metrics"))[1]
    finally:
        await server.stop()


@pytest.mark.parametrize("group", ["orders", "orders-*"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_broker_is_said_at_once(group: str, dry_run: bool, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    place = tmp_path / ("logs" if "*" in group else "x.db")
    words = ["lead", "--bootstrap", f"127.0.0.1:{port}", "--group", group, *(["--dry-run"] if dry_run else ["--to", str(place)])]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"bootstrap: no broker answers at 127.0.0.1:{port}" in done.stderr
    assert not place.exists()
