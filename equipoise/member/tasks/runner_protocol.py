"""The protocol between a runner and its member, and the errors that stop a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from equipoise.events.tasks import TaskId
from equipoise.member.copies.fencing import FencedStore, Owners, TakeIf
from equipoise.member.copies.stores import DamagedStoreError
from equipoise.member.tasks.error_policy import FailedTask

NOT_ADOPTED = "not_adopted"
"""A reason why a task may not be processed: consumers may be in the group whose place the members
take.
"""


class Permit(Protocol):
    """The part of a member that its runners need. Called from the application's thread."""

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        """Returns why `task` may not be processed now (None: it may), and until when it may be
        processed without asking again (ms, CLOCK_BOOTTIME): for a moment, and never beyond the
        lease.
        """

    async def restore(self, task: TaskId, take_if: TakeIf) -> tuple[Owners, Mapping[str, FencedStore] | None]:
        """Restores the task's stores to the present ends of its changelogs. Returns changelog topic
        -> owner there (None: nobody has written to it), and the stores if `take_if` returns True
        for these owners, on any thread.
        """

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        """Hands over the task's stores, restored at least up to `goals`: changelog topic -> offset
        of the record to apply next.
        """

    async def put_stores_back(self, task: TaskId) -> None:
        """Takes the stores back: the task has stopped, or never got them."""

    async def give_up_stores(self, task: TaskId, error: DamagedStoreError) -> None:
        """The task's stores, which it has, are damaged: they are wiped when they are put back, and
        restored from the changelogs. Raises StoreError when that happened a moment ago.
        """

    def prepare(self, task: TaskId) -> Coroutine[Any, Any, None] | None:
        """Returns what to await until the application has prepared the task; None: it need not."""

    def restored(self, task: TaskId) -> None:
        """The task has its stores, and begins to process."""

    async def still_granted(self, task: TaskId, token: int) -> bool:
        """Returns whether the grant holds, by decisions read from now on."""

    def failed(self, task: TaskId, error: Exception) -> None:
        """A request failed. The task opens again while it is granted."""

    def fenced(self, task: TaskId) -> None:
        """A write was refused or overtaken: a later owner has begun this task."""

    def parked(self, token: int, parked: FailedTask) -> None:
        """A task handles nothing more, and keeps its grant."""

    def stopped(self, task: TaskId) -> None:
        """The task writes nothing any more: its next owner may begin."""

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        """The task is closed. `error`: raised by the application's code or a store; None: none."""


class RefusedError(Exception):
    """The member may not process this task now."""


class HeldPermit:
    """The answers of `permit` for one task. `boot_ms`: a clock."""

    def __init__(self, permit: Permit, task: TaskId, boot_ms: Callable[[], int]) -> None:
        self._permit, self._task, self._boot_ms = permit, task, boot_ms
        self.until_ms = 0
        """Until when the task may be processed without asking again (ms, CLOCK_BOOTTIME)."""

    @property
    def is_valid(self) -> bool:
        return self._boot_ms() < self.until_ms

    def goes_on(self) -> bool:
        """Returns `ask`, asked again only when the last permit is over."""
        return self.is_valid or self.ask()

    def ask(self) -> bool:
        """Called at least each PERMIT_MS while records are processed, outputs are sent and commits
        begin. False: commit and close the task. Raises RefusedError when the member may not process
        it.
        """
        refusal, until_ms = self._permit.permit(self._task)
        self.until_ms = until_ms if refusal is None else 0
        if refusal is not None and refusal != "closing":
            raise RefusedError(refusal)
        return refusal is None


class OvertakenError(Exception):
    """Another owner has written to a changelog while this task ran here, or has fenced it."""
