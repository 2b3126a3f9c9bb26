"""What a worker serves over HTTP.

- ``/``: this list, with links, as HTML
- ``/health``: 200 while the process does its work, else 503 with the problem (Faust has ended, or
  the log is gone)
- ``/ready``: 200 when the worker leads every partition assigned to it, else 503 with the reason
- ``/metrics``: for Prometheus
- ``/groups``: JSON, the groups led here
- ``/groups/NAME``: JSON, the state of one group as `equipoise status --json` gives it; 404 when
  this worker does not lead it
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Protocol
from urllib.parse import quote

from aiohttp import web

from equipoise.events.errors import InputError
from equipoise.replay.group_view import view_of
from equipoise.statemachine.partition import GroupLead
from equipoise.worker.metrics import WorkerMetrics

ENDPOINTS = {
    "/health": "whether this worker does its work",
    "/ready": "whether it leads every partition assigned to it",
    "/metrics": "metrics for Prometheus",
    "/groups": "the groups it leads, as JSON",
}


class ServedWorker(Protocol):
    """What `Server` reads of a worker."""

    metrics: WorkerMetrics

    @property
    def log_id(self) -> str:
        """The id of the log that it leads; "" while none is open."""

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group led here, by name."""

    def unhealthy(self) -> str:
        """Why the worker does not do its work; "" when it does."""

    def unready(self) -> str:
        """Why not every assigned partition is led; "" when each is."""


class Server:
    """Serves `worker` on `host`:`port` from `start` to `stop`. `port` 0: any free one."""

    def __init__(self, worker: ServedWorker, host: str, port: int) -> None:
        self._worker = worker
        self._host, self._port = host, port
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/groups", self._groups),
                web.get("/groups/{name:.+}", self._group),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> int:
        """Returns the port. Raises InputError when it cannot listen there."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            raise InputError(f"http_host, http_port: cannot listen on {self._host}:{self._port} ({error.strerror}); name another port") from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()

    async def _index(self, request: web.Request) -> web.Response:
        names = {f"/groups/{quote(lead.name)}": f"state of group {lead.name}" for _, lead in self._worker.groups()}
        rows = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a>: {escape(text)}</li>\n' for path, text in {**ENDPOINTS, **names}.items())
        about = f"equipoise worker: leads the groups of log {escape(self._worker.log_id)}"
        page = f"<!doctype html>\n<title>{about}</title>\n<h1>{about}</h1>\n<ul>\n{rows}</ul>\n"
        return web.Response(text=page, content_type="text/html")

    async def _health(self, request: web.Request) -> web.Response:
        problem = self._worker.unhealthy()
        return web.json_response({"healthy": not problem, "problem": problem or None}, status=503 if problem else 200)

    async def _ready(self, request: web.Request) -> web.Response:
        problem = self._worker.unready()
        return web.json_response({"ready": not problem, "problem": problem or None}, status=503 if problem else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._worker.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _groups(self, request: web.Request) -> web.Response:
        return web.json_response({"log_id": self._worker.log_id, "groups": [_brief(place, lead) for place, lead in self._worker.groups()]})

    async def _group(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for place, lead in self._worker.groups():
            if lead.name == name:
                halted = None if lead.halted is None else str(lead.halted)
                try:
                    state = view_of(lead.machine).document()
                except Exception:
                    if halted is None:
                        raise
                    return web.json_response({"partition": place, "halted": halted, "state": None})
                return web.json_response({"partition": place, "halted": halted, "state": state})
        return web.json_response({"problem": f"group {name!r} is not led by this worker"}, status=404)


def _brief(partition: int, lead: GroupLead) -> dict[str, Any]:
    state = lead.machine.state
    return {
        "group": lead.name,
        "partition": partition,
        "phase": state.phase.value,
        "members": len(state.members),
        "tasks": len(state.tasks()),
        "generation": state.generation,
        "verdict": None if state.verdict is None else state.verdict[0],
        "offset": state.last_offset,
        "halted": None if lead.halted is None else str(lead.halted),
    }
