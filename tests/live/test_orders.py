"""Processes of the sample application through kill -9, SIGSTOP beyond the lease, and a second
process with one id: by an independent recount.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.live.leader import leading
from tests.live.orders import LEASE_S, SESSION_MS, Orders, expired
from tests.live.test_restorer import until

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])


@BOTH
async def test_orders_are_counted_once_through_kills_pauses_and_duplicates(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str) -> None:
    with Orders(bootstrap, prefix, tmp_path, guarantee) as orders:
        await orders.make_topics()
        async with leading(bootstrap, prefix, orders.group, orders.config, orders.topology) as leader:
            first, second = orders.start("m1"), orders.start("m2")
            await until(lambda: len(leader.machine.state.owner) == 4)
            load = asyncio.ensure_future(orders.produce(12_000, per_second=250))
            await asyncio.sleep(2)

            orders.kill(first)  # its disk and its name come back: the others do not wait for the dead
            first = orders.start("m1")
            await until(lambda: expired(leader, "m1") == ["proven_dead"])
            await until(lambda: len(leader.machine.state.owner) == 4)

            orders.signal(second, signal.SIGSTOP)  # beyond the lease and the session: it wakes into a world that went on
            await until(lambda: expired(leader, "m2") == ["session_timeout"])
            await until(lambda: set(leader.machine.state.owner.values()) == {"m1"})
            await asyncio.sleep(1)
            orders.signal(second, signal.SIGCONT)
            await until(lambda: "m2" in leader.machine.state.members)
            await orders.until_said(second, "has ended (lease_lapsed")

            other = orders.start("m1", folder="elsewhere")  # a second process with its id, which can prove nothing
            assert await orders.gone(first) == 3
            assert "another process has joined with this member id" in orders.said(first)
            assert expired(leader, "m1") == ["proven_dead", "superseded"]
            held = [each.hold_ms for each in leader.decided(_assigned()) if each.hold_ms]
            assert all(hold_ms == SESSION_MS for holds in held for hold_ms in holds.values())

            third = orders.start("m3")
            await orders.until_said(third, "m3 runs")
            await load
            await orders.produce(200)
            found = await orders.until_counted()
            assert found.faults == []
            assert found.orders == 12_200

            for name in (other, second, third):
                orders.signal(name, signal.SIGTERM)
            assert [await orders.gone(name) for name in (other, second, third)] == [0, 0, 0]
            await until(lambda: not leader.machine.state.members)
            print(f"{guarantee}: {found.repeated} counts again, {found.overtaken} late; lease {LEASE_S} s")


async def test_members_with_a_worker_inside_need_no_other_service(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    with Orders(bootstrap, prefix, tmp_path, "exactly_once", partitions=2) as orders:
        await orders.make_topics()
        first = orders.start("m1", lead=True)  # also configures the group: there is no other process to do so
        await orders.until_said(first, "m1 runs", times=2)
        second = orders.start("m2", lead=True)
        await orders.until_said(second, "m2 runs")
        load = asyncio.ensure_future(orders.produce(6_000, per_second=200))
        await asyncio.sleep(1)
        orders.kill(first)  # the leader and a member in one
        await orders.until_said(second, "m2 runs", times=2)
        await load
        found = await orders.until_counted()
        assert found.faults == []
        assert found.orders == 6_000
        orders.signal(second, signal.SIGTERM)
        assert await orders.gone(second) == 0


def _assigned() -> type:
    from equipoise.events.decisions import MemberAssigned

    return MemberAssigned
