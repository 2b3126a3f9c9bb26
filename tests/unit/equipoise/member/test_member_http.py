"""What a member serves over HTTP, from a stub of its host."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from equipoise import Connection, Member
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import DeployedRuntime, LoopThread
from equipoise.kafka.aiokafka_log import LOGGERS
from equipoise.member.http.measurements import Done, MemberFigures
from equipoise.member.http.server import MemberServer
from equipoise.member.options import MemberOptions
from equipoise.member.session.loop_watch import LoopBeat
from equipoise.member.tasks.failures import SECONDS
from equipoise.statemachine.member import MemberSession, MemberSettings

FIGURES = MemberFigures(
    done=Done(records=1_234, commits=56, busy_s=7.5, out_of_order=3),
    restored=99,
    damaged=4,
    failures={("in", "parked"): 3},
    drops={("0", "views", "late"): 7},
    handler_times=([5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1], 12.125),
    fenced=2,
    parked=1,
    tasks={"running": 3, "opening": 1, "closing": 0, "standby": 2, "warmup": 1},
    source_lags={TaskId(0, 1): 40},
    restore_lags={TaskId(0, 4): 700},
    lease_left_s=12.5,
    throttled_s=1.5,
)
OPTIONS = MemberOptions(http_port=0, session_timeout_ms=10_000, lease_margin_ms=2_000, heartbeat_interval_ms=1_000)
DOCS = Path(__file__).parents[4] / "docs"


class Clock(DeployedRuntime):
    """A runtime whose clock of leases stands still."""

    now_ms = 1_000_000

    def boot_ms(self) -> int:
        return self.now_ms


class Host:
    """What the server reads of a host that has joined."""

    def __init__(self, runtime: Clock) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loops = {"application's loop": asyncio.get_running_loop()}
        self.session = MemberSession(
            MemberSettings(
                member_id="m1",
                incarnation=1,
                session_timeout_ms=10_000,
                lease_margin_ms=2_000,
                heartbeat_interval_ms=1_000,
                join_nonce="n",
                topology_epoch=0,
                stateful_subtopologies=frozenset(),
                partitions={},
            )
        )
        self.shared = SimpleNamespace(lock=threading.Lock())
        self.refusal = ""
        self.work = SimpleNamespace(figures=lambda: FIGURES)
        self._runtime = runtime

    def join(self) -> None:
        now_ms = self._runtime.boot_ms()
        self.session.reader_placed(log_id="log", last_number=0, sent_ms=now_ms, answered_ms=now_ms)
        self.session.join(now_ms)

    def renew(self) -> None:
        now_ms = self._runtime.boot_ms()
        self.session.fetch_completed(sent_ms=now_ms, reached_end=True, now_ms=now_ms)
        self.session.heartbeat_acknowledged(sent_ms=now_ms, now_ms=now_ms)


@asynccontextmanager
async def serving(runtime: Clock, hosts: list[Any], member_id: str = "m1") -> AsyncIterator[aiohttp.ClientSession]:
    server = MemberServer("orders", member_id, OPTIONS, runtime, lambda: hosts[0] if hosts else None)
    port = await server.begin()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        await server.end()


async def asked(http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """Status and problem."""
    async with http.get(path) as answer:
        text = await answer.text()
        assert "\n" not in text
        return answer.status, (await answer.json())["problem"] or ""


async def test_member_is_ready_while_its_lease_is_renewed() -> None:
    runtime, hosts = Clock(), []  # type: ignore[var-annotated]
    async with serving(runtime, hosts) as http:
        assert await asked(http, "/ready") == (503, "it starts: it has not found the log yet, which a worker makes")
        assert await asked(http, "/health") == (200, "")
        host = Host(runtime)
        hosts.append(host)
        assert await asked(http, "/ready") == (503, "it joins the group")
        host.join()
        assert await asked(http, "/ready") == (200, "")
        runtime.now_ms += 3_500
        assert await asked(http, "/ready") == (503, "the brokers have not answered for 3.5 s; its lease is over in 4.5 s")
        host.renew()
        assert await asked(http, "/ready") == (200, "")
        runtime.now_ms += 8_000
        assert await asked(http, "/ready") == (503, "its lease is over")
        assert host.session.refusal(TaskId(0, 0), runtime.now_ms) == "ended"
        assert await asked(http, "/ready") == (503, "its incarnation has ended (lease_lapsed), and it joins again")
        assert await asked(http, "/health") == (200, "")
        host.over.set_exception(ValueError("of a\ncallback"))
        assert await asked(http, "/health") == (503, "the member has ended: ValueError: of a callback")
        assert await asked(http, "/ready") == (503, "the member has ended")


async def test_member_is_unhealthy_when_its_loop_does_not_run(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Clock()
    now_s = 0.0
    vars(runtime)["monotonic_s"] = lambda: now_s
    stuck, go_on = LoopThread("stuck"), threading.Event()
    host = Host(runtime)
    host.loops["member's thread"] = stuck.loop
    stuck.loop.call_soon_threadsafe(go_on.wait)
    async with serving(runtime, [host]) as http:
        assert await asked(http, "/health") == (200, "")
        now_s = 9.0
        assert await asked(http, "/health") == (200, "")
        now_s = 11.0
        assert await asked(http, "/health") == (503, "the member's thread has not run for 11 s")
        assert await asked(http, "/health") == (503, "the member's thread has not run for 11 s")
        go_on.set()
        await stuck.run(asyncio.sleep(0))
        assert await asked(http, "/health") == (200, "")
    assert [each.getMessage() for each in caplog.records if each.name == "equipoise.member.http.server"] == [
        "group orders: member m1: the member's thread has not run for 11 s",
        "group orders: member m1: the member's thread runs again",
    ]
    await stuck.stop()


async def test_loop_beat_of_an_idle_loop_asks_nothing_between_looks() -> None:
    now_s = 0.0
    beat = LoopBeat(asyncio.get_running_loop(), lambda: now_s)
    assert beat.silent_s() == 0
    await asyncio.sleep(0)
    now_s = 1_000.0
    assert beat.silent_s() == 0


async def test_member_names_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        member = Member("g", lambda record, context: None, sources="in", connection=Connection(bootstrap="127.0.0.1:1"), http_port=port)
        with pytest.raises(InputError, match=f"http_host, http_port: cannot listen on 127.0.0.1:{port}"):
            await member.__aenter__()
    assert not any(logger.filters for logger in LOGGERS)


async def test_index_of_a_member_links_to_its_pages() -> None:
    async with serving(Clock(), []) as http, http.get("/") as answer:
        page = await answer.text()
    assert "equipoise member m1 of group orders" in page
    assert re.findall(r'href="([^"]+)"', page) == ["/health", "/ready", "/metrics"]


async def test_metrics_of_two_members_have_labels_of_their_own() -> None:
    runtime = Clock()
    texts = []
    for member_id in ("m1", "m2"):
        async with serving(runtime, [Host(runtime)], member_id) as http, http.get("/metrics") as answer:
            texts.append(await answer.text())
    labels = 'group="orders",member="m1"'
    samples = [line for line in texts[0].splitlines() if not line.startswith("#")]
    assert samples == [
        f"equipoise_member_records_total{{{labels}}} 1234.0",
        f"equipoise_member_busy_seconds_total{{{labels}}} 7.5",
        f"equipoise_member_out_of_order_records_total{{{labels}}} 3.0",
        f"equipoise_member_commits_total{{{labels}}} 56.0",
        f"equipoise_member_fenced_commits_total{{{labels}}} 2.0",
        f"equipoise_member_restored_records_total{{{labels}}} 99.0",
        f"equipoise_member_throttled_seconds_total{{{labels}}} 1.5",
        f"equipoise_member_damaged_copies_total{{{labels}}} 4.0",
        f'equipoise_member_failures_total{{{labels},outcome="parked",topic="in"}} 3.0',
        'equipoise_member_dropped_records_total{by="views",group="orders",member="m1",processor="0",reason="late"} 7.0',
        *[
            f'equipoise_member_handler_seconds_bucket{{group="orders",le="{bound}",member="m1"}} {count}.0'
            for bound, count in zip((*SECONDS, "+Inf"), (5, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 9), strict=True)
        ],
        f"equipoise_member_handler_seconds_count{{{labels}}} 9.0",
        f"equipoise_member_handler_seconds_sum{{{labels}}} 12.125",
        *[f'equipoise_member_tasks{{{labels},role="{role}"}} {count}.0' for role, count in FIGURES.tasks.items()],
        f"equipoise_member_parked_tasks{{{labels}}} 1.0",
        f"equipoise_member_lease_left_seconds{{{labels}}} 12.5",
        f'equipoise_member_source_lag_records{{{labels},task="0_1"}} 40.0',
        f'equipoise_member_restore_lag_records{{{labels},task="0_4"}} 700.0',
        "equipoise_ready 0",
    ]
    assert texts[1] == texts[0].replace('member="m1"', 'member="m2"')


async def test_member_that_has_not_joined_reports_no_figures() -> None:
    async with serving(Clock(), []) as http, http.get("/metrics") as answer:
        assert [line for line in (await answer.text()).splitlines() if not line.startswith("#")] == ["equipoise_ready 0"]


async def test_page_has_every_metric_of_a_member() -> None:
    async with serving(Clock(), []) as http, http.get("/metrics") as answer:
        known = {line.split()[2] for line in (await answer.text()).splitlines() if line.startswith("# TYPE")}
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    wanted = {name.removesuffix("_total") for name in known - {"equipoise_ready"}}
    assert set(re.findall(r"`(equipoise_member_[a-z_]+?)(?:_total)?(?:\{[a-z,]+\})?`", page)) == wanted


def test_roles_of_the_metric_are_those_of_the_page() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `equipoise_member_tasks"))
    assert all(f"`{role}`" in row for role in FIGURES.tasks)
