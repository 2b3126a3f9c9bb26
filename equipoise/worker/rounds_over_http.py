"""Answers rounds over HTTP: facts in, decisions out, both in the log before the answer leaves.

========  =================================================================
status    meaning
========  =================================================================
200       the answer
400       the question is wrong: the field and the fix
401, 403  no token, or a wrong one; a page of another site asks; this worker takes no questions
          from afar
409       the group is led in another way, or the round was asked before
408, 413  the body does not arrive, or is too large
415       the body is not ``application/json``
421       this worker does not lead the group: ask another one
503       it cannot be answered now: the reason
========  =================================================================

Every answer but 200 is ``{"problem": "..."}``. Who asks goes on without one (docs/streams.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from equipoise.bridge.mapping import answer_of, facts_of, names_of, racks_of
from equipoise.bridge.question import MOST_BODY_BYTES, Question, read_question
from equipoise.console.admission import has_token
from equipoise.events.decisions import EventRejected, RoundPlanned
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import PartitionsObserved
from equipoise.events.fields import check_name
from equipoise.events.parts import whole
from equipoise.hosting.admission import RefusedRequest, is_loopback
from equipoise.hosting.runtime import Runtime
from equipoise.hosting.serving import Post
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.state import GroupState
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.session_sender import SendFailedError
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_ANSWER_S = 5.0
"""Longest work on a round. Who asks has given up by then."""
_PARSED_HERE_BYTES = 200_000
"""Longer bodies are read in a thread, so that other groups are led meanwhile."""
_MOST_WAITING = 4
"""Most rounds of one group that wait for each other. A group has one leader; more come from
programs that repeat themselves.
"""


class _NotAnswered(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Rounds:
    """The rounds of all groups of one worker. `host_of`: the host that leads a group; None: not
    this worker.
    """

    def __init__(self, host_of: Callable[[str], PartitionHost | None], settings: WorkerSettings, metrics: WorkerMetrics, runtime: Runtime) -> None:
        self._host_of = host_of
        self._settings = settings
        self._metrics = metrics
        self._runtime = runtime
        self._monotonic_s = runtime.monotonic_s
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._last_s: dict[str, float] = {}
        """Group -> when its last round was answered (monotonic, s)."""

    @property
    def post(self) -> Post:
        """POST /v1/groups/NAME/rounds."""
        return Post(page=self._answer, media_type="application/json", most_bytes=MOST_BODY_BYTES, refuse=self._refuse, refused=self._refused)

    async def _answer(self, request: web.Request) -> web.Response:
        began_s = self._monotonic_s()
        group = request.match_info["name"]
        status, document = 200, {}
        try:
            document = await self._asked(group, await request.read())
        except _NotAnswered as error:
            status, document = error.status, {"problem": str(error)}
        except InputError as error:
            status, document = 400, {"problem": str(error)}
        except (SendFailedError, EquipoiseError, TimeoutError) as error:
            status, document = 503, {"problem": f"the log cannot be written now: {error}"}
        self._metrics.round_seconds.observe(self._monotonic_s() - began_s)
        if status == 200:
            self._metrics.rounds.labels("200").inc()
        else:
            self._refused(request, RefusedRequest(status, document["problem"]))
        return web.json_response(document, status=status)

    def _refuse(self, request: web.Request) -> RefusedRequest | None:
        token = self._settings.http_token
        if not token:
            if not is_loopback(self._settings.http_host):
                fix = "set EQUIPOISE_HTTP_TOKEN to take questions"
                return RefusedRequest(403, f"this worker is reachable from other machines and has no http_token; {fix}")
            return None
        if not has_token(request, token):
            return RefusedRequest(401, "the token is missing or wrong; send Authorization: Bearer TOKEN (equipoise.token)")
        return None

    def _refused(self, request: web.Request, refused: RefusedRequest) -> None:
        self._metrics.rounds.labels(str(refused.status)).inc()
        _LOG.warning("group %.100r: a round is not answered (%d): %s", request.match_info.get("name", ""), refused.status, refused.problem)

    async def _asked(self, group: str, body: bytes) -> dict[str, Any]:
        check_name("the group in the path", group)
        question = await self._runtime.run_blocking(read_question, body) if len(body) > _PARSED_HERE_BYTES else read_question(body)
        if self._waiting.get(group, 0) >= _MOST_WAITING:
            raise _NotAnswered(503, f"{_MOST_WAITING} rounds of this group are being answered")
        self._waiting[group] = self._waiting.get(group, 0) + 1
        try:
            async with asyncio.timeout(_ANSWER_S), self._locks.setdefault(group, asyncio.Lock()):
                return await self._answered(group, question)
        finally:
            self._waiting[group] -= 1
            if not self._waiting[group]:
                del self._waiting[group], self._locks[group]

    async def _answered(self, group: str, question: Question) -> dict[str, Any]:
        host = self._host_of(group)
        if host is None:
            raise _NotAnswered(421, "this worker does not lead the group's partition; ask another worker (equipoise.url takes several)")
        lead = host.lead.groups.get(group)
        if lead is not None and lead.halted is not None:
            raise _NotAnswered(503, f"the group is halted: {lead.halted}")
        state = GroupState() if lead is None else lead.machine.state
        if state.config is not None and state.config.led_by != "external":
            raise _NotAnswered(409, "equipoise's own members run this group; give the application another application.id")
        last_s, now_s = self._last_s.get(group), self._monotonic_s()
        facts = list(facts_of(question, state, 0 if last_s is None else int((now_s - last_s) * 1_000)))
        racks = racks_of(question)
        observed = (PartitionsObserved(racks=racks) if racks else None) if lead is None else host.lead.observe(group, {}, racks)
        places = [] if observed is None else list(observed_in_parts(observed))
        decisions = await host.ask(group, [*facts[:-1], *places, facts[-1]], question.round_id)
        for decision in whole(each.decision for each in decisions):
            if isinstance(decision, RoundPlanned):
                self._last_s[group] = now_s
                return answer_of(decision, names_of(question))
            if isinstance(decision, EventRejected):
                raise _NotAnswered(409, rejection_text(decision, facts[-1]))
        raise _NotAnswered(503, "the group decided nothing; see the worker's log")
