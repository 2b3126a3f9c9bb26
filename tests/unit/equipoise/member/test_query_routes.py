"""A query over HTTP, as a member asks it and another one answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
import pytest

from equipoise import Connection, Member, QueryError
from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import DeployedRuntime
from equipoise.member.http.queries import StateQuestion, StateRows
from equipoise.member.http.query_routes import PATH, QueryRoutes
from equipoise.member.http.server import MemberServer
from equipoise.member.options import MemberOptions
from equipoise.member.session.location import CopyLocation, KeyLocation

TASK = TaskId(0, 3)
QUESTION = StateQuestion(task=TASK, topic="views", key=b"\x00k\xff")
ROWS = StateRows(rows=[(b"\x00k\xff", b"\xfe"), (b"z", b"")], has_more=True, lag=3)
LOCATION = KeyLocation(task=TASK, member_id="m2", advertised="", token=5, copies=(), generation=1, as_of_ms=0)


@asynccontextmanager
async def answering(answer: Callable[[StateQuestion], StateRows], *, queries: bool = True) -> AsyncIterator[str]:
    """The address of a member that answers."""

    async def answers(question: StateQuestion) -> StateRows:
        return answer(question)

    options = MemberOptions(http_port=0, queries=queries)
    server = MemberServer("g", "m2", options, DeployedRuntime(), lambda: None, answers)
    port = await server.begin()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.end()


@asynccontextmanager
async def routes(location: KeyLocation) -> AsyncIterator[QueryRoutes]:
    async def here(question: StateQuestion) -> StateRows:
        raise QueryError("not_here", "member m1 does not run it")

    async def locate(task: TaskId) -> KeyLocation:
        assert task == TASK
        return location

    made = QueryRoutes("m1", here, locate, time.monotonic)
    try:
        yield made
    finally:
        await made.close()


async def test_owner_gets_the_question_and_its_rows_come_back() -> None:
    asked: list[StateQuestion] = []

    def answer(question: StateQuestion) -> StateRows:
        asked.append(question)
        return ROWS

    async with answering(answer) as address, routes(attrs.evolve(LOCATION, advertised=address)) as made:
        assert await made.ask(QUESTION, 5) == ROWS
    assert asked == [QUESTION]


@pytest.mark.parametrize("reason", ["no_such_state", "behind"])
async def test_error_of_the_owner_is_raised_here_with_its_name(reason: str) -> None:
    def answer(question: StateQuestion) -> StateRows:
        raise QueryError(reason, "as it is")

    async with answering(answer) as address, routes(attrs.evolve(LOCATION, advertised=address)) as made:
        with pytest.raises(QueryError, match=rf"^query: as it is \(said by member m2 at {address}, \d+\)$") as caught:
            await made.ask(QUESTION, 5)
    assert caught.value.reason == reason


async def test_task_that_moves_is_asked_for_again() -> None:
    tries = 0

    def answer(question: StateQuestion) -> StateRows:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise QueryError(["not_here", "restoring"][tries - 1], "in a moment")
        return ROWS

    async with answering(answer) as address, routes(attrs.evolve(LOCATION, advertised=address)) as made:
        assert await made.ask(QUESTION, 5) == ROWS
    assert tries == 3


async def test_copy_answers_for_an_owner_that_does_not() -> None:
    async with answering(lambda question: ROWS) as address:
        copies = (CopyLocation(member_id="m3", advertised=address, lag=3), CopyLocation(member_id="m4", advertised=None, lag=900))
        async with routes(attrs.evolve(LOCATION, advertised="127.0.0.1:9", copies=copies)) as made:
            assert await made.ask(attrs.evolve(QUESTION, max_lag=5), 5) == ROWS
            with pytest.raises(QueryError, match=r"member m2 at 127\.0\.0\.1:9 does not answer") as caught:
                await made.ask(QUESTION, 0.3)
    assert caught.value.reason == "unreachable"


async def test_owner_that_answers_no_queries_is_named() -> None:
    async with answering(lambda question: ROWS, queries=False) as address, routes(attrs.evolve(LOCATION, advertised=address)) as made:
        with pytest.raises(QueryError, match=r"there is no such page.*said by member m2") as caught:
            await made.ask(QUESTION, 5)
    assert caught.value.reason == "refused"
    async with routes(attrs.evolve(LOCATION, advertised=None)) as made:
        with pytest.raises(QueryError, match="member m2 runs task 0_3, and does not say where it is reached: give it queries=True"):
            await made.ask(QUESTION, 5)
    async with routes(attrs.evolve(LOCATION, member_id=None, advertised=None)) as made:
        with pytest.raises(QueryError, match="nobody runs task 0_3 at present") as caught:
            await made.ask(QUESTION, 0.2)
    assert caught.value.reason == "no_owner"


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({}, "task: 'it is missing' is none"),
        ({"task": "0_3"}, "state: 'it is missing' is none"),
        ({"task": "x", "state": "s"}, "task: 'x' is none"),
        ({"task": "0_3", "state": "s", "key": "ä"}, "key: 'ä' is none"),
        ({"task": "0_3", "state": "s", "limit": "-1"}, "limit: '-1' is none"),
    ],
)
async def test_request_that_is_no_query_is_refused(parameters: dict[str, str], says: str) -> None:
    async with answering(lambda question: ROWS) as address, aiohttp.ClientSession(f"http://{address}") as http:
        async with http.get(PATH, params=parameters) as answer:
            assert answer.status == 400
            assert says in (await answer.json())["problem"]
        async with http.get(PATH, headers={"Origin": "http://evil.example"}) as answer:
            assert answer.status == 403


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        ({}, None),
        ({"queries": True, "http_port": 0}, "127.0.0.1:8091"),
        ({"queries": True, "http_port": 0, "advertised": "10.0.0.7:0"}, "10.0.0.7:8091"),
        ({"queries": True, "http_port": 0, "advertised": "10.0.0.7:80"}, "10.0.0.7:80"),
        ({"advertised": "10.0.0.7:80"}, "10.0.0.7:80"),
        ({"queries": True, "http_port": 0, "http_host": "::1"}, "[::1]:8091"),
    ],
)
def test_member_says_where_it_is_reached(options: dict[str, Any], reached: str | None) -> None:
    assert MemberOptions(**options).reached_at(8091) == reached


def test_options_that_others_cannot_use_are_refused() -> None:
    with pytest.raises(FieldError, match="queries: others ask at the member's HTTP port, and there is none; give http_port"):
        MemberOptions(queries=True)
    with pytest.raises(FieldError, match=r"advertised: '10\.0\.0\.7:0' has the port of http_port, and there is none"):
        MemberOptions(advertised="10.0.0.7:0")


async def test_query_needs_a_member_that_has_joined() -> None:
    member = Member("g", lambda record, context: None, sources="in", state="s", connection=Connection(bootstrap="127.0.0.1:1"))
    with pytest.raises(InputError, match="enter it first"):
        await member.query(b"k")
