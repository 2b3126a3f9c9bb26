"""The recount of the sample application sees what it is there to see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from equipoise.kafka.connection import Connection
from examples.orders.produce import make_topics
from examples.orders.recount import recount
from tests.live.test_restorer import producing

Said = tuple[int, int, int, int, int | str]
"""orders, cents, at, after, token; or the log's id and the token"""
RIGHT: list[Said] = [(1, 100, 0, -1, 1), (2, 200, 1, 0, 1), (3, 300, 2, 1, 2)]
REPEATED: list[Said] = [*RIGHT[:2], (3, 300, 1, 1, 2), (4, 400, 2, 1, 2)]
LOST: list[Said] = [RIGHT[0], (2, 200, 0, 0, 1), (3, 300, 2, 0, 2), (3, 300, 1, 0, 2)]
"""The order at 1 is not in the totals of that at 2; by their number alone, one counted twice hides
it.
"""
UNSAID: list[Said] = [RIGHT[0], (3, 300, 2, 1, 1)]
NEW_LOG: list[Said] = [RIGHT[0], (2, 200, 1, 0, 2), (3, 300, 2, 1, "new/1")]
"""Tokens begin at 1 again."""
LATE: list[Said] = [RIGHT[0], (2, 200, 1, 0, 2), (3, 300, 2, 1, 1)]


@pytest.mark.parametrize(
    ("said", "least", "exact"),
    [
        (RIGHT, [], []),
        (REPEATED, [], ["it is order 2 behind 0", "it is order 3 behind 1", "1 counts were said twice"]),
        (LOST, ["the order at 1 is lost"], ["it is order 1 behind -1", "is lost", "order 3 behind 1", "order 2 behind 0", "said twice"]),
        (UNSAID, ["1 of 3 orders were not counted, the first at 1"], ["1 of 3 orders were not counted, the first at 1"]),
        (NEW_LOG, [], []),
        (LATE, [], ["1 counts with a smaller fencing token come after one with a larger"]),
    ],
    ids=["right", "repeated", "lost", "unsaid", "new log", "late"],
)
@pytest.mark.smoke
async def test_recount_finds_faults(bootstrap: str, prefix: str, said: list[Said], least: list[str], exact: list[str]) -> None:
    connection: Any = Connection(bootstrap=bootstrap)
    await make_topics(connection, prefix, 1)
    async with producing(bootstrap) as producer:
        for _ in range(3):
            await producer.send_and_wait(prefix, json.dumps({"cents": 100}).encode(), key=b"c")
        for orders, cents, at, after, token in said:
            value = json.dumps({"orders": orders, "cents": cents, "at": at, "after": after}).encode()
            log_id, _, number = f"log/{token}".rpartition("/")
            headers = [("equipoise", f"g/0_0/{number}/0/{log_id}".encode())]
            await producer.send_and_wait(f"{prefix}-counts", value, key=b"c", headers=headers)
    for exactly_once, wanted in ((False, least), (True, exact)):
        found = await recount(connection.options(), prefix, exactly_once=exactly_once)
        assert len(found.faults) == len(wanted), found.faults
        assert all(text in fault for text, fault in zip(wanted, found.faults, strict=True)), found.faults
