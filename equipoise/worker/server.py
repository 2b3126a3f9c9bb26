"""Serves a worker's groups over HTTP, besides the pages of `equipoise.hosting.serving`:

- ``/groups``: JSON, the groups led here
- ``/groups/NAME``: JSON, one group as `equipoise status --group NAME --json` gives it; 404 when
  this worker does not lead it
- ``/groups/NAME/size``: JSON, how many members an autoscaler should run
  (docs/change.md#let-an-autoscaler-follow-it); its query: the fields of `FollowingPolicy`
- ``/groups/NAME/size/metrics``: the same number for Prometheus
- ``/console/``: the live console (`equipoise.console`)
- POST ``/v1/groups/NAME/rounds``: who runs what, for an application that something else carries
  out (`equipoise.worker.rounds_over_http`)

It is ready when it leads every partition assigned to it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from aiohttp import web

from equipoise.console.pages import Console
from equipoise.console.recent import Recent
from equipoise.events.errors import InputError
from equipoise.hosting.admission import names_in
from equipoise.hosting.serving import HttpServer
from equipoise.replay.all_clear import Grounds, all_troubles
from equipoise.replay.group_view import view_of
from equipoise.replay.sizing.autoscaling import policy_of
from equipoise.replay.trouble import Severity
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import FROM_PEER, AskedWorkers
from equipoise.worker.group_metrics import escaped
from equipoise.worker.group_sizes import NoAnswerError
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.settings import WorkerSettings

ENDPOINTS = {
    "/console/": "the live console: groups, decisions as they are made, and why",
    "/health": "whether this worker does its work",
    "/ready": "whether it leads every partition assigned to it",
    "/metrics": "metrics for Prometheus",
    "/groups": "the groups it leads, as JSON",
}

_ROWS_A_PART = 200
"""Groups of the list that are looked at before other coroutines run."""


class ServedWorker(Protocol):
    """The part of a worker that `Server` reads."""

    metrics: WorkerMetrics
    rounds: Rounds
    settings: WorkerSettings
    recent: Recent
    asked: AskedWorkers

    @property
    def log_id(self) -> str:
        """The id of the log that it leads; "" while none is open."""

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group led here, by name."""

    def unhealthy(self) -> str:
        """Returns why the worker does not do its work; "" when it does."""

    def unready(self) -> str:
        """Returns why not every assigned partition is led; "" when each is."""

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        """Returns the evidence of statements about a group that is led here."""


class Server(HttpServer):
    """Serves `worker` on `host`:`port` from `start` to `stop`. `port` 0: any free one."""

    def __init__(self, worker: ServedWorker, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._console = Console(worker, worker.settings)
        super().__init__(
            worker.metrics.registry,
            host,
            port,
            {
                "/groups": self._groups,
                "/groups/{name:.+}/size": self._size,
                "/groups/{name:.+}/size/metrics": self._size_metric,
                "/groups/{name:.+}": self._group,
                **self._console.gets,
            },
            posts={"/v1/groups/{name:.+}/rounds": worker.rounds.post, **self._console.posts},
            named=names_in(worker.settings.http_hosts),
            tls=tls,
        )
        self._worker = worker

    async def stop(self) -> None:
        """Closes the port, and ends what the console has open."""
        await self._console.close()
        await super().stop()

    async def metrics(self) -> bytes:
        return await self._worker.metrics.page()

    def has_secret(self, request: web.Request) -> bool:
        return self._console.admission.has_secret(request)

    def about(self) -> str:
        return f"equipoise worker: leads the groups of log {self._worker.log_id}"

    def links(self) -> Mapping[str, str]:
        return {**ENDPOINTS, **{f"/groups/{quote(lead.name)}": f"state of group {lead.name}" for _, lead in self._worker.groups()}}

    def unhealthy(self) -> str:
        return self._worker.unhealthy()

    def unready(self) -> str:
        return self._worker.unready()

    async def _groups(self, request: web.Request) -> web.Response:
        rows = []
        for place, lead in self._worker.groups():
            rows.append(_brief(place, lead))
            if not len(rows) % _ROWS_A_PART:
                await asyncio.sleep(0)
        return web.json_response({"log_id": self._worker.log_id, "unready": self._worker.unready(), "groups": rows})

    async def _group(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for place, lead in self._worker.groups():
            if lead.name == name:
                halted = None if lead.halted is None else str(lead.halted)
                grounds = self._worker.grounds(place, lead)
                about = {"partition": place, "halted": halted, "grounds": grounds.document()}
                try:
                    state = view_of(lead.machine).document()
                except Exception:
                    if halted is None:
                        raise
                    return web.json_response({**about, "trouble": [halted], "state": None})
                trouble = [each.text for each in all_troubles(lead, grounds) if each.severity < Severity.MOVES]
                return web.json_response({**about, "trouble": trouble, "state": state})
        return web.json_response({"problem": f"group {name!r} is not led by this worker"}, status=404)

    async def _size(self, request: web.Request) -> web.Response:
        return await self._sized(request, web.json_response)

    async def _size_metric(self, request: web.Request) -> web.Response:
        def text(found: dict[str, Any]) -> web.Response:
            name = "equipoise_recommended_members"
            about = f"# HELP {name} Members that the group should run.\n# TYPE {name} gauge\n"
            return web.Response(text=f'{about}{name}{{group="{escaped(found["group"])}"}} {found["members"]}\n')

        return await self._sized(request, text)

    async def _sized(self, request: web.Request, shown: Callable[[dict[str, Any]], web.Response]) -> web.Response:
        try:
            from_peer = FROM_PEER in request.headers
            return shown(await self._worker.asked.answer(request.match_info["name"], policy_of(request.query), from_peer=from_peer))
        except NoAnswerError as error:
            return web.json_response({"problem": str(error)}, status=error.status)
        except InputError as error:
            return web.json_response({"problem": str(error)}, status=400)


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


def tls_context(settings: WorkerSettings) -> ssl.SSLContext | None:
    """Returns the certificate that the server shows; None: it serves without TLS. Raises
    InputError when the certificate or its key cannot be read."""
    if not settings.http_tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.http_tls_cert, settings.http_tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"http_tls_cert, http_tls_key: {error}; name files in PEM form that belong together") from None
    return context
