"""What a worker serves over HTTP, from a stub of the worker."""

from __future__ import annotations

import re
from collections.abc import Iterator

import aiohttp

from equipoise.statemachine.partition import GroupLead
from equipoise.worker.http import ENDPOINTS, Server
from equipoise.worker.metrics import WorkerMetrics
from tests.groups import Group


class _Worker:
    log_id = "the log & more"
    metrics = WorkerMetrics()

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        yield 0, GroupLead("orders/eu <1>", Group().starts("m1", "m2", stateful=2).machine)

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return "no partitions were assigned yet"


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
