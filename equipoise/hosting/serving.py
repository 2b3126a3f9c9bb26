"""What workers and members serve over HTTP alike:

- ``/``: a list of all pages, as HTML
- ``/health``: 200 while the process does its work, else 503 with the problem
- ``/ready``: 200 while it is ready, else 503 with the reason
- ``/metrics``: for Prometheus
"""

from __future__ import annotations

import abc
import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from html import escape

import attrs
from aiohttp import http_exceptions, web
from prometheus_client import CollectorRegistry, generate_latest

from equipoise.events.errors import InputError
from equipoise.hosting.admission import Admission, RefusedRequest

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LOG = logging.getLogger(__name__)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""
METHODS = ("GET", "HEAD", "POST")
HEAD_S = 10.0
"""A connection that has sent no whole head of a request after so long is closed."""
BODY_S = 10.0
"""Longest time for a body to arrive."""
MOST_CONNECTIONS = 500
"""Further ones are closed at once: a process has a limit of open files, which brokers need too."""
_LARGE_BYTES = 20_000
"""Larger pages are compressed in another thread."""
_MOST_TOLD = 20
_READY = "# HELP equipoise_ready 1: /ready answers 200; 0: it says why not.\n# TYPE equipoise_ready gauge\n"
"""Different reasons for a refusal that are logged, each once."""


@attrs.frozen(kw_only=True)
class Post:
    """A path that takes a POST. `page`: gets a request whose body has been read. `media_type`,
    `most_bytes`: of the body. `refuse`: why a request is refused before its body is read; None: it
    is not. `refused`: is called when the page is not.
    """

    page: Page
    media_type: str
    most_bytes: int
    refuse: Callable[[web.Request], RefusedRequest | None] = lambda request: None
    refused: Callable[[web.Request, RefusedRequest], None] = lambda request, refused: None


class _Requests(logging.Filter):
    """What is no HTTP is answered with 400, and is no defect here: it is logged at level DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = None if record.exc_info is None else record.exc_info[1]
        if isinstance(error, http_exceptions.HttpProcessingError):
            record.exc_info, record.exc_text, record.levelno, record.levelname = None, None, logging.DEBUG, "DEBUG"
            return _LOG.isEnabledFor(logging.DEBUG)
        return True


_REQUESTS = logging.getLogger(f"{__name__}.requests")
_REQUESTS.addFilter(_Requests())


class HttpServer(abc.ABC):
    """Serves one process on `host`:`port` from `start` to `stop`. `port` 0: any free one. `pages`:
    further paths, as of aiohttp. `posts`: paths that take a POST. `named`: further names under
    which it is asked. `tls`: None serves plain HTTP.

    Each request to any path is admitted, or refused, by `equipoise.hosting.admission`. Each answer has
    `HEADERS`, and one that is not 200 says why as ``{"problem": "..."}``.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        *,
        posts: Mapping[str, Post] | None = None,
        named: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._registry = registry
        self._host, self._port = host, port
        self._tls = tls
        self._admission = Admission(host, named, tls=tls is not None, has_secret=self.has_secret)
        self._told: set[str] = set()
        self._unasked: set[web.RequestHandler] = set()
        """Connections that have sent no request yet."""
        self._port_server: asyncio.Server | None = None
        takes = posts or {}
        app = web.Application(middlewares=[self._answer], client_max_size=max((each.most_bytes for each in takes.values()), default=1))
        app.on_response_prepare.append(_with_headers)
        own = {"/": self._index, "/health": self._health, "/ready": self._ready, "/metrics": self._metrics}
        app.add_routes([web.get(path, page) for path, page in {**own, **pages}.items()])
        self._posts = {web_route.handler: post for path, post in takes.items() for web_route in app.add_routes([web.post(path, post.page)])}
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, logger=_REQUESTS)

    def has_secret(self, request: web.Request) -> bool:
        """Returns whether a request shows a secret that this process has."""
        return False

    @abc.abstractmethod
    def about(self) -> str:
        """One line for the title of the list."""

    @abc.abstractmethod
    def links(self) -> Mapping[str, str]:
        """Path of each page -> its meaning."""

    @abc.abstractmethod
    def unhealthy(self) -> str:
        """Returns why the process does not do its work, on one line; "" when it does."""

    @abc.abstractmethod
    def unready(self) -> str:
        """Returns why it is not ready, on one line; "" when it is."""

    async def start(self) -> int:
        """Returns the port. Raises InputError when it cannot listen there."""
        await self._runner.setup()
        try:
            self._port_server = await asyncio.get_running_loop().create_server(self._connected, self._host, self._port, ssl=self._tls, backlog=128)
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise InputError(f"http_host, http_port: cannot listen on {self._host}:{self._port} ({why}); name another port") from None
        return int(self._port_server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the port."""
        if self._port_server is not None:
            self._port_server.close()
            self._port_server = None
        await self._runner.cleanup()

    def _connected(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        server = self._runner.server
        assert server is not None, "it was set up"
        connection = server()
        self._unasked.add(connection)
        loop = asyncio.get_running_loop()
        loop.call_later(0 if len(server.connections) >= MOST_CONNECTIONS else HEAD_S, self._close_unasked, connection)
        return connection

    def _close_unasked(self, connection: web.RequestHandler) -> None:
        if connection in self._unasked:
            self._unasked.discard(connection)
            connection.force_close()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Page) -> web.StreamResponse:
        """Answers any request: by its page, or by why not."""
        self._unasked.discard(request.protocol)
        post = self._posts.get(request.match_info.handler) if request.method == "POST" else None
        refused = await self._refuse(request, post)
        if refused is not None:
            if post is not None:
                post.refused(request, refused)
            return _refusal(refused)
        try:
            return await handler(request)
        except web.HTTPException as error:
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return _refusal(RefusedRequest(error.status, _PROBLEMS.get(error.status, error.reason.lower())), allowed)
        except Exception:
            if request.writer.output_size:
                raise  # a part of the answer was sent
            _LOG.exception("%s %.200r cannot be answered", request.method, request.path)
            return _refusal(RefusedRequest(500, "a defect; the log of this process has it"))

    async def _refuse(self, request: web.Request, post: Post | None) -> RefusedRequest | None:
        if request.method not in METHODS:
            return RefusedRequest(405, f"no page takes this method; there are {', '.join(METHODS)}")
        refused = self._admission.refuse(request)
        if refused is not None and refused.problem not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(refused.problem)
            _LOG.warning("HTTP: a request is refused (%d): %s", refused.status, refused.problem)
        if refused is not None or post is None:
            return refused
        return post.refuse(request) or await _read_body(request, post)

    async def _index(self, request: web.Request) -> web.Response:
        rows = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a>: {escape(text)}</li>\n' for path, text in self.links().items())
        about = escape(self.about())
        page = f"<!doctype html>\n<title>{about}</title>\n<h1>{about}</h1>\n<ul>\n{rows}</ul>\n"
        return web.Response(text=page, content_type="text/html")

    async def _health(self, request: web.Request) -> web.Response:
        return _answer("healthy", self.unhealthy())

    async def _ready(self, request: web.Request) -> web.Response:
        return _answer("ready", self.unready())

    async def metrics(self) -> bytes:
        """The page for Prometheus."""
        return generate_latest(self._registry)

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        body = await self.metrics() + f"{_READY}equipoise_ready {int(not self.unready())}\n".encode()
        response = web.Response(body=body, headers=headers, zlib_executor_size=_LARGE_BYTES)
        if "gzip" in request.headers.get("Accept-Encoding", ""):  # Prometheus takes it, and a large page has a twentieth of its bytes then
            response.enable_compression(web.ContentCoding.gzip)
        return response


class MetricsServer(HttpServer):
    """Serves a process that has no pages but these. `what`: the process. `why_unready`: why it is
    not ready; "": it is. `ready`: what that means.
    """

    def __init__(
        self, what: str, registry: CollectorRegistry, host: str, port: int, why_unready: Callable[[], str] = lambda: "", ready: str = "the same"
    ) -> None:
        super().__init__(registry, host, port, {})
        self._what, self._why_unready, self._ready_means = what, why_unready, ready

    def about(self) -> str:
        return self._what

    def links(self) -> Mapping[str, str]:
        return {"/health": "whether this process runs", "/ready": self._ready_means, "/metrics": "metrics for Prometheus"}

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return self._why_unready()


def _answer(name: str, problem: str) -> web.Response:
    return web.json_response({name: not problem, "problem": problem or None}, status=503 if problem else 200)


_PROBLEMS = {404: "there is no such page; / has a list", 405: "this page does not take this method"}


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _refusal(refused: RefusedRequest, headers: Mapping[str, str] | None = None) -> web.Response:
    answer = web.json_response({"problem": refused.problem}, status=refused.status, headers=headers)
    if refused.status in (400, 408, 413):
        answer.force_close()  # the rest of the body is not waited for
    return answer


async def _read_body(request: web.Request, post: Post) -> RefusedRequest | None:
    """Reads the body of a POST, which the request has then. Returns why it does not; None: it has."""
    try:
        is_text = (request.charset or "utf-8").lower() in ("utf-8", "utf8", "us-ascii")
    except ValueError:
        is_text = False
    if request.content_type != post.media_type or not is_text or "Content-Encoding" in request.headers:
        return RefusedRequest(415, f"the body must have Content-Type: {post.media_type}, in UTF-8, and no Content-Encoding")
    too_large = RefusedRequest(413, f"the body is too large: it has at most {post.most_bytes:,} bytes")
    if (request.content_length or 0) > post.most_bytes:
        return too_large
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError:
        return RefusedRequest(408, f"the body did not arrive within {BODY_S:.0f} s")
    except web.HTTPRequestEntityTooLarge:
        return too_large
    except (web.RequestPayloadError, http_exceptions.HttpProcessingError, ConnectionError) as error:
        return RefusedRequest(400, f"the body cannot be read: {error}"[:300])
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return RefusedRequest(400, f"the body is no UTF-8: {error.reason} at byte {error.start}")
    return too_large if len(body) > post.most_bytes else None
