"""`equipoise scale-down` on a live group: members are asked, drained, released, and their processes
end; interrupted, followed again, taken back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from equipoise.log import open_log
from equipoise.member.copies.throttle import LEAST_RECORDS
from equipoise.replay.known_changes import known_changes
from tests.live.leader import leading
from tests.live.orders import PATIENCE_S, Orders
from tests.live.test_restorer import until

pytestmark = pytest.mark.slow


class Tool:
    """`equipoise scale-down` as a process."""

    def __init__(self, orders: Orders, folder: Path, *arguments: str, name: str = "tool") -> None:
        where = ["--bootstrap", orders.connection.bootstrap, "--prefix", orders.prefix, "--group", orders.group]
        self._out, self._err = folder / f"{name}.stdout", folder / f"{name}.stderr"
        command = [sys.executable, "-m", "equipoise", "scale-down", *where, *arguments]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, "NO_COLOR": "1"})

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(self.process.wait)


async def run(orders: Orders, folder: Path, *arguments: str, code: int = 0) -> Tool:
    tool = Tool(orders, folder, *arguments)
    assert await tool.ends() == code, tool.out + tool.err
    return tool


async def test_scale_down_drains_and_releases_members_and_loses_no_order(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    with Orders(bootstrap, prefix, tmp_path, "exactly_once", partitions=6) as orders:
        await orders.make_topics()
        async with leading(bootstrap, prefix, orders.group, orders.config, orders.topology) as leader:
            state = leader.machine.state
            names = {member: orders.start(member) for member in ("m1", "m2", "m3", "m4")}
            await until(lambda: sorted(set(state.owner.values())) == ["m1", "m2", "m3", "m4"] and len(state.owner) == 6 and not state.in_flight)
            load = asyncio.ensure_future(orders.produce(8_000, per_second=200))

            dry = json.loads((await run(orders, tmp_path, "--keep", "50%", "--dry-run", "--json")).out)
            assert (dry["keep"], len(dry["asked"])) == (2, 2)
            predicted = dry["predicted"]
            if predicted is not None:  # None: a copy is behind, and nothing was restored yet that shows a speed
                assert predicted["change"] == {"kind": "leave", "members": sorted(each["member"] for each in dry["asked"])}
                assert predicted["intervals"]["moves"]["low_95"] >= 1
                assert predicted["bytes_read"]["high_95"] > 10 * predicted["intervals"]["records_restored"]["high_95"]
            assert not state.asked, "a preview asks no member"

            tool = await run(orders, tmp_path, "--keep", "50%")  # not always whom the dry run named: what each holds has grown since
            gone = [member for member in names if f"{member} left" in tool.err.splitlines()]
            assert len(gone) == 2
            for member in gone:
                assert await orders.gone(names[member]) == 0, "who was released ends by itself"
                assert f"{member} is asked to leave" in orders.said(names[member])
            assert "2 members gone after" in tool.out
            assert (len(state.owner), sorted(state.members), state.asked) == (6, sorted({"m1", "m2", "m3", "m4"} - set(gone)), {})

            await load
            found = await orders.until_counted()
            assert (found.faults, found.orders) == ([], 8_000)
            await until(lambda: state.change is None)
        with open_log(f"kafka://{orders.connection.bootstrap}/{prefix}") as log:
            (change,) = known_changes(log.read(), orders.group)
        assert (change.kind, change.what()) == ("scale_down", f"{', '.join(sorted(gone))} leave")
        assert change.planned is not None
        assert [each.metric for each in change.planned.expected] in ([], ["unavailable_task_ms", "moves", "rest_ms"])
        assert bool(change.planned.expected) != ("not predicted: " in tool.err)
        assert f"{change.change_id}: {change.what()}; expected: " in tool.err
        assert change.judged is not None
        assert change.judged.moves >= 2


@pytest.mark.smoke
async def test_interrupted_scale_down_stays_requested_until_cancelled(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """The member that is asked is stopped, so it gives nothing up, and the request waits: the
    moment to cancel it.
    """
    with Orders(bootstrap, prefix, tmp_path, "at_least_once", partitions=2, session_ms=90_000, lease_margin_ms=5_000) as orders:
        # A slow machine commits rarely, and each commit holds a record per customer: some seconds
        # of orders are still minutes of restoring.
        orders.restore_records_per_s = 0.3
        orders.config = attrs.evolve(orders.config, knobs=attrs.evolve(orders.config.knobs, num_standbys=0, acceptable_recovery_lag=0))
        await orders.make_topics()
        async with leading(bootstrap, prefix, orders.group, orders.config, orders.topology) as leader:
            state = leader.machine.state
            first, second = orders.start("m1"), orders.start("m2")
            await until(lambda: sorted(state.owner.values()) == ["m1", "m2"])
            await orders.produce(3_000, per_second=500)
            await orders.until_counted()
            # A copy that the first of them kept from its beginnings: until its lag is known, it
            # would take over at once.
            await until(lambda: all(lag > LEAST_RECORDS for each in state.members.values() for lag in each.lags.values() if isinstance(lag, int)))

            tool = Tool(orders, tmp_path, "--keep", "50%")
            await until(lambda: "asked to leave" in orders.said(first) + orders.said(second))
            orders.signal(first if "asked to leave" in orders.said(first) else second, signal.SIGSTOP)
            await until(lambda: "still has" in tool.err or "released" in tool.err)
            (asked,) = state.asked
            tool.process.send_signal(signal.SIGINT)
            assert await tool.ends() == 130
            assert f"scale-down --group {orders.group} --cancel" in tool.err
            assert state.asked == {asked: None}, "the members go on leaving"

            followed = await run(orders, tmp_path, "--follow", "--timeout", "1", "--json", code=1)
            told = json.loads(followed.out)
            assert (told["outcome"], told["members"], told["picked"]) == ("timeout", {asked: "draining"}, None)

            back = await run(orders, tmp_path, "--cancel", "--json")
            assert json.loads(back.out)["members"] == {asked: "stays"}
            await until(lambda: not state.asked and not state.members[asked].leaving)
            orders.signal(first if asked == "m1" else second, signal.SIGCONT)
            await orders.until_said(first if asked == "m1" else second, "is asked to stay")
            assert "no member is asked to leave" in (await run(orders, tmp_path, "--cancel")).out


async def test_scale_down_of_an_unknown_group_names_it(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    with Orders(bootstrap, prefix, tmp_path, "at_least_once", partitions=1) as orders:
        async with leading(bootstrap, prefix, "another", orders.config, orders.topology):
            tool = await run(orders, tmp_path, "--keep", "50%", code=2)
            assert tool.err == f"equipoise: --group: the log holds no fact of group {orders.group!r}; it holds 'another'\n"
