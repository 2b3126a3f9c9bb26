"""When the seat of a classic group changes nothing more, so that what it cost can be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.kafka.connection import Connection
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.seat import Seat
from equipoise.lead.seat_status import SeatState


@pytest.mark.parametrize("evict", [False, True])
async def test_seat_that_leads_is_settled_whoever_was_to_be_taken_out(tmp_path: Path, evict: bool) -> None:
    with SeatLog(tmp_path / "seat.db", "g") as log:
        seat = Seat(Connection(bootstrap="127.0.0.1:1"), "g", log, SeatSettings(), evict=evict)
        assert not seat.is_settled, "it is not in the group"
        seat.status.become(SeatState.STANDS_BY)
        assert seat.is_settled is not evict, "the leader is still to be taken out"
        seat.status.become(SeatState.LEADS)
        assert seat.is_settled
