"""Server-sent events: new sentences and changes of groups, to any number of pages.

Nobody waits for a page. Each has a bounded buffer; one that does not read it empty is let go, and
its browser connects again and fetches what it missed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import attrs
from aiohttp import web

from equipoise.console.recent import Recent, SaidSentence

MOST_PAGES = 100
"""Most pages that are connected at once."""
MOST_WAITING_BYTES = 1_000_000
"""Events in the buffer of one page."""
MOST_SAID = 500
"""Sentences that are sent together; a page that misses some fetches them."""
FLUSH_S = 0.25
"""Events are gathered for so long and sent together."""
CHANGED_S = 1.0
"""Least time between two events that say that a group changed."""
MOST_DIGITS = 20
"""Of a number of a sentence; Python refuses to read thousands."""
ALIVE_S = 15.0
"""A comment is sent after so long without an event, so that proxies keep the connection."""
WRITE_S = 10.0
"""A page that does not take what was written for so long is let go."""


@attrs.define(eq=False)
class _Page:
    group: str
    """"": all groups."""
    waiting: asyncio.Queue[bytes | None] = attrs.field(factory=asyncio.Queue)
    waiting_bytes: int = 0

    def put(self, events: bytes) -> bool:
        """Returns whether the events fit into the page's buffer."""
        if self.waiting_bytes and self.waiting_bytes + len(events) > MOST_WAITING_BYTES:
            return False
        self.waiting_bytes += len(events)
        self.waiting.put_nowait(events)
        return True

    async def next_events(self) -> bytes | None:
        """The next events; None: the page is let go."""
        events = await self.waiting.get()
        self.waiting_bytes -= len(events or b"")
        return events

    def let_go(self) -> None:
        """Empties the buffer, and ends the connection."""
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.waiting.put_nowait(None)


class Stream:
    """The events of one worker. `recent`: where they come from."""

    def __init__(self, recent: Recent) -> None:
        self._recent = recent
        recent.changed = self._changed
        self._pages: set[_Page] = set()
        self._said: list[SaidSentence] = []
        self._groups: set[str] = set()
        self._told_s: dict[str, float] = {}
        self._flush: asyncio.TimerHandle | None = None
        self.dropped = 0
        """Pages that were let go because they did not read."""

    @property
    def pages(self) -> int:
        """Pages that are connected."""
        return len(self._pages)

    def close(self) -> None:
        """Ends all connections."""
        if self._flush is not None:
            self._flush.cancel()
        for page in self._pages:
            page.let_go()

    def _changed(self, group: str, said: list[SaidSentence]) -> None:
        if not self._pages:
            return
        self._groups.add(group)
        self._said += said[: MOST_SAID - len(self._said)]
        loop = asyncio.get_running_loop()
        if self._flush is not None and self._flush.when() > loop.time() + FLUSH_S:
            self._flush.cancel()  # it would only say that a group changed
            self._flush = None
        if self._flush is None:
            self._flush = loop.call_later(FLUSH_S, self._send)

    def _send(self) -> None:
        """Gives every page what it wants of what was gathered. Each event is encoded once."""
        loop = asyncio.get_running_loop()
        self._flush, now_s = None, loop.time()
        said, self._said = self._said, []
        due = {group for group in self._groups if now_s - self._told_s.get(group, 0.0) >= CHANGED_S}
        self._groups -= due
        self._told_s = {group: told_s for group, told_s in self._told_s.items() if now_s - told_s < CHANGED_S} | dict.fromkeys(due, now_s)
        events = [(each.group, _event("said", each.document(), each.number)) for each in said]
        events += [(group, _event("changed", {"group": group})) for group in sorted(due)]
        chosen = {wanted: b"".join(event for group, event in events if wanted in ("", group)) for wanted in {page.group for page in self._pages}}
        for page in list(self._pages):
            if chosen[page.group] and not page.put(chosen[page.group]):
                self.dropped += 1
                self._pages.discard(page)
                page.let_go()
        if self._groups:
            self._flush = loop.call_later(CHANGED_S, self._send)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The page of events: of the group that the query names, or of all."""
        if len(self._pages) >= MOST_PAGES:
            return web.json_response({"problem": f"{MOST_PAGES} pages are open already"}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        page = _Page(request.query.get("group", ""))
        self._pages.add(page)
        try:
            await response.write(b"retry: 2000\n\n" + self._missed(page.group, request.headers.get("Last-Event-ID", "")))
            while True:
                try:
                    event = await asyncio.wait_for(page.next_events(), ALIVE_S)
                except TimeoutError:
                    event = b": alive\n\n"
                if event is None:
                    break
                await asyncio.wait_for(response.write(event), WRITE_S)
        except (ConnectionError, TimeoutError):
            pass  # the page is gone, or does not read
        finally:
            self._pages.discard(page)
        return response

    def _missed(self, group: str, last: str) -> bytes:
        """Returns what was said since a page was last connected, as far as it is kept."""
        number = int(last) if len(last) < MOST_DIGITS and last.isascii() and last.isdigit() else None
        if number is None or number > self._recent.last_number:
            return b""
        found = [each for each in self._recent.latest(MOST_SAID, group) if each.number > number]
        return b"".join(_event("said", each.document(), each.number) for each in found)


def _event(kind: str, document: Any, number: int | None = None) -> bytes:
    place = "" if number is None else f"id: {number}\n"
    return f"{place}event: {kind}\ndata: {json.dumps(document, separators=(',', ':'))}\n\n".encode()
