"""Says in the log which tasks of a member are parked (docs/protocol.md#m10)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from equipoise.events.facts import MOST_TROUBLES, Fact, TaskParked, TroublesReported
from equipoise.events.fields import MOST_TEXT_CHARS
from equipoise.events.tasks import TaskId
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.runner_factory import SharedSession


class ParkedReports:
    """Reports parked tasks until the brokers have acknowledged that. `send` queues a fact. Belongs
    to the member's own loop.
    """

    def __init__(self, shared: SharedSession, send: Callable[[Fact], None]) -> None:
        self._shared, self._send = shared, send
        self._unsaid: dict[TaskId, tuple[int, FailedTask]] = {}
        """Task -> token and why it is parked, until TaskParked is acknowledged."""
        self._blocked: dict[TaskId, int] = {}
        """Task of which was said that the application's loop does not run -> token."""

    def park(self, token: int, parked: FailedTask) -> None:
        """Reports a task that is parked under this grant."""
        self._unsaid[parked.task] = token, parked
        self.say()

    def say(self) -> None:
        """Says which tasks are parked, as far as that is not acknowledged."""
        with self._shared.lock:
            session = self._shared.session
            tokens = {task: grant.token for task, grant in session.grants.items()}
        self._unsaid = {task: said for task, said in sorted(self._unsaid.items()) if tokens.get(task) == said[0]}
        for task, (token, parked) in self._unsaid.items():
            self._send(
                TaskParked(
                    member_id=session.member_id,
                    incarnation=session.incarnation,
                    task=task,
                    token=token,
                    topic=parked.topic,
                    partition=max(0, parked.partition),
                    offset=max(0, parked.offset),
                    error=parked.error,
                )
            )

    def acknowledged(self, fact: TaskParked) -> None:
        """Notes that the brokers have appended it."""
        said = self._unsaid.get(fact.task)
        if said is not None and (said[0], said[1].error) == (fact.token, fact.error):
            del self._unsaid[fact.task]

    def note_blocked(self, why: str, parked: Callable[[], Container[TaskId]]) -> None:
        """Takes note whether the application's loop runs. `why`: it does not, so that no task is
        handled; "": it does. `parked`: returns the tasks that are parked anyway.
        """
        with self._shared.lock:
            tokens = {task: grant.token for task, grant in self._shared.session.grants.items()} if why or self._blocked else {}
        for task, token in tokens.items():
            if task not in parked() and bool(why) != (self._blocked.get(task) == token):
                self._unsaid[task] = token, FailedTask(task=task, topic="", partition=-1, offset=-1, error=why)
        self._blocked = tokens if why else {}


# Says in the log what holds up a member from outside (docs/protocol.md#m10).


class TroubleReports:
    """Reports troubles that have changed, until the brokers have acknowledged that. `send` queues a
    fact. Belongs to the member's own loop.
    """

    def __init__(self, shared: SharedSession, send: Callable[[Fact], None]) -> None:
        self._shared, self._send = shared, send
        self._acknowledged: tuple[int, tuple[str, ...]] = (-1, ())
        """Incarnation and troubles that the leader knows of."""

    def say(self, troubles: Iterable[str]) -> None:
        """Reports what holds up the member now, unless the leader knows that."""
        with self._shared.lock:
            session = self._shared.session
            member_id, incarnation, joined = session.member_id, session.incarnation, session.joined and session.ended is None
        now = tuple(each[:MOST_TEXT_CHARS] for each in sorted(set(troubles))[:MOST_TROUBLES])
        of, known = self._acknowledged
        if joined and now != (known if of == incarnation else ()):
            self._send(TroublesReported(member_id=member_id, incarnation=incarnation, troubles=now))

    def acknowledged(self, fact: TroublesReported) -> None:
        """Notes that the brokers have appended it."""
        self._acknowledged = fact.incarnation, fact.troubles
