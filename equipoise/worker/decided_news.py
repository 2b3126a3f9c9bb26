"""Tells what the leader of a partition decides: log lines, metrics, traces and the console."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from equipoise.console.recent import Recent
from equipoise.events.facts import MemberUnchanged
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.log_reading import PartitionReading
from equipoise.replay.sentences import TOLD_FACTS, tell
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.tracing import Tracing

_LOG = logging.getLogger(__name__)
_DECIDED = logging.getLogger("equipoise.decided")
RECALLED_FACTS = 3_000
"""Facts before its checkpoints that a worker reads again after a takeover, for the console."""


class DecidedNews:
    """Tells what one partition's leader decides for its groups. A defect here must not stop a
    group, so nothing is raised.
    """

    def __init__(self, partition: int, metrics: WorkerMetrics, tracing: Tracing | None, recent: Recent) -> None:
        self._partition, self._metrics, self._tracing, self._recent = partition, metrics, tracing, recent
        self._restored: dict[str, int] = {}
        """Group -> offset of the last fact in its checkpoint."""
        self._first = 0
        """What `Recent.lead` returned."""

    def begin(self, lead: PartitionLead) -> None:
        """Takes the groups as their checkpoints have them, before facts are folded."""
        self._restored = {name: group.machine.state.last_offset for name, group in lead.groups.items()}
        for name, group in lead.groups.items():
            self._metrics.begin(name, group.machine.state)
        newest_ms = max([group.machine.state.last_append_ms or 0 for group in lead.groups.values()], default=0)
        self._first = self._recent.lead(self._partition, newest_ms)

    def forget(self, groups: Iterable[str]) -> None:
        """Drops the metrics and traces of groups that are led here no longer."""
        self._metrics.forget(groups)
        if self._tracing is not None:
            self._tracing.forget(groups)

    def folded(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine, *, live: bool, is_new: bool) -> None:
        """Counts a fact that was folded, and says what was decided. `live`: after the takeover.
        `is_new`: no worker had answered the fact before this one.
        """
        try:
            self._metrics.folded(record, decisions, machine.state, live=live, is_new=is_new)
            if self._tracing is not None and is_new:
                self._tracing.folded(record, decisions, machine.state)
        except Exception:  # noqa: BLE001 a defect of the metrics must not stop a group
            _LOG.exception("partition %d: group %s: the fact at offset %d could not be counted", self._partition, record.group, record.offset)
        if decisions or record.event.__class__ is not MemberUnchanged:  # most facts are heartbeats, of which there is nothing to say
            self._say(record, decisions, machine, is_new)

    def _say(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine, is_new: bool) -> None:
        """Logs what was decided here for the first time, and why. The console has also what a
        former worker decided since its last checkpoint.
        """
        try:
            told = list(tell(record, decisions)) if decisions or record.event.__class__ in TOLD_FACTS else []
            for said in told if is_new else ():
                _DECIDED.log(said.level, "group %s: %s", record.group, said.text, extra={"decided": {"partition": self._partition, **said.values}})
            self._recent.note(self._partition, record, decisions, machine, told)
        except Exception:  # noqa: BLE001 a defect of what is told must not stop a group
            _LOG.exception("partition %d: group %s: no line for the fact at offset %d", self._partition, record.group, record.offset)

    async def recall(self, reading: PartitionReading, lead: PartitionLead) -> None:
        """Has the console know what the log says of the time before the checkpoints."""
        restored = self._restored
        if not restored:
            return
        try:
            last = max(restored.values())
            told = [each async for each in reading.former(max(0, last + 1 - RECALLED_FACTS), last + 1)]
            machines = {name: lead.groups[name].machine for name in restored if name in lead.groups}
            mine = [(record, decisions) for record, decisions in told if record.group in machines and record.offset <= restored[record.group]]
            self._recent.recall(
                self._partition,
                self._first,
                [
                    (record, decisions, machines[record.group], list(tell(record, decisions)))
                    for record, decisions in mine
                    if decisions or record.event.__class__ in TOLD_FACTS
                ],
            )
        except Exception as error:  # noqa: BLE001 the console knows less
            _LOG.debug("partition %d: what was decided before is not recalled: %r", self._partition, error)
