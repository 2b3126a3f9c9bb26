"""Hostile requests, to every path of every HTTP server: what a page of another site can send writes
and reads nothing, and whatever comes has a clean answer, or none, and no traceback in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry

import equipoise
from equipoise.cli.exporter import MetricsExporter
from equipoise.console.recent import Recent
from equipoise.events.errors import InputError
from equipoise.hosting import serving
from equipoise.hosting.admission import Admission, names_in
from equipoise.hosting.runtime import DEPLOYED
from equipoise.hosting.serving import HttpServer
from equipoise.lead.metrics import lead_server
from equipoise.member.http.server import MemberServer
from equipoise.member.options import MemberOptions
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.group_sizes import GroupSizes
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import Server
from equipoise.worker.settings import WorkerSettings
from tests.groups import GROUP, Group

PACKAGE = Path(equipoise.__file__).parent
QUESTION = json.dumps({"version": 1, "round": "r1", "tasks": [], "processes": [{"id": "p1", "threads": 1}]}).encode()


class _Worker:
    """A worker that leads one group, and notes the groups for which facts would be written."""

    log_id = "the log"

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.metrics = WorkerMetrics()
        self.rounds_asked: list[str] = []
        self.rounds = Rounds(self.rounds_asked.append, settings, self.metrics, DEPLOYED)
        self.asked = AskedWorkers(GroupSizes(lambda group: None, DEPLOYED.monotonic_s), ())
        self.recent = Recent()
        self._lead = GroupLead(GROUP, Group().starts("m1", "m2", stateful=2).machine)

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        yield 0, self._lead

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return ""

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        return led_here(lead.machine.state)


def worker(settings: WorkerSettings) -> HttpServer:
    return Server(_Worker(settings), settings.http_host, 0)


def member(**options: Any) -> HttpServer:
    return MemberServer("g", "m1", MemberOptions(http_port=0, **options), DEPLOYED, lambda: None)


AFAR = "0.0.0.0"
SERVERS = {
    "worker": lambda: worker(WorkerSettings()),
    "worker with token": lambda: worker(WorkerSettings(http_host=AFAR, http_token="secret")),
    "worker afar": lambda: worker(WorkerSettings(http_host=AFAR)),
    "worker behind a proxy": lambda: worker(WorkerSettings(console_behind_proxy=True, http_hosts="console.example")),
    "member": member,
    "member afar": lambda: member(http_host=AFAR),
    "lead": lambda: lead_server("g", list, str, "127.0.0.1", 0),
    "exporter of a command": lambda: MetricsExporter("equipoise record", CollectorRegistry(), 0),
}


def subclasses(kind: type) -> set[type]:
    direct: list[type] = kind.__subclasses__()
    return {*direct, *(each for child in direct for each in subclasses(child))}


def test_table_has_every_server_of_the_package() -> None:
    assert subclasses(HttpServer) == {type(make()) for make in SERVERS.values()}
    makers = re.compile(r"\b(start_http_server|start_wsgi_server|AppRunner|HTTPServer|ThreadingHTTPServer|run_app|TCPSite)\(")
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if makers.search(path.read_text(encoding="utf-8"))}
    assert found == {"hosting/serving.py"}, "another HTTP server, which admits anybody"


@attrs.frozen
class Served:
    server: HttpServer
    port: int

    def routes(self) -> list[tuple[str, str]]:
        """Method and path of each."""
        found = []
        for route in self.server._runner.app.router.routes():
            assert route.resource is not None
            info = route.resource.get_info()
            found.append((route.method, info.get("path") or info["formatter"].format(name=GROUP, file="console.js")))
        assert ("GET", "/metrics") in found
        return found

    def asked(self) -> list[str]:
        return getattr(getattr(self.server, "_worker", None), "rounds_asked", [])

    async def send(self, request: bytes, *, ends: bool = False, within_s: float = 5.0) -> tuple[int, bytes]:
        """Status and body of the first answer; status 0: the connection was closed without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            if ends:
                writer.write_eof()
            async with asyncio.timeout(within_s):
                head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            body = b"" if request.startswith(b"HEAD") else await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""
        else:
            if not 200 <= status < 400 and not request.startswith(b"HEAD"):
                assert b"nosniff" in head or status in (100, 400, 417), head  # what is no HTTP is answered below the application
            return status, body
        finally:
            writer.close()


@asynccontextmanager
async def serve(name: str) -> AsyncIterator[Served]:
    server = SERVERS[name]()
    port = await server.start()
    try:
        yield Served(server, port)
    finally:
        await server.stop()


def http(method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    named = {"Host": "127.0.0.1:8090", **(headers or {})}
    if body and "Content-Length" not in named and "Transfer-Encoding" not in named:
        named["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def body_of(path: str) -> tuple[dict[str, str], bytes]:
    """The headers and the body that the path takes."""
    if path.endswith("login"):
        return {"Content-Type": "application/x-www-form-urlencoded"}, b"token=secret"
    return {"Content-Type": "application/json"}, QUESTION


FOREIGN = {
    "rebound name": {"Host": "evil.example:8090"},
    "rebound name that looks like an address": {"Host": "127.0.0.1.evil.example"},
    "rebound name that begins with the machine's": {"Host": f"{socket.gethostname()}.evil.example"},
    "an address as a user": {"Host": "127.0.0.1@evil.example"},
    "a name within brackets": {"Host": "[evil.example]:8090"},
    "another Origin": {"Origin": "https://evil.example"},
    "another port": {"Origin": "http://127.0.0.1:3000"},
    "Origin null": {"Origin": "null"},
    "Origin that begins alike": {"Origin": "http://127.0.0.1:8090.evil.example"},
    "cross-site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    "same-site": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
    "within a frame": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
}


@pytest.mark.parametrize("name", SERVERS)
async def test_page_of_another_site_reads_and_writes_nothing(name: str) -> None:
    async with serve(name) as served:
        for method, path in served.routes():
            headers, body = body_of(path) if method == "POST" else ({}, b"")
            for what, foreign in FOREIGN.items():
                status, text = await served.send(http(method, path, headers | foreign, body))
                assert status == 403, (what, method, path)
                assert method == "HEAD" or set(json.loads(text)) == {"problem"}, (what, path)
            for media in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
                if method == "POST" and not (path.endswith("login") and "urlencoded" in media):
                    status, _ = await served.send(http(method, path, {"Content-Type": media} if media else {}, body))
                    assert status in (401, 403, 415), (media, path)
            preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
            status, text = await served.send(http("OPTIONS", path, preflight))
            assert (status, b"ccess-control" in text.lower()) == (405, False)
        assert served.asked() == []


LONG = "9" * 5_000
REQUESTS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "no Host": (b"GET /metrics HTTP/1.1\r\n\r\n", (400,)),
    "two Hosts": (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", (400,)),
    "HTTP/1.0 without Host, as a load balancer": (b"GET /health HTTP/1.0\r\n\r\n", (200,)),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (0, 400)),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", (400,)),
    "garbage": (b"\x00\xff\xfe garbage\r\n\r\n\r\n", (400,)),
    "no method": (b" /metrics\r\n\r\n", (400,)),
    "unknown method": (http("BREW", "/metrics"), (400, 405)),
    "TRACE": (http("TRACE", "/metrics"), (405,)),
    "CONNECT": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (0, 400, 405)),
    "PUT": (http("PUT", "/metrics", {}, b"x"), (405,)),
    "DELETE": (http("DELETE", "/groups/g"), (405,)),
    "header flood": (http("GET", "/metrics", {f"X-{number}": "x" for number in range(5_000)}), (400,)),
    "long header": (http("GET", "/metrics", {"X-Long": "x" * 1_000_000}), (400,)),
    "long path": (http("GET", "/groups/" + "x" * 100_000), (400,)),
    "long query": (http("GET", "/metrics?" + "x" * 5_000), (200,)),
    "NUL in a header": (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n", (400,)),
    "NUL in the path": (b"GET /groups/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (404,)),
    "direction override in the path": (http("GET", "/groups/%E2%80%AEx"), (404,)),
    "invalid UTF-8 in the path": (http("GET", "/groups/%ff%fe%80"), (404,)),
    "raw bytes in the path": (b"GET /groups/\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (400, 404)),
    "half a percent": (http("GET", "/groups/%"), (400, 404)),
    "path traversal": (http("GET", "/console/../../../../etc/passwd"), (404,)),
    "encoded path traversal": (http("GET", "/console/%2e%2e%2f%2e%2e%2fetc/passwd"), (404,)),
    "absolute form": (http("GET", "http://evil.example/metrics"), (200, 400, 404)),
    "two lengths": (b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", (400,)),
    "length and chunked": (b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (400,)),
    "negative length": (http("POST", "/health", {"Content-Length": "-5"}), (400,)),
    "absurd length": (http("GET", "/health", {"Content-Length": "9" * 4_000}), (400,)),
    "a body with GET": (http("GET", "/health", {}, b"x" * 10_000), (200,)),
    "an upgrade": (http("GET", "/health", {"Connection": "Upgrade", "Upgrade": "websocket"}), (200,)),
    "long event id": (http("GET", "/console/events", {"Last-Event-ID": LONG}), (200, 401, 403, 404)),
    "many digits in a question": (http("GET", f"/console/api/what-if?group={GROUP}&join={LONG}"), (200, 401, 403, 404)),
    "unknown settings in a question": (http("GET", f"/console/api/what-if?group={GROUP}&set=%00%ff=%E2%80%AE"), (200, 401, 403, 404)),
    "task that is none": (http("GET", f"/console/api/explain?group={GROUP}&task={LONG}"), (200, 401, 403, 404)),
    "many cookies": (http("GET", "/console/", {"Cookie": "; ".join(f"a={number}" for number in range(500))}), (200, 400, 401, 403, 404)),
    "authorization of odd characters": (http("GET", "/console/", {"Authorization": "Bearer \xff\xfe"}), (200, 401, 403, 404)),
}
BODIES: dict[str, tuple[dict[str, str], bytes, tuple[int, ...]]] = {
    "too large": ({}, b"x" * 8_100_000, (401, 403, 413)),
    "lies about its length, too large": ({"Content-Length": "9000000000"}, b"x", (401, 403, 413)),
    "no length": ({"Content-Length": "0"}, b"", (400, 401, 403)),
    "lies about its length, ends early": ({"Content-Length": "500"}, b"{", (0, 400, 401, 403, 408)),
    "chunked, garbage": ({"Transfer-Encoding": "chunked"}, b"zz\r\nxx\r\n", (0, 400, 401, 403)),
    "chunked, too large": ({"Transfer-Encoding": "chunked"}, b"7b0000\r\n" + b"x" * 0x7B0000 + b"\r\n0\r\n\r\n", (401, 403, 413)),
    "compressed bomb": ({"Content-Encoding": "gzip"}, b"\x1f\x8b", (401, 403, 415)),
    "asks to go on": ({"Expect": "100-continue"}, b"{}", (100, 400, 401, 403)),
    "unknown charset": ({"Content-Type": "application/json; charset=foo"}, b"{}", (401, 403, 415)),
    "UTF-16": ({"Content-Type": "application/x-www-form-urlencoded; charset=utf-16"}, b"{}", (401, 403, 415)),
    "expects anything": ({"Expect": "a-pony"}, b"{}", (401, 403, 417)),
    "deep": ({}, b"[" * 200_000, (400, 401, 403, 413)),
    "a huge integer": ({}, QUESTION.replace(b'"version": 1', b'"version": ' + b"9" * 5_000), (400, 401, 403)),
    "no UTF-8": ({}, b"\xff\xfe\x00{", (400, 401, 403)),
}


def defects(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.getMessage()} {record.exc_info}" for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", ["worker", "worker with token", "member"])
async def test_odd_request_has_a_clean_answer(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "BODY_S", 0.3)
    async with serve(name) as served:
        for what, (request, allowed) in REQUESTS.items():
            status, text = await served.send(request)
            expected = (*allowed, 404) if name == "member" else allowed
            assert status in expected, (what, status, text)
            assert b"Traceback" not in text, what
        for method, path in served.routes():
            status, _ = await served.send(http("HEAD", path))
            assert status in (200, 308, 401, 403, 404, 405, 503), path
            if method == "POST":
                for what, (headers, body, allowed) in BODIES.items():
                    named, _ = body_of(path)
                    status, text = await served.send(http(method, path, named | headers, body))
                    assert status in allowed, (what, path, status)
                    assert b"Traceback" not in text, what
        assert (await served.send(http("GET", "/health")))[0] == 200
        assert served.asked() == []
    assert defects(caplog) == []


async def test_slow_and_half_closed_connections_are_closed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.3)
    monkeypatch.setattr(serving, "BODY_S", 0.3)
    slow = http("POST", "/v1/groups/g/rounds", {"Content-Type": "application/json", "Content-Length": "10"}, b"{")
    async with serve("worker") as served:
        assert await served.send(b"", within_s=3) == (0, b"")
        assert await served.send(b"GET /metrics HTTP/1.1\r\nHost: 127", within_s=3) == (0, b"")
        assert await served.send(b"GET /metrics HTTP/1.1\r\n", ends=True) == (0, b"")
        status, text = await served.send(slow, within_s=3)
        assert (status, json.loads(text)["problem"]) == (408, "the body did not arrive within 0 s")
        await served.send(slow, ends=True)
        assert (await served.send(http("GET", "/health")))[0] == 200
        assert served.asked() == []
    assert defects(caplog) == []


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(serving, "HEAD_S", 0.5)
    async with serve("member") as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(20)]
        assert (await served.send(http("GET", "/health")))[0] == 0
        await asyncio.sleep(0.6)
        assert (await served.send(http("GET", "/health")))[0] == 200, "silent ones were closed"
        for _, writer in held:
            writer.close()


async def test_defect_of_a_page_is_an_answer_and_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Worker, "unready", lambda self: 1 // 0)
    async with serve("worker") as served:
        status, text = await served.send(http("GET", "/ready"))
        assert (status, json.loads(text)) == (500, {"problem": "a defect; the log of this process has it"})
    assert any("ZeroDivisionError" in each for each in defects(caplog))


HOSTS: list[tuple[str, str, str, bool]] = [
    # bound to, http_hosts, Host, taken
    ("127.0.0.1", "", "127.0.0.1:8090", True),
    ("127.0.0.1", "", "LOCALHOST.:80", True),
    ("::1", "", "[::1]", True),
    ("127.0.0.1", "", "worker", False),
    ("127.0.0.1", "", "10.0.0.7", False),
    ("127.0.0.1", "console.example, *.corp.example", "w1.corp.example:8090", True),
    ("127.0.0.1", "console.example, *.corp.example", "Console.Example", True),
    ("127.0.0.1", "console.example, *.corp.example", "corp.example", False),
    ("0.0.0.0", "", "10.1.2.3:8090", True),  # a probe of Kubernetes, Prometheus by address
    ("0.0.0.0", "", "[fd00::7]:8090", True),
    ("0.0.0.0", "", "worker:8090", True),  # a name within Docker Compose, a service of the same namespace
    ("0.0.0.0", "", "equipoise-worker.default.svc", False),
    ("0.0.0.0", "*.svc, *.svc.cluster.local", "equipoise-worker.default.svc", True),
    ("0.0.0.0", "", f"{socket.gethostname()}:8090", True),
    ("0.0.0.0", "*", "anything.example", True),
    ("0.0.0.0", "", "", False),
    ("0.0.0.0", "", "10.1.2.3:8090:1", False),
    ("0.0.0.0", "", "a b", False),
]


@pytest.mark.parametrize(("bound", "named", "host", "taken"), HOSTS)
def test_host_is_taken_by_one_rule(bound: str, named: str, host: str, taken: bool) -> None:
    assert Admission(bound, names_in(named)).takes_host(host) is taken


LEGITIMATE: list[tuple[str, str, str, dict[str, str]]] = [
    ("worker", "GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
    ("worker", "GET", "/console/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
    ("worker", "GET", "/console/api/groups", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}),
    ("worker", "GET", "/groups", {"Origin": "http://127.0.0.1:8090"}),
    ("worker afar", "GET", "/metrics", {"Host": "10.1.2.3:8090", "User-Agent": "Prometheus/3.5.0"}),
    ("worker afar", "GET", "/health", {"Host": "10.1.2.3:8090", "User-Agent": "kube-probe/1.33"}),
    ("worker with token", "GET", "/groups", {"Host": "worker.example", "Authorization": "Bearer secret"}),
    ("worker behind a proxy", "GET", "/console/api/groups", {"Host": "console.example", "Sec-Fetch-Site": "same-origin"}),
    ("worker behind a proxy", "GET", "/groups", {"Origin": "https://console.example"}),  # the proxy names the worker as Host
]


@pytest.mark.parametrize(("name", "method", "path", "headers"), LEGITIMATE)
async def test_legitimate_request_is_answered(name: str, method: str, path: str, headers: dict[str, str]) -> None:
    async with serve(name) as served:
        assert (await served.send(http(method, path, headers)))[0] == 200


async def test_round_from_another_machine_needs_the_token_alone() -> None:
    async with serve("worker with token") as served:
        headers, body = body_of("rounds")
        named = {"Host": "workers.example:8090", "Authorization": "Bearer secret"} | headers
        status, text = await served.send(http("POST", "/v1/groups/orders/rounds", named, body))
        assert (status, served.asked()) == (421, ["orders"])
        status, text = await served.send(http("POST", "/v1/groups/orders/rounds", named | {"Authorization": "Bearer wrong"}, body))
        assert status == 403
        assert "http_hosts" in json.loads(text)["problem"]


def question(**changes: Any) -> bytes:
    task = {"id": "0_0", "stateful": True, "source": [{"topic": "s", "partition": 0}], "changelog": [{"topic": "c", "partition": 0}], "records": 5}
    process = {"id": "p1", "threads": 1, "consumers": ["c-StreamThread-1-consumer"], "standby": ["0_0"], "lags": {"0_0": 3}, "rack": "r1"}
    for path, value in changes.items():
        part, _, name = path.partition("__")
        ({"task": task, "process": process, "source": task["source"][0]}[part])[name] = value  # type: ignore[index]
    return json.dumps({"version": 1, "round": "r", "tasks": [task], "processes": [process]}).encode()


BIG = 2**63 - 1
WRONG: list[tuple[str, bytes, str]] = [
    ("%00", question(), "the group in the path"),
    ("%E2%80%AEx", question(), "the group in the path"),
    ("x" * 250, question(), "the group in the path"),
    ("g", question(process__id="p\0"), "$.processes[0].id"),
    ("g", question(process__id="\u202ep"), "$.processes[0].id"),
    ("g", question(process__id="p" * 250), "$.processes[0].id"),
    ("g", question(process__consumers=["c\n"]), "$.processes[0].consumers[0]"),
    ("g", question(process__rack="r\u2066"), "$.processes[0].rack"),
    ("g", question(process__threads=BIG), "$.processes[0].threads"),
    ("g", question(process__lags={"0_0": BIG}), "$.processes[0].lags"),
    ("g", question(task__records=BIG), "$.tasks[0].records"),
    ("g", question(source__topic="\u200b"), "$.tasks[0].source[0].topic"),
    ("g", question(source__partition=BIG), "$.tasks[0].source[0].partition"),
]


@pytest.mark.parametrize(("group", "body", "field"), WRONG)
async def test_question_with_hidden_names_or_huge_numbers_is_refused_by_its_field(group: str, body: bytes, field: str) -> None:
    async with serve("worker") as served:
        status, text = await served.send(http("POST", f"/v1/groups/{group}/rounds", {"Content-Type": "application/json"}, body))
        assert status == 400, text
        assert json.loads(text)["problem"].startswith(field), text
        assert served.asked() == []


async def test_port_that_is_taken_and_host_that_is_none_are_named() -> None:
    for host in ("no such host", "x" * 300):
        with pytest.raises(InputError, match="http_host, http_port: cannot listen on"):
            await worker(WorkerSettings(http_host=host)).start()


@pytest.mark.parametrize("tls", [True, False])
def test_server_over_tls_needs_no_names(tls: bool) -> None:
    request = make_mocked_request("GET", "/groups", {"Host": "w1.example"})
    assert (Admission(AFAR, tls=tls).refuse(request) is None) is tls
