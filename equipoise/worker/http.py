"""What a worker tells over HTTP.

===================
===============================================================================================================
``/health``          200 while the process does its work; 503 when it does not (Faust has ended)
``/ready``           200 when every partition that is ours is taken over; 503 until then, with the
reason ``/metrics``         for Prometheus ``/groups``          JSON: the groups led here
``/groups/<name>``   JSON: the state of one, as `equipoise status --json` gives it; 404 when it is
led elsewhere, or nowhere ===================
===============================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from equipoise.events.errors import InputError
from equipoise.replay.group_view import view_of

if TYPE_CHECKING:
    from equipoise.worker.app import Worker


class Server:
    """Serves `worker` from `start` to `stop`."""

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        self._worker = worker
        self._host, self._port = host, port
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/groups", self._groups),
                web.get("/groups/{name:.+}", self._group),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> int:
        """Returns the port. Raises InputError when it is taken."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            raise InputError(f"http_host, http_port: cannot listen on {self._host}:{self._port} ({error.strerror}); name another port") from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        problem = self._worker.unhealthy()
        return web.json_response({"healthy": not problem, "problem": problem or None}, status=503 if problem else 200)

    async def _ready(self, request: web.Request) -> web.Response:
        problem = self._worker.unready()
        return web.json_response({"ready": not problem, "problem": problem or None}, status=503 if problem else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._worker.counts.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

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


def _brief(partition: int, lead: Any) -> dict[str, Any]:
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
