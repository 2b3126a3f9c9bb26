"""The size of a group over HTTP: from the loads in the log, by the process beside the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import attrs
import pytest

from equipoise.console.recent import Recent
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.hosting.runtime import DEPLOYED
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.replay.replayer import Replayer
from equipoise.replay.sizing.autoscaling import FollowingPolicy
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.group_sizes import FRESH_S, GroupSizes, NoAnswerError
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import Server
from equipoise.worker.settings import WorkerSettings
from tests.unit.replay.test_prediction import lived
from tests.unit.replay.test_size import Known

POLICY = FollowingPolicy(lag_s=20.0)


@attrs.define
class Host:
    """Leads the group of a log; `facts` are what the log holds."""

    facts: list[FactRecord]
    lead: Any
    partition: int = 3
    asked: list[tuple[int, int]] = attrs.field(factory=list)

    async def former(self, start: int, end: int) -> AsyncGenerator[tuple[FactRecord, list[DecisionRecord]], None]:
        self.asked.append((start, end))
        for each in self.facts:
            if start <= each.offset < end:
                await asyncio.sleep(0)
                yield each, []


def host(mean: float) -> Host:
    """Three members that do 1,000 records a second each, and twelve tasks that get so many."""
    log = Known(per_s=1_000, mean=mean).log()
    replayer = Replayer("orders")
    for _ in replayer.follow(iter(lived()[0])):
        pass
    machine = replayer.machine
    last = log[-1]
    assert isinstance(last, FactRecord)
    machine.state.last_append_ms, machine.state.last_offset = last.append_ms, last.offset
    lead = SimpleNamespace(groups={"orders": SimpleNamespace(name="orders", machine=machine, halted=None)})
    return Host([each for each in log if isinstance(each, FactRecord)], lead)


@attrs.define
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def answered(sizes: GroupSizes, policy: FollowingPolicy = POLICY) -> dict[str, Any]:
    while True:
        try:
            return await sizes.answer("orders", policy)
        except NoAnswerError as error:
            if "are being read" not in str(error) and "no answer within" not in str(error):  # a busy machine
                raise
        await asyncio.sleep(0.01)


async def test_size_is_computed_from_the_log_and_kept_for_a_while() -> None:
    there, clock = host(330), Clock()
    sizes = GroupSizes(lambda group: there, clock)  # type: ignore[arg-type, return-value]
    try:
        found = await answered(sizes)
        assert (found["now"], found["target_lag_s"]) == (3, 20.0)
        assert found["members"] > 3, "they do 3,000, and get 330 for each of twelve tasks"
        assert found["change"][0]["change"]["kind"] == "join"
        assert there.asked == [(max(0, there.facts[-1].offset + 1 - 20_000), there.facts[-1].offset + 1)]
        assert await answered(sizes) is found
        clock.now_s += FRESH_S
        again = await answered(sizes)
        assert again is not found
        assert (again["members"], again["holds"]) == (found["members"], True), "they are waited for"
        assert len(there.asked) == 1
        other = await answered(sizes, FollowingPolicy(most=3))
        assert other["members"] == 3
    finally:
        await sizes.close()


async def test_facts_that_come_are_followed_and_those_folded_again_are_not() -> None:
    there = host(330)
    known, later = there.facts[: len(there.facts) // 2], there.facts[len(there.facts) // 2 :]
    there.lead.groups["orders"].machine.state.last_offset = known[-1].offset
    sizes = GroupSizes(lambda group: there, Clock())  # type: ignore[arg-type, return-value]
    try:
        with pytest.raises(NoAnswerError, match="are being read"):
            await sizes.answer("orders", POLICY)
        for each in [*known[-20:], *later]:  # while the former ones are read
            sizes.note(3, each, [])
        followed = sizes._groups["orders"]
        await asyncio.wait_for(followed.reading, 10)  # type: ignore[arg-type]
        whole = GroupSizes(lambda group: host(330), Clock())  # type: ignore[arg-type, return-value]
        whole._followed("orders")
        await asyncio.wait_for(whole._groups["orders"].reading, 10)  # type: ignore[arg-type]
        assert followed.reader.read() == whole._groups["orders"].reader.read()
        sizes.forget(3)
        assert not sizes._groups
    finally:
        await sizes.close()


async def test_group_that_nobody_asks_about_is_forgotten() -> None:
    there, clock = host(330), Clock()
    sizes = GroupSizes(lambda group: there if group == "orders" else None, clock)  # type: ignore[arg-type, return-value]
    with pytest.raises(NoAnswerError, match="are being read"):
        await sizes.answer("orders", POLICY)
    assert "orders" in sizes._groups
    clock.now_s += 3_601
    with pytest.raises(NoAnswerError, match="not led by this worker"):
        await sizes.answer("other", POLICY)
    assert not sizes._groups
    await sizes.close()


class _Worker:
    log_id = "log"
    metrics = WorkerMetrics()
    settings = WorkerSettings()
    recent = Recent()
    rounds = Rounds(lambda group: None, WorkerSettings(), metrics, DEPLOYED)

    def __init__(self, sizes: GroupSizes, *peers: str) -> None:
        self.asked = AskedWorkers(sizes, peers)

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        return iter(())

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return ""

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        return led_here(lead.machine.state)


async def test_size_over_http_is_a_number_or_says_why_not() -> None:
    there = host(330)
    sizes = GroupSizes(lambda group: there if group == "orders" else None, Clock())  # type: ignore[arg-type, return-value]
    server = Server(_Worker(sizes), "127.0.0.1", 0)
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

            async def get(path: str) -> tuple[int, dict[str, Any]]:
                async with http.get(path) as answer:
                    return answer.status, await answer.json()

            status, document = await get("/groups/orders/size?lag_s=20")
            assert (status, "are being read" in document["problem"]) == (503, True)
            while status == 503:
                status, document = await get("/groups/orders/size?lag_s=20")
            assert status == 200
            document_members = document["members"]
            assert document_members > 3
            assert isinstance(document["line"], str)
            assert await get("/groups/other/size") == (404, {"problem": "group 'other' is not led by this worker"})
            async with http.get("/groups/orders/size/metrics?lag_s=20") as answer:
                assert (await answer.text()).splitlines()[-1] == f'equipoise_recommended_members{{group="orders"}} {document_members}'
            status, document = await get("/groups/orders/size?lag=20")
            assert (status, document["problem"][:10]) == (400, "lag: there")
    finally:
        await server.stop()
        await sizes.close()


async def test_worker_that_does_not_lead_the_group_asks_the_others() -> None:
    there = host(330)
    sizes = GroupSizes(lambda group: there if group == "orders" else None, Clock())  # type: ignore[arg-type, return-value]
    nobodys = GroupSizes(lambda group: None, Clock())
    leader = Server(_Worker(sizes), "127.0.0.1", 0)
    leads = f"127.0.0.1:{await leader.start()}"
    other = Server(_Worker(nobodys, "127.0.0.1:1", "no-such-name.invalid:8090", leads), "127.0.0.1", 0)
    port = await other.start()
    try:
        found = await answered(sizes)
        asked = AskedWorkers(nobodys, [leads])
        assert await asked.answer("orders", POLICY) == json.loads(json.dumps(found))
        with pytest.raises(NoAnswerError, match="no other one answers") as caught:
            await asked.answer("nobody's", POLICY)
        assert caught.value.status == 503
        with pytest.raises(NoAnswerError, match="not led by this worker"):
            await asked.answer("orders", POLICY, from_peer=True)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/groups/orders/size?lag_s=20") as answer:
            assert (answer.status, (await answer.json())["members"]) == (200, found["members"])
    finally:
        await other.stop()
        await leader.stop()
        await sizes.close()
