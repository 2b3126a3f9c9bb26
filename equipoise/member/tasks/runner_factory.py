"""Makes what runs a granted task, with the clients that it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

import attrs

from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import Runtime
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.clients import MemberClients, TaskClients
from equipoise.member.tasks.commit_schedule import MOST_OF_MEMBER, CommitTicks, Uncommitted
from equipoise.member.tasks.context import Callback
from equipoise.member.tasks.failures import Failures
from equipoise.member.tasks.loop_turns import Turns, new_ticks
from equipoise.member.tasks.processing import Processor
from equipoise.member.tasks.runner import TaskRunner
from equipoise.member.tasks.runner_protocol import Permit
from equipoise.statemachine.member import MemberSession

COMMIT_PARTS = 10
"""With at_least_once: a tenth of the tasks that wait commit together."""


class SharedSession:
    """The session of the present incarnation. Several threads use it, each with the lock held."""

    def __init__(self, session: MemberSession) -> None:
        self.lock = threading.Lock()
        self.session = session
        self.read_up_to_ms = 0
        """All decisions published up to this time (ms, CLOCK_BOOTTIME) have been received."""


@attrs.frozen
class RunnerFactory:
    """Makes runners, each for one grant of one task."""

    shared: MemberClients
    runtime: Runtime
    group: str
    topology: TopologyDeclared
    options: MemberOptions
    processors: Mapping[int, Processor]
    """Sub-topology -> its processor."""
    on_assigned: Callback | None
    on_revoked: Callback | None
    log_id: Callable[[], str]
    """Returns the id of the log that grants tasks now."""
    _ticks: CommitTicks = attrs.field(init=False)
    """Of all tasks that share a producer."""
    _uncommitted: Uncommitted = attrs.field(init=False, factory=partial(Uncommitted, MOST_OF_MEMBER))
    _turns: Turns = attrs.field(init=False, factory=Turns)
    failures: Failures = attrs.field(init=False)
    """Of all tasks."""

    @failures.default
    def _new_failures(self) -> Failures:
        return Failures(self.runtime.monotonic_s, [(each.label(number), topic) for number, each in self.processors.items() for topic in each.sources])

    @_ticks.default
    def _new_ticks(self) -> CommitTicks:
        # With at_least_once outputs do not wait for a commit.
        return new_ticks(self.runtime.monotonic_s, self.options.commit_interval_s, parts=1 if self.options.transactional else COMMIT_PARTS)

    def make(self, permit: Permit, task: TaskId, token: int, connected: TaskClients | None) -> TaskRunner:
        """The runner of the grant `token` of `task`. `connected`: its clients, if connected ahead."""
        part = self._part(task)
        stateful = part.stateful and self.has_changelogs(task)
        ticks = self._ticks if stateful or not self.options.transactional else self._new_ticks()
        return TaskRunner(
            permit,
            self.runtime,
            self.log_id(),
            self.group,
            task,
            token,
            ticks=ticks,
            uncommitted=self._uncommitted,
            turns=self._turns,
            new_clients=partial(self.clients, task),
            connected=connected,
            stateful=stateful,
            options=self.options,
            processor=self.processors[task.subtopology],
            on_assigned=self.on_assigned,
            on_revoked=self.on_revoked,
            failures=self.failures,
        )

    def clients(self, task: TaskId) -> TaskClients:
        """New clients of `task`, not connected yet."""
        part = self._part(task)
        changelogs = part.changelog_topics if part.stateful else ()
        others = {topic for each in self.topology.subtopologies if each is not part for topic in each.source_topics}
        return TaskClients(
            self.shared,
            self.group,
            task,
            self.options,
            sources=part.source_topics,
            changelogs=changelogs,
            shares_sources=not others.isdisjoint(part.source_topics),
        )

    def has_changelogs(self, task: TaskId) -> bool:
        """Returns whether `task` has changelogs to restore."""
        return bool(self._part(task).changelog_topics)

    def _part(self, task: TaskId) -> Subtopology:
        return next(part for part in self.topology.subtopologies if part.subtopology == task.subtopology)
