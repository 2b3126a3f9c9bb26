"""What a worker serves over HTTP, from a stub of the worker."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import aiohttp
import pytest

from equipoise.console.recent import Recent
from equipoise.hosting.runtime import DEPLOYED
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.group_sizes import GroupSizes
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import ENDPOINTS, Server
from equipoise.worker.settings import WorkerSettings
from tests.groups import Group


class _Worker:
    log_id = "the log & more"
    metrics = WorkerMetrics()
    settings = WorkerSettings()
    recent = Recent()
    rounds = Rounds(lambda group: None, WorkerSettings(), metrics, DEPLOYED)
    asked = AskedWorkers(GroupSizes(lambda group: None, DEPLOYED.monotonic_s), ())

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        yield 0, GroupLead("orders/eu <1>", Group().starts("m1", "m2", stateful=2).machine)

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return "no partitions were assigned yet"

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        return led_here(lead.machine.state)


async def test_index_describes_itself_and_its_links_answer() -> None:
    server = Server(_Worker(), "127.0.0.1", 0)
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            async with http.get("/") as answer:
                assert (answer.status, answer.content_type) == (200, "text/html")
                page = await answer.text()
            assert "leads the groups of log the log &amp; more" in page
            assert "state of group orders/eu &lt;1&gt;" in page
            links = re.findall(r'href="([^"]+)"', page)
            assert links == [*ENDPOINTS, "/groups/orders/eu%20%3C1%3E"]
            for link in links:
                async with http.get(link) as answer:
                    assert answer.status == (503 if link == "/ready" else 200), link
    finally:
        await server.stop()


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip", "gzip"), ("deflate, gzip", "gzip"), ("identity", None), ("br", None)])
async def test_metrics_are_compressed_for_those_who_take_it(accepted: str, encoding: str | None) -> None:
    server = Server(_Worker(), "127.0.0.1", 0)
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, http.get("/metrics", headers={"Accept-Encoding": accepted}) as answer:
            assert answer.headers.get("Content-Encoding") == encoding
            text = await answer.text()
        assert text.startswith("# HELP equipoise_")
        assert 'equipoise_groups{condition="halted",named="true"} 0' in text
        assert "equipoise_ready 0" in text, "no partitions were assigned yet"
    finally:
        await server.stop()


QUESTION = {"version": 1, "round": "r1", "tasks": [], "processes": [{"id": "p1", "threads": 1}]}
TOKEN = WorkerSettings(http_token="secret")


@pytest.mark.parametrize(
    ("settings", "headers", "body", "status", "problem"),
    [
        (WorkerSettings(), {}, json.dumps(QUESTION).encode(), 421, "does not lead the group"),
        (WorkerSettings(), {}, b"{", 400, "$: not JSON"),
        (WorkerSettings(), {}, b"\xff\xfe\x00", 400, "the body is no UTF-8"),
        (WorkerSettings(), {}, json.dumps({**QUESTION, "version": 9}).encode(), 400, "$.version: 9 is not 1"),
        (WorkerSettings(), {}, b'{"tasks": [' + b" " * 9_000_000 + b"]}", 413, "too large"),
        (WorkerSettings(), {}, b'{"tasks": [' + b" " * 1_000_000 + b"}", 400, "$: not JSON"),
        (WorkerSettings(http_host="0.0.0.0"), {}, json.dumps(QUESTION).encode(), 403, "set EQUIPOISE_HTTP_TOKEN"),
        (TOKEN, {}, json.dumps(QUESTION).encode(), 401, "the token is missing or wrong"),
        (TOKEN, {"Authorization": "Bearer secre"}, json.dumps(QUESTION).encode(), 401, "the token is missing or wrong"),
        (TOKEN, {"Authorization": "Bearer secret"}, json.dumps(QUESTION).encode(), 421, "does not lead the group"),
    ],
)
async def test_question_that_is_not_answered_gets_its_status_and_the_reason(
    settings: WorkerSettings, headers: dict[str, str], body: bytes, status: int, problem: str
) -> None:
    worker = _Worker()
    worker.rounds = Rounds(lambda group: None, settings, worker.metrics, DEPLOYED)
    server = Server(worker, "127.0.0.1", 0)
    port = await server.start()
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
            http.post("/v1/groups/orders/rounds", data=io.BytesIO(body), headers={"Content-Type": "application/json", **headers}) as answer,
        ):
            assert answer.status == status
            assert problem in (await answer.json())["problem"]
    finally:
        await server.stop()
