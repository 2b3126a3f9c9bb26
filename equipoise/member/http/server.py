"""Serves the health and metrics of a member over HTTP, on the pages of `equipoise.hosting.serving`.

It is healthy while its event loops run: the application's, and that of the thread that renews the
lease. It is ready while it is in the group, its lease holds, and brokers answer and refuse
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry

from equipoise.events.errors import InputError
from equipoise.hosting.admission import names_in
from equipoise.hosting.runtime import HostThread, Runtime
from equipoise.hosting.serving import HttpServer
from equipoise.member.http.metrics import MemberCollector
from equipoise.member.http.queries import QueryError, StateQuestion, StateRows
from equipoise.member.http.query_routes import PATH, STATUSES, answered, question_of
from equipoise.member.options import MemberOptions
from equipoise.member.session.host import MEMBERS_THREAD, MemberHost
from equipoise.member.session.loop_watch import LoopBeat

_LOG = logging.getLogger(__name__)
LATE_S = 1.5
"""Brokers do not answer when the lease was not renewed for a heartbeat interval and this time."""


class MemberServer(HttpServer):
    """Serves one member, on a thread of its own. `host`: returns None before the member has
    connected. `answer`: answers queries, if the options say so. Call `begin` in the application's
    loop, and `end`.
    """

    def __init__(
        self,
        group: str,
        member_id: str,
        options: MemberOptions,
        runtime: Runtime,
        host: Callable[[], MemberHost | None],
        answer: Callable[[StateQuestion], Awaitable[StateRows]] | None = None,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(MemberCollector(group, member_id, lambda: None if (host := self._host_of()) is None else host.work.figures()))
        own = () if options.advertised is None or not options.queries else (options.advertised.rpartition(":")[0],)
        pages = {PATH: self._query} if options.queries and answer is not None else {}
        super().__init__(registry, options.http_host, options.http_port or 0, pages, named=(*names_in(options.http_hosts), *own))
        self._answer_to = answer
        self._group, self._member_id, self._options = group, member_id, options
        self._runtime, self._host_of = runtime, host
        self._beats: dict[str, LoopBeat] = {}
        self._is_stuck = False
        self._thread: HostThread | None = None

    async def begin(self) -> int:
        """Returns the port. Raises InputError when it cannot listen there."""
        self._thread = self._runtime.thread("equipoise-http")
        return await self._thread.run(self.start())

    async def end(self) -> None:
        """Closes the port."""
        if self._thread is not None:
            await self._thread.run(self.stop())
            await self._thread.stop()

    async def _query(self, request: web.Request) -> web.Response:
        assert self._answer_to is not None, "the page is there"
        try:
            question = question_of(request.query)
            return web.json_response(answered(await self._answer_to(question)))
        except QueryError as error:
            return web.json_response({"reason": error.reason, "problem": error.problem}, status=STATUSES.get(error.reason, 503))
        except InputError as error:
            return web.json_response({"problem": str(error)}, status=400)

    def about(self) -> str:
        return f"equipoise member {self._member_id} of group {self._group}"

    def links(self) -> Mapping[str, str]:
        queries = {PATH: "state of a task; `equipoise.member.http.query_routes` has its parameters"} if self._options.queries else {}
        return queries | {
            "/health": "whether its event loops run",
            "/ready": "whether it is in the group, its lease holds and brokers answer",
            "/metrics": "metrics for Prometheus",
        }

    def unhealthy(self) -> str:
        host = self._host_of()
        if host is None:
            return ""
        if host.over.done():
            error = host.over.exception()
            return "" if error is None else f"the member has ended: {type(error).__name__}: {error}".replace("\n", " ")
        most_s = self._options.session_timeout_ms / 1_000
        silent_s = {name: self._beats.setdefault(name, LoopBeat(loop, self._runtime.monotonic_s)).silent_s() for name, loop in host.loops.items()}
        blocked = {name: each_s for name, each_s in silent_s.items() if each_s > most_s}
        is_stuck = MEMBERS_THREAD in blocked
        if is_stuck != self._is_stuck:
            self._is_stuck = is_stuck
            who = f"group {self._group}: member {self._member_id}"
            if is_stuck:
                _LOG.error("%s: the %s has not run for %.0f s", who, MEMBERS_THREAD, blocked[MEMBERS_THREAD])
            else:
                _LOG.warning("%s: the %s runs again", who, MEMBERS_THREAD)
        return "; ".join(f"the {name} has not run for {each_s:.0f} s" for name, each_s in blocked.items())

    def unready(self) -> str:
        host = self._host_of()
        if host is None:
            return "it starts: it has not found the log yet, which a worker makes"
        if host.over.done():
            return "the member has ended"
        if host.refusal:
            return f"the brokers refuse what it does on its log: {host.refusal}"
        with host.shared.lock:
            session, now_ms = host.session, self._runtime.boot_ms()
            if session.ended is not None:
                return f"its incarnation has ended ({session.ended.value}), and it joins again"
            if not session.joined:
                return "it joins the group"
            left_ms = session.lease_ends_ms - now_ms
            silent_ms = session.unanswered_ms(now_ms)
        if left_ms <= 0:
            return "its lease is over"
        if silent_ms > self._options.heartbeat_interval_ms + LATE_S * 1_000:
            return f"the brokers have not answered for {silent_ms / 1_000:.1f} s; its lease is over in {left_ms / 1_000:.1f} s"
        return ""
