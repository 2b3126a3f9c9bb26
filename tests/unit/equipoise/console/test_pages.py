"""Who sees the console, its headers and documents, and its events, over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from equipoise.console import event_stream as stream_module
from equipoise.console import pages as pages_module
from equipoise.console import recent as recent_module
from equipoise.console.pages import Console
from equipoise.console.recent import Recent
from equipoise.hosting.runtime import DEPLOYED
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.replay.sentences import tell
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.group_sizes import GroupSizes
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import Server
from equipoise.worker.settings import WorkerSettings
from tests.groups import GROUP, Group

AFAR = WorkerSettings(http_host="0.0.0.0")
TOKEN = WorkerSettings(http_host="0.0.0.0", http_token="open sesame")
PROXY = WorkerSettings(http_host="0.0.0.0", http_hosts="worker.example", console_behind_proxy=True)
DOCUMENTS = ("groups", f"group?group={GROUP}", f"timeline?group={GROUP}", f"said?group={GROUP}", "said")


class _Leading:
    """A worker that leads one group, without a broker. `group`: one whose facts the test has noted
    in `recent` itself.
    """

    log_id = "the log"
    console: Console

    def __init__(self, settings: WorkerSettings, group: Group | None = None) -> None:
        self.settings = settings
        self.metrics = WorkerMetrics()
        self.rounds = Rounds(lambda group: None, settings, self.metrics, DEPLOYED)
        self.asked = AskedWorkers(GroupSizes(lambda group: None, DEPLOYED.monotonic_s), ())
        self.recent = Recent()
        self.group = group or Group().starts("m1", "m2", stateful=6)
        self._told = len(self.group.records)
        if group is None:
            self.group.settles()
            self._told = 0
            self.tell()

    def tell(self) -> None:
        """Notes the facts that are new."""
        for record in self.group.records[self._told :]:
            decisions = [each for each in self.group.decisions if each.caused_by == record.offset]
            self.recent.note(0, record, decisions, self.group.machine, list(tell(record, decisions)))
        self._told = len(self.group.records)

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        yield 0, GroupLead(GROUP, self.group.machine)

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return ""

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        return led_here(lead.machine.state)


@asynccontextmanager
async def served(settings: WorkerSettings | None = None, group: Group | None = None) -> AsyncIterator[tuple[_Leading, aiohttp.ClientSession]]:
    worker = _Leading(settings or WorkerSettings(), group)
    server = Server(worker, "127.0.0.1", 0)
    worker.console = server._console
    port = await server.start()
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", cookie_jar=jar) as http:
            yield worker, http
    finally:
        await server.stop()


async def status(http: aiohttp.ClientSession, path: str = "/console/api/groups", **headers: str) -> int:
    async with http.get(path, headers=headers) as answer:
        return answer.status


async def test_every_answer_has_the_headers_that_keep_others_out() -> None:
    async with served() as (_, http):
        for path in ("", "chart.js", "console.css", "nothing.js", *(f"api/{each}" for each in DOCUMENTS), "api/group?group=other"):
            async with http.get(f"/console/{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.status == (404 if "nothing" in path or "other" in path else 200), path
        async with http.get("/console", allow_redirects=True) as answer:
            assert str(answer.url).endswith("/console/")


async def test_page_names_only_files_that_are_served() -> None:
    async with served() as (_, http):
        for page in ("/console/", "/console/login"):
            async with http.get("/console/") if page.endswith("/") else http.post(page) as answer:
                text = await answer.text()
            assert "style=" not in text
            assert not re.search(r"<script>|<style>| on\w+=", text)
            for name in re.findall(r'(?:href|src)="([\w.]+)"', text):
                assert await status(http, f"/console/{name}") == 200, name


async def test_page_links_to_the_docs_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, link in (("https://example.org/docs?a&b", 'href="https://example.org/docs?a&amp;b/console.md"'), ("", "docs: docs/console.md")):
        monkeypatch.setattr(pages_module, "docs_url", lambda url=url: url)
        async with served() as (_, http), http.get("/console/") as answer:
            assert link in await answer.text()


@pytest.mark.parametrize(
    ("settings", "headers", "expected"),
    [
        (WorkerSettings(), {}, 200),
        (WorkerSettings(), {"Host": "localhost:8090"}, 200),
        (WorkerSettings(), {"Host": "[::1]:8090"}, 200),
        (WorkerSettings(), {"Host": "evil.example"}, 403),
        (WorkerSettings(), {"Host": "[::1"}, 403),
        (WorkerSettings(http_token="t"), {}, 401),
        (WorkerSettings(http_token="t"), {"Authorization": "Bearer t"}, 200),
        (AFAR, {}, 403),
        (AFAR, {"Host": "localhost"}, 403),
        (TOKEN, {}, 401),
        (TOKEN, {"Authorization": "Bearer open"}, 401),
        (TOKEN, {"Cookie": "equipoise_console=open sesame"}, 401),
        (TOKEN, {"Authorization": "Bearer open sesame", "Host": "worker.example"}, 200),
        (PROXY, {"Host": "worker.example"}, 200),
        (PROXY, {"Host": "evil.example"}, 403),
    ],
)
async def test_access(settings: WorkerSettings, headers: dict[str, str], expected: int) -> None:
    async with served(settings) as (_, http):
        for path in (*(f"/console/api/{each}" for each in DOCUMENTS), "/console/"):
            assert await status(http, path, **headers) == expected, path
        if expected != 200:
            for path in ("events", f"api/what-if?group={GROUP}&join=1", f"api/explain?group={GROUP}&task=0_0"):
                assert await status(http, f"/console/{path}", **headers) == expected, path


async def test_token_is_given_once_on_the_login_page() -> None:
    async with served(TOKEN) as (_, http):
        async with http.get("/console/") as answer:
            assert (answer.status, "http_token" in await answer.text()) == (401, True)
        async with http.post("/console/login", data={"token": "wrong"}) as answer:
            assert answer.status == 401
            assert not answer.cookies
        async with http.post("/console/login", data={"token": "open sesame"}, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie = answer.cookies["equipoise_console"]
            assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/console")
            assert "open" not in cookie.value
        assert await status(http) == 200
    async with served(TOKEN) as (_, other):
        assert await status(other, Cookie=f"equipoise_console={cookie.value}") == 401, "of another process"


async def test_nothing_can_be_changed() -> None:
    async with served() as (worker, http):
        before = worker.group.machine.snapshot()
        async with http.get(f"/console/api/what-if?group={GROUP}&join=1") as answer:
            assert (await answer.json())["changes_of_owner"] == 2
        for method in ("post", "put", "delete"):
            async with getattr(http, method)("/console/api/groups") as answer:
                assert answer.status == 405
        assert worker.group.machine.snapshot() == before


async def read_events(http: aiohttp.ClientSession, path: str, most: int, **headers: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    async with asyncio.timeout(10), http.get(path, headers=headers) as answer:
        assert answer.content_type == "text/event-stream"
        kind = ""
        async for line in answer.content:
            text = line.decode().strip()
            if text.startswith("event: "):
                kind = text[7:]
            elif text.startswith("data: "):
                found.append((kind, json.loads(text[6:])))
                if len(found) == most:
                    break
    return found


async def connected(worker: _Leading, count: int) -> None:
    """Waits until so many pages have their stream."""
    server: Any = worker.recent.changed
    async with asyncio.timeout(10):
        while server.__self__.pages < count:  # noqa: ASYNC110 the stream tells nobody who is connected
            await asyncio.sleep(0.01)


async def test_decisions_come_as_events_with_their_reasons() -> None:
    async with served() as (worker, http):
        last = worker.recent.last_number
        reading = asyncio.ensure_future(read_events(http, f"/console/events?group={GROUP}", 4))
        others = asyncio.ensure_future(read_events(http, "/console/events?group=other", 1))
        await connected(worker, 2)
        worker.group.join("m3")
        worker.tell()
        found = await reading
        assert [(kind, document.get("text", ""), document.get("id")) for kind, document in found[:2]] == [
            ("said", "m3 joined, incarnation 1", last + 1),
            ("said", f"round {worker.group.state.generation}, because a member joined", last + 2),
        ]
        assert "warming: " in found[2][1]["text"]
        assert not others.done()
        others.cancel()
        missed = await read_events(http, f"/console/events?group={GROUP}", 2, **{"Last-Event-ID": str(last + 1)})
        assert [document["id"] for _, document in missed] == [last + 2, last + 3]


async def test_page_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MOST_WAITING_BYTES", 2_000)
    monkeypatch.setattr(stream_module, "FLUSH_S", 0.0)
    async with served() as (worker, http):
        page = stream_module._Page("")
        stream: Any = worker.recent.changed
        stream.__self__._pages.add(page)
        for number in range(8):
            assert page.waiting_bytes <= 2_000
            worker.group.join(f"x{number}")
            worker.tell()
            await asyncio.sleep(0.01)
        assert stream.__self__.pages == 0
        assert stream.__self__.dropped == 1
        assert await page.next_events() is None
        assert await status(http) == 200


async def test_too_many_pages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MOST_PAGES", 0)
    async with served() as (_, http):
        assert await status(http, "/console/events") == 503


async def test_documents_are_made_once_for_many_pages() -> None:
    async with served() as (worker, http):
        path = f"/console/api/group?group={GROUP}"

        every_ms = 0

        async def body() -> bytes:
            nonlocal every_ms
            async with http.get(path) as answer:
                every_ms = int(answer.headers["X-Made-Every-Ms"])
                return await answer.read()

        every = await asyncio.gather(*(body() for _ in range(10)))
        assert len(set(every)) == 1
        worker.group.join("m3")
        worker.tell()
        assert await body() == every[0], "not again at once"
        await asyncio.sleep(every_ms / 1_000 + 0.1)
        assert b'"m3"' in await body()


async def test_list_of_many_groups_is_made_in_parts_and_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 200)
    async with served() as (worker, http):
        many = [(0, GroupLead(f"g{number:04}", worker.group.machine)) for number in range(1_000)]
        monkeypatch.setattr(worker, "groups", lambda: iter(many))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.ensure_future(others())
        async with http.get("/console/api/groups") as answer:
            assert len((await answer.json())["groups"]) == 1_000
        assert turns > 1_000 // pages_module.ROWS_A_PART
        running.cancel()
        assert GROUP in worker.recent.groups
        assert len(worker.recent.groups) < 20
        for number in range(30):
            assert await status(http, f"/console/api/group?group=g{number:04}") == 200
        assert len(worker.recent.groups) < 20
        async with http.get("/console/api/said?group=g0000") as answer:
            document = await answer.json()
        assert (document["said"], document["since_ms"]) == ([], worker.group.state.last_append_ms)


async def test_documents_that_are_kept_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "MOST_DOCUMENT_BYTES", 20_000)
    async with served() as (worker, http):
        many = [(0, GroupLead(f"g{number}", worker.group.machine)) for number in range(20)]
        monkeypatch.setattr(worker, "groups", lambda: iter(many))
        for number in range(20):
            assert await status(http, f"/console/api/group?group=g{number}") == 200
        made = worker.console._made
        assert sum(len(each.body) for each in made.values()) <= 20_000
        assert list(made)[-1] == "group g19"
        assert 1 < len(made) == len(worker.console._making) < 20
