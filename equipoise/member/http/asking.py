"""`Member.query` and `Member.query_range`: keys and values by the serdes of the application, over
the bytes of `queries` and the ways of `query_routes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.member.http.queries import MOST_ROWS, StateQuestion, StateRows, View, answer_here, no_such_state
from equipoise.member.http.query_routes import QueryRoutes
from equipoise.member.options import MemberOptions
from equipoise.member.session.host import MemberHost
from equipoise.member.session.location import Partitioner
from equipoise.member.tasks.processing import Processor

ASK_S = 5.0
"""For how long a query goes on while a task moves."""


class MemberQueries:
    """The queries of one member, in the application's loop."""

    def __init__(self, host: MemberHost, member_id: str, processors: Mapping[int, Processor], options: MemberOptions, monotonic_s: Any) -> None:
        self._host, self._member_id, self._processors = host, member_id, processors
        self._keys, self._values = options.state_key_serde or options.key_serde, options.state_serde or options.value_serde
        self._record_keys = options.key_serde
        self._routes = QueryRoutes(member_id, self.answer, host.locate, monotonic_s)

    async def close(self) -> None:
        """Closes the connections to other members."""
        await self._routes.close()

    async def answer(self, question: StateQuestion) -> StateRows:
        """Answers from what is here. Raises QueryError."""
        return await answer_here(self._host.work, question, self._member_id)

    async def one(
        self,
        key: Any,
        *,
        of: View | None,
        at_ms: int,
        state: str | None,
        task: TaskId | None,
        subtopology: int | None,
        partitioner: Partitioner,
        newest: bool,
        max_lag: int | None,
        timeout_s: float,
    ) -> Any:
        """The value of a key; None: there is none."""
        number = task.subtopology if task is not None else self._number(subtopology)
        if task is None:
            (first, *_) = self._processors[number].inputs
            task = self._host.task_of((first.key_serde or self._record_keys).serialize(key), number, partitioner)
        raw_key = self._keys.serialize(key)
        topic = self._topic(task, of, state)
        place = raw_key if of is None else of.query_place(raw_key, at_ms)
        question = StateQuestion(task=task, topic=topic, key=place, newest=newest, max_lag=max_lag)
        rows = (await self._routes.ask(question, timeout_s)).rows
        if not rows:
            return None
        return self._values.deserialize(rows[0][1]) if of is None else of.query_value(rows[0][1])

    async def range(
        self,
        start: Any,
        end: Any,
        *,
        of: View | None,
        state: str | None,
        task: TaskId | None,
        subtopology: int | None,
        newest: bool,
        max_lag: int | None,
        limit: int,
        timeout_s: float,
    ) -> list[Any]:
        """The first `limit` rows of a task, or of all of a sub-topology."""
        tasks = list(self._host.tasks_of(self._number(subtopology))) if task is None else [task]
        topics = {each: self._topic(each, of, state) for each in tasks}
        if of is None:
            first = b"" if start is None else self._keys.serialize(start)
            last = None if end is None else self._keys.serialize(end)
        else:
            first, last = of.query_span(start, end, self._keys.serialize)
        found: list[tuple[bytes, bytes]] = []
        for each, topic in topics.items():
            question = StateQuestion(task=each, topic=topic, start=first, end=last, newest=newest, max_lag=max_lag)
            left = limit
            while left > 0:
                question = attrs.evolve(question, limit=min(left, MOST_ROWS))
                answer = await self._routes.ask(question, timeout_s)
                found += answer.rows
                left -= len(answer.rows)
                if not answer.has_more:
                    break
                question = attrs.evolve(question, start=answer.rows[-1][0] + b"\0")
        found = sorted(found)[:limit]
        if of is None:
            return [(self._keys.deserialize(key), self._values.deserialize(value)) for key, value in found]
        return [of.query_row(place, raw, self._keys.deserialize) for place, raw in found]

    def _number(self, subtopology: int | None) -> int:
        there = sorted(self._processors)
        number = there[0] if subtopology is None and len(there) == 1 else subtopology
        if number is None or number not in self._processors:
            problem = "give the sub-topology that has the state" if number is None else f"there is no sub-topology {number}"
            raise InputError(f"query: {problem}; there are {', '.join(map(str, there))}")
        return number

    def _topic(self, task: TaskId, of: View | None, state: str | None) -> str:
        """The changelog that is meant. Raises InputError, QueryError."""
        if of is not None and not hasattr(of, "query_place"):
            name, fix = type(of).__name__, "keep what is to be asked in a table or in the state"
            fix = "ask its left_table and its right_table" if name == "TableJoin" else fix
            raise InputError(f"query: of={name}(...) is neither a table nor windows; {fix}")
        there = self._processors[self._number(task.subtopology)].state
        named = state if of is None or of.topic is None else of.topic
        if named is None and len(there) != 1:
            raise InputError(f"query: task {task} has {len(there)} states; give state=, one of: {', '.join(there) or 'none'}")
        if named is not None and named not in there:
            raise no_such_state(task, named, there)
        return named or there[0]
