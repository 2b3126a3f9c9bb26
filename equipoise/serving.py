"""What workers and members serve over HTTP alike:

- ``/``: a list of all pages, as HTML
- ``/health``: 200 while the process does its work, else 503 with the problem
- ``/ready``: 200 while it is ready, else 503 with the reason
- ``/metrics``: for Prometheus
"""

from __future__ import annotations

import abc
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping
from html import escape

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from equipoise.events.errors import InputError

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer(abc.ABC):
    """Serves one process on `host`:`port` from `start` to `stop`. `port` 0: any free one. `pages`:
    further paths, as of aiohttp. `takes`: paths that take a POST, with at most `most_body_bytes`.
    `tls`: None serves plain HTTP.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        *,
        takes: Mapping[str, Page] | None = None,
        most_body_bytes: int = 1_000_000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._registry = registry
        self._host, self._port = host, port
        self._tls = tls
        app = web.Application(client_max_size=most_body_bytes)
        own = {"/": self._index, "/health": self._health, "/ready": self._ready, "/metrics": self._metrics}
        app.add_routes([web.get(path, page) for path, page in {**own, **pages}.items()])
        app.add_routes([web.post(path, page) for path, page in (takes or {}).items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    @abc.abstractmethod
    def about(self) -> str:
        """One line for the title of the list."""

    @abc.abstractmethod
    def links(self) -> Mapping[str, str]:
        """Path of each page -> its meaning."""

    @abc.abstractmethod
    def unhealthy(self) -> str:
        """Why the process does not do its work, on one line; "" when it does."""

    @abc.abstractmethod
    def unready(self) -> str:
        """Why it is not ready, on one line; "" when it is."""

    async def start(self) -> int:
        """Returns the port. Raises InputError when it cannot listen there."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InputError(f"http_host, http_port: cannot listen on {self._host}:{self._port} ({error.strerror}); name another port") from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()

    async def _index(self, request: web.Request) -> web.Response:
        rows = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a>: {escape(text)}</li>\n' for path, text in self.links().items())
        about = escape(self.about())
        page = f"<!doctype html>\n<title>{about}</title>\n<h1>{about}</h1>\n<ul>\n{rows}</ul>\n"
        return web.Response(text=page, content_type="text/html")

    async def _health(self, request: web.Request) -> web.Response:
        return _answer("healthy", self.unhealthy())

    async def _ready(self, request: web.Request) -> web.Response:
        return _answer("ready", self.unready())

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _answer(name: str, problem: str) -> web.Response:
    return web.json_response({name: not problem, "problem": problem or None}, status=503 if problem else 200)


def is_loopback(host: str) -> bool:
    """Whether this name or address reaches nothing but this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
