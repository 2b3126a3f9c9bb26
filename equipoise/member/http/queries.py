"""Questions about the state of a task, and their answers from what is here: a task that runs, or a
copy of one. `query_routes` sends them to other members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from equipoise.events.errors import EquipoiseError
from equipoise.events.tasks import TaskId
from equipoise.member.tasks.context import HIDDEN_PREFIX, STREAMS_PREFIX, State
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.member.copies.stores import StateStore
    from equipoise.member.session.orders import Work

MOST_ROWS = 1_000
"""Of one answer, so that tasks and copies do not wait long for it."""
REASONS = ("not_here", "restoring", "behind", "no_owner", "no_such_state", "unreachable", "refused")


class QueryError(EquipoiseError):
    """A query has no answer. `reason`: one of

    - not_here: the member that was asked does not run the task, and keeps no copy of it
    - restoring: the task was granted there a moment ago, and its state is not complete yet
    - behind: the copy there is further behind than `max_lag`
    - no_owner: nobody runs the task at present
    - no_such_state: the task has no changelog of this name
    - unreachable: the owner's address does not answer
    - refused: the owner answers, but no queries: see the option `queries`

    The first four pass by themselves, and so does unreachable after a failure.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(f"query: {problem}")
        self.reason, self.problem = reason, problem


@attrs.frozen(kw_only=True)
class StateQuestion:
    """Keys of the state of `task` in the changelog `topic`: `key`, or from `start` to before `end`
    (None: to the last), at most `limit` of them. `newest`: also what is not committed. `max_lag`:
    records that a copy may be behind; None: the owner is to answer.
    """

    task: TaskId
    topic: str
    key: bytes | None = None
    start: bytes = b""
    end: bytes | None = None
    limit: int = MOST_ROWS
    newest: bool = False
    max_lag: int | None = None


@attrs.frozen(kw_only=True)
class StateRows:
    """Keys and values, in rising order of the keys. `has_more`: there are further ones. `lag`:
    records that they are behind the changelog; 0: the owner has answered.
    """

    rows: list[tuple[bytes, bytes]]
    has_more: bool = False
    lag: int = 0


class View(Protocol):
    """Something of `equipoise.streams` that keeps values in a state."""

    @property
    def topic(self) -> str | None:
        """The changelog; None: the task has one."""

    def query_place(self, raw_key: bytes, at_ms: int) -> bytes:
        """Returns where the value of a key is, in the window that begins then."""

    def query_span(self, start: Any, end: Any, key_bytes: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        """Returns where the values from `start` to before `end` are; None: from the first, to the
        last.
        """

    def query_value(self, raw: bytes) -> Any:
        """Unpacks a value."""

    def query_row(self, place: bytes, raw: bytes, key_of: Callable[[bytes], Any]) -> Any:
        """A value with its place, as the application knows it."""


async def answer_here(work: Work, question: StateQuestion, member_id: str) -> StateRows:
    """Answers from a task that runs here or a copy of it. Call it in the application's loop. Raises
    QueryError.
    """
    task, topic = question.task, question.topic
    found = work.states_of(task)
    if found is not None:
        state = found.get(topic)
        if state is None:
            raise no_such_state(task, topic, found)
        return _taken(_of_state(state, question), question.limit)
    if work.refusal(task) in (None, "closing", "restoring", "hold"):
        raise QueryError("restoring", f"member {member_id} runs task {task} in a moment: its state is being restored")
    if question.max_lag is not None:
        copied = await work.copied(task, topic, lambda store: _taken(_of_store(store, question), question.limit))
        if copied is not None:
            rows, lag = copied
            if not isinstance(lag, int) or lag > question.max_lag:
                known = counted(lag, "record") if isinstance(lag, int) else "an unknown number of records"
                problem = f"the copy of task {task} at member {member_id} is {known} behind, over max_lag {question.max_lag:,}"
                raise QueryError("behind", problem)
            return attrs.evolve(rows, lag=lag)
    beside = "" if question.max_lag is None else ", and keeps no copy of it"
    raise QueryError("not_here", f"member {member_id} does not run task {task}{beside}")


def no_such_state(task: TaskId, topic: str, there: Iterable[str]) -> QueryError:
    """The error of a changelog that the task does not have."""
    return QueryError("no_such_state", f"task {task} has no state {topic!r}; it has: {', '.join(sorted(there)) or 'none'}")


def _of_state(state: State, question: StateQuestion) -> Iterator[tuple[bytes, bytes]]:
    if not question.newest:
        yield from _of_store(state.store, question)
    elif question.key is not None:
        value = state.get_own(question.key)
        if value is not None:
            yield question.key, value
    else:
        for key, value in state.raw_items(question.start, question.end):
            if value is not None and not _is_hidden(key, question.start):
                yield key, value


def _of_store(store: StateStore, question: StateQuestion) -> Iterator[tuple[bytes, bytes]]:
    if question.key is None:
        yield from ((key, value) for key, value in store.items(question.start, question.end) if not _is_hidden(key, question.start))
        return
    value = store.get(question.key)
    if value is not None:
        yield question.key, value


def _is_hidden(key: bytes, start: bytes) -> bool:
    return key.startswith(HIDDEN_PREFIX) and not (start.startswith(STREAMS_PREFIX) and key.startswith(STREAMS_PREFIX))


def _taken(rows: Iterator[tuple[bytes, bytes]], limit: int) -> StateRows:
    limit = min(limit, MOST_ROWS)
    found = list(islice(rows, limit + 1))
    return StateRows(rows=found[:limit], has_more=len(found) > limit)
