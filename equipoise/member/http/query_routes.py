"""Queries of state between members, over the HTTP port of the one that is asked::

    GET /query?task=0_3&state=views&key=REU                      one key
    GET /query?task=0_3&state=views&start=QQ&end=Wg&limit=100    from a key to before another

Keys and values are bytes in base64url without ``=``, so any serde will do. ``newest=1``: also what
is not committed; ``max_lag=0``: a copy may answer that is at most so many records behind. The
answer is JSON: ``{"rows": [[key, value]], "has_more": false, "lag": 0}``, or with a status of 400,
404 or 503 ``{"reason": "not_here", "problem": "..."}``.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.tasks import TaskId, parse_task
from equipoise.member.http.queries import MOST_ROWS, REASONS, QueryError, StateQuestion, StateRows
from equipoise.member.session.location import KeyLocation

if TYPE_CHECKING:
    import aiohttp

PATH = "/query"
AGAIN_S = 0.1
"""Time between two attempts."""
PASSING = frozenset(("not_here", "restoring", "no_owner", "unreachable"))
"""Reasons that a hand-over or a failure causes, and ends."""
STATUSES = {"not_here": 404, "no_such_state": 404, "restoring": 503, "behind": 503, "no_owner": 503}


def packed(data: bytes) -> str:
    """Bytes as text of a URL."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def unpacked(text: str) -> bytes:
    """Reverses `packed`. Raises ValueError."""
    data = text.encode("ascii")
    return urlsafe_b64decode(data + b"=" * (-len(data) % 4))


def parameters_of(question: StateQuestion) -> dict[str, str]:
    """The parameters of a request."""
    found = {"task": str(question.task), "state": question.topic}
    if question.key is not None:
        return found | {"key": packed(question.key)} | _flags(question)
    found |= {"start": packed(question.start), "limit": str(question.limit)}
    return found | ({} if question.end is None else {"end": packed(question.end)}) | _flags(question)


def _flags(question: StateQuestion) -> dict[str, str]:
    newest = {"newest": "1"} if question.newest else {}
    return newest | ({} if question.max_lag is None else {"max_lag": str(question.max_lag)})


def question_of(given: Mapping[str, str]) -> StateQuestion:
    """The question of a request. Raises InputError, which names the parameter."""
    place = ""
    try:
        place = "task"
        task = parse_task(given["task"])
        place = "state"
        topic = given["state"]
        keys: dict[str, bytes] = {}
        for place in ("key", "start", "end"):
            if place in given:
                keys[place] = unpacked(given[place])
        place = "limit"
        limit = int(given.get("limit", MOST_ROWS))
        place = "max_lag"
        max_lag = int(given["max_lag"]) if "max_lag" in given else None
    except (KeyError, ValueError, EquipoiseError):
        raise InputError(f"{place}: {given.get(place, 'it is missing')!r:.80} is none; docs/applications-by-task.md has the form") from None
    if limit < 1:
        raise InputError(f"limit: {given['limit']!r:.80} is none; give a number of at least 1")
    return StateQuestion(task=task, topic=topic, limit=limit, max_lag=max_lag, newest=given.get("newest") == "1", **keys)


def answered(rows: StateRows) -> dict[str, Any]:
    """The document of an answer."""
    return {"rows": [[packed(key), packed(value)] for key, value in rows.rows], "has_more": rows.has_more, "lag": rows.lag}


def _rows_of(document: Any) -> StateRows:
    rows = [(unpacked(key), unpacked(value)) for key, value in document["rows"]]
    return StateRows(rows=rows, has_more=bool(document["has_more"]), lag=int(document["lag"]))


class QueryRoutes:
    """Asks the owner of a task: this process, or another one over HTTP. `here`: answers from this
    one. `locate`: says where a task runs. Use it in the application's loop.
    """

    def __init__(
        self,
        member_id: str,
        here: Callable[[StateQuestion], Awaitable[StateRows]],
        locate: Callable[[TaskId], Awaitable[KeyLocation]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._member_id, self._here, self._locate, self._monotonic_s = member_id, here, locate, monotonic_s
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections to other members."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def ask(self, question: StateQuestion, timeout_s: float) -> StateRows:
        """The answer. While a task moves, it asks again for `timeout_s`. Raises QueryError."""
        end_s = self._monotonic_s() + timeout_s
        while True:
            try:
                return await self._ask(question, max(AGAIN_S, end_s - self._monotonic_s()))
            except QueryError as error:
                if error.reason not in PASSING or self._monotonic_s() + AGAIN_S > end_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, question: StateQuestion, timeout_s: float) -> StateRows:
        here: QueryError
        try:
            return await self._here(question)
        except QueryError as error:
            if error.reason not in ("not_here", "behind"):
                raise
            here = error
        found = await self._locate(question.task)
        hosts = [] if found.member_id is None else [(found.member_id, found.advertised)]
        if question.max_lag is not None:
            near = [copy for copy in found.copies if isinstance(copy.lag, int) and copy.lag <= question.max_lag]
            hosts += [(copy.member_id, copy.advertised) for copy in near]
        hosts = [each for each in hosts if each[0] != self._member_id]
        if not hosts:
            if found.member_id == self._member_id:
                raise here  # it was given back a moment ago, or comes in a moment
            raise QueryError("no_owner", f"nobody runs task {question.task} at present")
        last: QueryError | None = None
        for member_id, address in hosts:
            try:
                return await self._ask_at(member_id, address, question, timeout_s)
            except QueryError as error:
                last = last or error
        assert last is not None, "one was asked"
        raise last

    async def _ask_at(self, member_id: str, address: str | None, question: StateQuestion, timeout_s: float) -> StateRows:
        if address is None:
            raise QueryError("refused", f"member {member_id} runs task {question.task}, and does not say where it is reached: give it queries=True")
        try:
            status, text = await self._fetch(address, parameters_of(question), timeout_s)
        except (TimeoutError, OSError, ValueError) as error:
            raise QueryError("unreachable", f"member {member_id} at {address} does not answer: {type(error).__name__} {error}".rstrip()) from None
        try:
            document = json.loads(text)
            if status == 200:
                return _rows_of(document)
            reason, problem = document.get("reason"), str(document["problem"])
        except (ValueError, KeyError, TypeError, AttributeError):
            reason, problem = None, "what it sends is no answer to a query; `advertised` must be the member's own http_port"
        if reason not in REASONS:
            reason = "refused"
        raise QueryError(reason, f"{problem.removeprefix('query: ')} (said by member {member_id} at {address}, {status})")

    async def _fetch(self, address: str, parameters: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
        """Status and body of the answer. Raises OSError, TimeoutError, ValueError."""
        import aiohttp

        if self._client is None:
            self._client = aiohttp.ClientSession()
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self._client.get(f"http://{address}{PATH}", params=parameters, timeout=timeout) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from None
