"""The console's routes on a worker's HTTP port, all under ``/console/``.

=============================  ====================================================================
path                           what
=============================  ====================================================================
``/console/``, ``NAME.js``...  the page
``api/groups``                 all groups, worst first, and the last changes of all
``api/group?group=G``          one group now
``api/timeline?group=G``       what happened to it lately, as `equipoise timeline` draws it
``api/said?group=G``           the last sentences
``api/explain?group=G&task=T``  why a task is where it is
``api/what-if?group=G&...``    what would follow: ``join=1``, ``without=M``, ``set=NAME=VALUE``
``events?group=G``             server-sent events: ``said``, ``changed``
``login`` (POST)               takes the token, brings a cookie
=============================  ====================================================================

A document is made once for all pages that ask for it, and at the earliest so long after it was last
made that all of them together take a small part of the worker's time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any, Protocol

import attrs
from aiohttp import web

from equipoise._build import docs_url
from equipoise.console.admission import AccessSettings, ConsoleAdmission
from equipoise.console.documents import brief, changes_of, group_now, in_order_of_trouble, last_changes
from equipoise.console.event_stream import MOST_DIGITS, Stream
from equipoise.console.questions import BusyError, Explain, Questions, WhatIfQuestion
from equipoise.console.recent import GroupRecent, Recent
from equipoise.events.errors import EquipoiseError
from equipoise.events.records import BaseState
from equipoise.events.tasks import parse_task
from equipoise.hosting.serving import Page, Post
from equipoise.replay.all_clear import Grounds
from equipoise.replay.drawing.colours import SHARED_FILES, colour_rules, drawing_file
from equipoise.replay.timelines import page_data
from equipoise.replay.wording import clock_text
from equipoise.statemachine.group_lead import GroupLead

PART = 40
"""A document may take one part in so many of the worker's time."""
LEAST_S = 0.5
"""It is not made more often than this."""
ROWS_A_PART = 50
"""Groups of the list that are looked at before other coroutines run."""
MOST_LINES = 500
"""Groups of the list, from the first on, with the lag of their last hour."""
MOST_LOGIN_BYTES = 10_000
MOST_DOCUMENTS = 200
MOST_DOCUMENT_BYTES = 50_000_000
"""Documents that are kept for pages that ask for the same one, and their bytes in all."""
MOST_SAID = 300
"""Sentences in one answer."""
MOST_ASKED_TASKS = 20_000
"""Of larger groups nothing is asked here: copying their state would hold up the worker."""
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Served(Protocol):
    """What the console reads of a worker."""

    recent: Recent

    @property
    def log_id(self) -> str: ...

    def groups(self) -> Iterator[tuple[int, GroupLead]]: ...

    def unready(self) -> str: ...

    def grounds(self, partition: int, lead: GroupLead) -> Grounds: ...


@attrs.frozen
class _Made:
    """A document, when it was made and how long that took (monotonic, s)."""

    state: Any
    body: bytes
    at_s: float
    took_s: float


class _NotFoundError(Exception):
    """There is no such group here."""


class Console:
    """The console of one worker. `close` ends its connections and processes."""

    def __init__(self, worker: Served, settings: AccessSettings) -> None:
        self._worker = worker
        self.admission = ConsoleAdmission(settings)
        self._recent = worker.recent
        self._stream = Stream(self._recent)
        self._questions = Questions()
        self._made: dict[str, _Made] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._files = _files()
        self._files["index.html"] = self._files["index.html"].replace(b"<!-- docs -->", _docs_link().encode())

    @property
    def gets(self) -> Mapping[str, Page]:
        """Path -> page."""
        return {
            "/console": self._to_console,
            "/console/": self._let_in(self._page),
            "/console/{file:[a-z]+\\.(?:js|css|svg)}": self._file,
            "/console/events": self._let_in(self._events),
            "/console/api/groups": self._let_in(self._groups),
            "/console/api/group": self._let_in(self._group),
            "/console/api/timeline": self._let_in(self._timeline),
            "/console/api/said": self._let_in(self._said),
            "/console/api/explain": self._let_in(self._explain),
            "/console/api/what-if": self._let_in(self._what_if),
        }

    @property
    def posts(self) -> Mapping[str, Post]:
        """Path -> what takes it."""
        return {"/console/login": Post(page=self._login, media_type="application/x-www-form-urlencoded", most_bytes=MOST_LOGIN_BYTES)}

    async def close(self) -> None:
        """Ends what is open."""
        self._stream.close()
        await self._questions.close()

    # Access

    def _let_in(self, handler: Page) -> Page:
        async def admitted(request: web.Request) -> web.StreamResponse:
            refused = self.admission.refuse(request)
            if refused is not None:
                if refused.status == 401 and handler == self._page:
                    return _answer(self._files["login.html"], "html", status=401)
                return _json({"problem": refused.problem}, status=refused.status)
            try:
                return await handler(request)
            except _NotFoundError as error:
                return _json({"problem": str(error)}, status=404)

        return admitted

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = (await request.post()).get("token", "")
        answer = self.admission.log_in(given if isinstance(given, str) else "")
        return answer or _answer(self._files["login.html"].replace(b"hidden>", b">"), "html", status=401)

    # Files

    async def _to_console(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=308, headers={"Location": "console/"})

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return _answer(self._files["index.html"], "html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """Files are the same for everybody, so the login page has them, too."""
        name = request.match_info["file"]
        if name not in self._files:
            return _json({"problem": "no such file"}, status=404)
        return _answer(self._files[name], name.rpartition(".")[2])

    # Documents

    def _led(self, request: web.Request) -> tuple[int, GroupLead, GroupRecent]:
        name = request.query.get("group", "")
        for partition, lead in self._worker.groups():
            if lead.name == name:
                return partition, lead, self._recent.of(name, partition, lead.machine)
        raise _NotFoundError(f"group {name!r} is not led by this worker")

    async def _made_of(
        self, key: str, state: Any, make: Callable[[], Generator[None, None, Any]], *, beside: Callable[[Any], Any] | None = None
    ) -> web.Response:
        """The document `key`, made again if `state` differs and it may be made. `make`: makes it in
        parts, between which the worker goes on. `beside`: work on what it returned that needs the
        loop no longer.
        """
        loop = asyncio.get_running_loop()
        async with self._making.setdefault(key, asyncio.Lock()):
            made = self._made.get(key)
            if made is None or (made.state != state and loop.time() - made.at_s >= max(LEAST_S, PART * made.took_s)):
                took_s, parts = 0.0, make()
                while True:
                    began_s = loop.time()
                    try:
                        next(parts)
                    except StopIteration as stopped:
                        body = await asyncio.to_thread(_encoded, stopped.value, beside)
                        took_s += loop.time() - began_s
                        break
                    took_s += loop.time() - began_s
                    await asyncio.sleep(0)
                self._made.pop(key, None)
                self._made[key] = made = _Made(state, body, loop.time(), took_s)
                self._bound_made()
        wait_ms = int(max(LEAST_S, PART * made.took_s) * 1_000)
        return _answer(made.body, "json", headers={"X-Made-Every-Ms": str(wait_ms)})

    def _bound_made(self) -> None:
        """Forgets the documents that were made first, but for the last one."""
        while len(self._made) > MOST_DOCUMENTS or (len(self._made) > 1 and sum(len(made.body) for made in self._made.values()) > MOST_DOCUMENT_BYTES):
            oldest = next(iter(self._made))
            del self._made[oldest]
            if not self._making[oldest].locked():
                del self._making[oldest]

    async def _groups(self, request: web.Request) -> web.StreamResponse:
        def make() -> Generator[None, None, dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            changes: list[dict[str, Any]] = []
            for partition, lead in self._worker.groups():
                recent = self._recent.glance(lead.name, partition, lead.machine)
                row = brief(partition, lead, recent, self._worker.grounds(partition, lead))
                hour = self._recent.paces.last_hour(partition, lead.name, row["append_ms"])
                rows.append({**row, "led_since_ms": self._recent.led_since_ms(partition), "lags": hour})
                changes += changes_of(lead, recent)
                if not len(rows) % ROWS_A_PART:
                    changes = last_changes(changes)
                    yield
            groups = in_order_of_trouble(rows)
            for row in groups[MOST_LINES:]:
                row["lags"] = []
            log_id, unready = self._worker.log_id, self._worker.unready()
            return {"log_id": log_id, "unready": unready, "groups": groups, "changes": last_changes(changes)}

        return await self._made_of("groups", object(), make)

    async def _group(self, request: web.Request) -> web.StreamResponse:
        partition, lead, recent = self._led(request)
        grounds = self._worker.grounds(partition, lead)
        make = _at_once(lambda: group_now(partition, lead, recent, grounds))
        return await self._made_of(f"group {lead.name}", (lead.machine.state.last_offset, grounds.complete), make)

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        _, lead, recent = self._led(request)
        if len(lead.machine.state.tasks()) > MOST_ASKED_TASKS:
            fix = "equipoise timeline draws its log"
            return _json({"problem": f"the group has more than {MOST_ASKED_TASKS:,} tasks, which are not drawn here; {fix}"})
        now_ms = lead.machine.state.last_append_ms or 0
        return await self._made_of(f"timeline {lead.name}", now_ms, _at_once(lambda: recent.timeline(now_ms)), beside=page_data)

    async def _said(self, request: web.Request) -> web.StreamResponse:
        group = request.query.get("group", "")
        since = {"since_ms": self._led(request)[2].said_since_ms} if group else {}
        said = self._recent.latest(MOST_SAID, group)
        if since and len(said) == MOST_SAID:
            since["since_ms"] = max(since["since_ms"], said[0].append_ms)
        return _json({"said": [each.document() for each in said], "last": self._recent.last_number, **since})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self._stream.serve(request)

    # Questions

    def _base(self, lead: GroupLead) -> BaseState:
        state = lead.machine.state
        if len(state.tasks()) > MOST_ASKED_TASKS:
            raise BusyError(f"the group has more than {MOST_ASKED_TASKS:,} tasks; ask its log (equipoise explain, equipoise configure --dry-run)")
        return BaseState(
            group=lead.name,
            offset=state.last_offset,
            number=state.number,
            begins_offset=state.last_offset,
            append_ms=state.last_append_ms or 0,
            state=lead.machine.snapshot(),
        )

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        partition, lead, recent = self._led(request)
        since = clock_text(recent.first_append_ms or 0)[:8]

        def ask() -> Explain:
            task = parse_task(request.query.get("task", ""))
            stopped = recent.builder.not_running().get(task)
            return Explain(
                base=self._base(lead),
                task=task,
                moves=tuple(recent.builder.moves_of(task)),
                stopped=() if stopped is None else (stopped,),
                grounds=self._worker.grounds(partition, lead),
                unknown_before=f", since before {since} UTC, where the memory of this worker begins; `equipoise explain` on the log has why",
            )

        return await self._asked(ask)

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        _, lead, _ = self._led(request)
        query = request.query

        def ask() -> WhatIfQuestion:
            join = query.get("join", "0")
            return WhatIfQuestion(
                base=self._base(lead),
                join=int(join) if len(join) < MOST_DIGITS and join.isascii() and join.isdigit() else -1,
                without=tuple(query.getall("without", [])),
                settings=tuple(query.getall("set", [])),
            )

        return await self._asked(ask)

    async def _asked(self, ask: Callable[[], Explain | WhatIfQuestion]) -> web.Response:
        """A question without sense has an answer, too: ``problem``."""
        try:
            answer = await self._questions.ask(ask())
        except BusyError as error:
            return _json({"problem": str(error)}, status=503)
        except EquipoiseError as error:
            return _json({"problem": str(error)})
        return _json(answer)


def _docs_link() -> str:
    """The pages of this release; where it was built for nowhere, the place in its repository."""
    docs = docs_url()
    return f'<a id="docs" href="{escape(docs)}/console.md">docs</a>' if docs else '<span id="docs">docs: docs/console.md</span>'


def _at_once(make: Callable[[], Any]) -> Callable[[], Generator[None, None, Any]]:
    """Makes a document in one part."""

    def parts() -> Generator[None, None, Any]:
        yield from ()
        return make()

    return parts


def _encoded(found: Any, beside: Callable[[Any], Any] | None) -> bytes:
    return json.dumps(found if beside is None else beside(found), separators=(",", ":")).encode()


def _json(document: Any, *, status: int = 200) -> web.Response:
    return _answer(json.dumps(document).encode(), "json", status=status)


def _answer(body: bytes, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    media = _KINDS.get(kind, "application/json")
    return web.Response(body=body, status=status, headers={**(headers or {}), "Content-Type": f"{media}; charset=utf-8"})


def _files() -> dict[str, bytes]:
    """Name -> bytes of every file of the page. `equipoise timeline` has the same drawing."""
    own = resources.files("equipoise.console").joinpath("static")
    found = {each.name: each.read_bytes() for each in own.iterdir() if each.name.rpartition(".")[2] in _KINDS}
    for name in SHARED_FILES:
        found[name] = drawing_file(name).encode()
    found["colours.css"] = colour_rules().encode()
    return found
