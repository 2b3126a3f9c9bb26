"""The member's side of a running task: what the task may do, its stores, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.events.tasks import TaskId
from equipoise.hosting.runtime import HostThread, Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.member.copies.fencing import FencedStore, Owners, TakeIf
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import DamagedStoreError
from equipoise.member.session.link import RETRY_S
from equipoise.member.session.preparing import PreparationProgress, PrepareCallback, Preparer
from equipoise.member.session.progress_reports import ProgressReports
from equipoise.member.tasks.error_policy import FailedTask, error_text
from equipoise.member.tasks.runner_factory import SharedSession
from equipoise.member.tasks.runner_protocol import NOT_ADOPTED

if TYPE_CHECKING:
    from equipoise.member.session.adoption import Adoption  # loads aiokafka

_LOG = logging.getLogger(__name__)
PERMIT_MS = 10
"""For how long a runner processes without asking again. A whole lease would be safe; a task that
is to stop should hear of it sooner.
"""


class RunnerPermit:
    """The `Permit` of a member's runners. `stopped`, `parked` and `ended` take what a runner says,
    in the application's loop. `wake` makes the member's loop look again, `fail` ends the member
    with an error.
    """

    def __init__(
        self,
        shared: SharedSession,
        restorer: ChangelogRestorer,
        restore_thread: HostThread,
        adoption: Adoption | None,
        prepare: PrepareCallback | None,
        reports: ProgressReports,
        runtime: Runtime,
        brokers: BrokerWatch,
        *,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
        parked: Callable[[int, FailedTask], None],
        stopped: Callable[[TaskId], None],
        ended: Callable[[TaskId], None],
    ) -> None:
        self._shared, self._restorer, self._restore_thread, self._adoption = shared, restorer, restore_thread, adoption
        self._reports, self._boot_ms, self._brokers = reports, runtime.boot_ms, brokers
        self._wake, self._fail = wake, fail
        self.parked, self.stopped, self._ended = parked, stopped, ended
        self.preparer = None if prepare is None else Preparer(prepare, self._declare_ready, wake, fail, runtime)
        self.fenced_writes = 0
        """Number of commits that were refused or overtaken because a later owner had begun."""

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        with self._shared.lock:
            now_ms, session = self._boot_ms(), self._shared.session
            refusal, until_ms = session.refusal(task, now_ms), min(now_ms + PERMIT_MS, session.lease_ends_ms)
        adoption = self._adoption
        if adoption is not None and refusal in (None, "closing"):
            refusal = refusal if now_ms < adoption.lease_ends_ms else NOT_ADOPTED
            until_ms = min(until_ms, adoption.lease_ends_ms)
        return refusal, until_ms

    # Preparation

    def prepare(self, task: TaskId) -> Coroutine[Any, Any, None] | None:
        with self._shared.lock:
            is_prepared = self._shared.session.is_prepared(task)
        if not is_prepared and self.preparer is not None:
            return self.preparer.prepared(task)
        if not is_prepared:
            self._declare_ready(task)  # with declares_ready, `on_assigned` prepares a task that was granted unprepared
        return None

    def _declare_ready(self, task: TaskId) -> None:
        with self._shared.lock:
            self._shared.session.declare_ready(task)
        self._wake()

    @property
    def preparing(self) -> Mapping[TaskId, PreparationProgress]:
        """Task in preparation -> progress."""
        return {} if self.preparer is None else self.preparer.progress()

    # Stores

    async def restore(self, task: TaskId, take_if: TakeIf) -> tuple[Owners, Mapping[str, FencedStore] | None]:
        return await self._restore_thread.run(self._restorer.restore(task, take_if))

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        return await self._restore_thread.run(self._restorer.open(task, goals))

    async def put_stores_back(self, task: TaskId) -> None:
        async def put_back() -> None:
            self._restorer.put_back(task)

        await self._restore_thread.run(put_back())

    async def give_up_stores(self, task: TaskId, error: DamagedStoreError) -> None:
        async def give_up() -> None:
            self._restorer.give_up(task, error)

        await self._restore_thread.run(give_up())

    # What becomes of a task

    def restored(self, task: TaskId) -> None:
        with self._shared.lock:
            self._shared.session.copy_progress(task, 0, self._boot_ms())
            self._reports.restored(task)  # before the first look
        self._wake()

    async def still_granted(self, task: TaskId, token: int) -> bool:
        asked_ms = self._boot_ms()
        while True:
            with self._shared.lock:
                session = self._shared.session
                grant = session.grants.get(task)
                if grant is None or grant.token != token or session.refusal(task, self._boot_ms()) == "ended":
                    return False
                if self._shared.read_up_to_ms >= asked_ms:
                    return True
            await asyncio.sleep(RETRY_S)

    def failed(self, task: TaskId, error: Exception) -> None:
        if not self._brokers.noted(f"task {task}", error):
            _LOG.warning("task %s: opening it again: %s", task, error_text(error))

    def fenced(self, task: TaskId) -> None:
        self.fenced_writes += 1

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        self._ended(task)
