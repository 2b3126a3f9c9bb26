"""Stores the checkpoints of a partition (docs/protocol.md#l7): a part of a takeover session."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from equipoise.events.facts import LogOpened
from equipoise.folding.checkpoints import Index, checkpoint_records, index_records
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.base_storing import Written
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.session_sender import SessionSender
from equipoise.worker.settings import WorkerSettings

_FACTS_A_CHECKPOINT = 20
"""With many groups a round of checkpoints begins after so many facts for each of them."""


class CheckpointKeeper:
    """Keeps the checkpoints of the groups that `lead` leads. In a *round* every group that has new
    facts gets one, and then the partition an index. `slots`: group -> slot of its last checkpoint.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        opened: LogOpened,
        lead: PartitionLead,
        sender: SessionSender,
        marks: DecisionMarks,
        written: Written,
        metrics: WorkerMetrics,
        slots: Mapping[str, int],
    ) -> None:
        self._settings, self._opened, self._lead, self._sender = settings, opened, lead, sender
        self._marks, self._written, self._metrics = marks, written, metrics
        self._slots = dict(slots)
        self._began_at = lead.position  # a long way to the end is checkpointed on the way
        """Where the last round began."""
        self._waiting: deque[str] = deque()
        """Groups that wait for their checkpoint in this round."""
        self.store_state: Callable[[StoredCheckpoint], Awaitable[None]] | None = None
        """Stores a state that a base names; None: this worker stores no bases."""

    def reload(self, settings: WorkerSettings) -> None:
        """Goes on with other settings."""
        self._settings = settings

    @property
    def is_in_round(self) -> bool:
        """Returns whether groups wait for their checkpoints."""
        return bool(self._waiting)

    @property
    def is_round_due(self) -> bool:
        """Returns whether there were enough facts since the last round began."""
        facts = max(self._settings.checkpoint_facts, _FACTS_A_CHECKPOINT * len(self._lead.groups))
        return self._lead.position - self._began_at >= facts

    def begin_round(self) -> None:
        """From now on every group that has new facts since its last checkpoint waits for one."""
        self._began_at = self._lead.position
        self._waiting = deque(sorted(name for name, group in self._lead.groups.items() if group.halted is None and not group.is_stored))

    async def go_on(self, most: int | None = None) -> None:
        """Stores checkpoints of those that have waited longest; all, or at most so many. Raises
        SendFailedError.
        """
        lead = self._lead
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            name = self._waiting.popleft()
            group = lead.groups[name]
            if group.halted is None and not group.is_stored:  # its own hash may have brought one meanwhile
                lead.take_checkpoint(name)
                await self.store(name, group.last_published)

    async def store(self, group: str, number: int) -> None:
        """Stores the checkpoints for which every decision of the group up to `number` had to be
        published. Raises SendFailedError.
        """
        for checkpoint in self._lead.acknowledged(group, number):
            if checkpoint.is_base and self.store_state is not None:
                await self.store_state(checkpoint)
            self._slots[group] = 1 - self._slots.get(group, 1)
            for key, value in checkpoint_records(self._opened.log_id, checkpoint, self._slots[group]):
                await self._sender.send(self._settings.topics.checkpoints, key, value)
            self._lead.stored(checkpoint)  # sent before any index that names it
            self._metrics.checkpoints.inc()

    def mark(self) -> None:
        """Notes that decisions on the facts from here on are published behind the present ones."""
        self._marks.reached(self._lead.position, self._written.decisions_offset)

    async def write_index(self) -> None:
        """Stores from where on the next worker has to read. Raises SendFailedError."""
        self.mark()
        recovery = self._lead.recovery_offset
        decisions = self._marks.start_for(recovery)
        rests_on = {name: group.checkpoint_offset for name, group in self._lead.groups.items() if group.checkpoint_offset >= 0}
        index = Index(position=self._lead.position, recovery_offset=recovery, decisions_offset=decisions, checkpoints=rests_on)
        for key, value in index_records(self._opened.log_id, index):
            await self._sender.send(self._settings.topics.checkpoints, key, value)
