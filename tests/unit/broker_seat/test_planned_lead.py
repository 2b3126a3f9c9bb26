"""What is recorded of the change that equipoise takes part in a group: what it is, and whether it
was made.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.cli.lead import configuration
from equipoise.hosting.runtime import DEPLOYED
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat import judged_lead
from equipoise.lead.broker_seat.first_plan import FirstPlan
from equipoise.lead.broker_seat.judged_lead import LeadMeasuring, planned_lead
from equipoise.lead.broker_seat.ways import Way
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat_status import SeatState, SeatStatus
from equipoise.log import open_log
from equipoise.replay.known_changes import KnownChange, known_changes

FIRST = FirstPlan(has={"t-0": "a-1", "t-1": "b-1"}, wanted={"t-0": "a-1", "t-1": "b-1"}, idle=(), names={"a-1": "a", "b-1": "b"}, strategy="range")
SEAT, BROKERS = Way(name="seat"), Way(name="brokers")
JOINS = "equipoise joins the group, and stands by until its leader ends"


@attrs.define
class SettledSeat:
    status: SeatStatus
    is_settled: bool = True


async def first() -> FirstPlan:
    return FIRST


@contextlib.asynccontextmanager
async def at_rest(measuring: LeadMeasuring) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async def describe() -> Any:
        return FIRST.described({"a", "b"}), True

    yield describe


async def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, state: SeatState, *, evicts: bool) -> KnownChange:
    """The change in the log after it was measured, of a seat that is in this state."""
    monkeypatch.setattr(judged_lead, "LOOK_S", 0.01)
    monkeypatch.setattr(judged_lead, "WITHIN_S", 60.0)
    monkeypatch.setattr(LeadMeasuring, "_describing", at_rest)
    place = tmp_path / "g.db"
    with SeatLog(place, "g") as log:
        log.configure(configuration(()))
        planned = await planned_lead("g", log, way, first, DEPLOYED, evicts=evicts)
        assert planned is not None
        planned = attrs.evolve(planned, change=attrs.evolve(planned.change, quiet_ms=50))
        status = SeatStatus(group="g", monotonic_s=DEPLOYED.monotonic_s)
        status.become(state)
        await LeadMeasuring(Connection(), "g", log, way, planned, DEPLOYED).run(SettledSeat(status))
    with open_log(place) as written:
        (known,) = known_changes(written.read())
    return known


async def test_seat_behind_another_leader_joins_and_does_not_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await made(tmp_path, monkeypatch, SEAT, SeatState.STANDS_BY, evicts=False)
    assert known.planned is not None
    assert known.planned.what == JOINS
    assert known.judged is not None
    assert known.judged.outcome == "at_rest"


@pytest.mark.parametrize(("way", "evicts"), [(SEAT, True), (BROKERS, False)])
async def test_lead_is_not_judged_while_the_seat_stands_by(way: Way, evicts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await made(tmp_path, monkeypatch, way, SeatState.STANDS_BY, evicts=evicts)
    assert known.planned is not None
    assert known.planned.what.startswith("equipoise leads the group from")
    assert known.judged is not None
    assert (known.judged.outcome, known.verdict) == ("replaced", "replaced")


async def test_lead_is_judged_when_the_seat_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await made(tmp_path, monkeypatch, SEAT, SeatState.LEADS, evicts=True)
    assert known.judged is not None
    assert known.judged.outcome == "at_rest"


def test_dry_run_warns_of_the_slowest_poll_where_the_seat_joins() -> None:
    joins, evicts = FIRST.warnings(SEAT, evicts=False), FIRST.warnings(SEAT, evicts=True)
    assert any("waits for the slowest member to poll, up to its max.poll.interval.ms" in line for line in joins)
    assert "leads when the present leader ends" in joins[0]
    assert len(evicts) == 1
    assert FIRST.warnings(BROKERS, evicts=False) == []
