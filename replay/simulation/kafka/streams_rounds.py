"""Rounds of a simulated Kafka Streams application that equipoise decides (docs/streams.md): the
question as facts, the real machine, and its answer. HTTP and the log take no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.assignors import Partition, Task
from equipoise.assignors.kafka_streams.client_states import LATEST, ClientState
from equipoise.bridge.mapping import facts_of, names_of, racks_of
from equipoise.bridge.question import AskedPartition, AskedProcess, AskedTask, Question
from equipoise.events.codec import make_record
from equipoise.events.decisions import Decision, RoundPlanned
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, PartitionsObserved
from equipoise.events.parts import whole
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine.machine import GroupMachine


@attrs.frozen(kw_only=True)
class RoundAnswer:
    """Process id -> its tasks, and its copies. `follow_up_ms`: when the next round is wanted; None:
    not at all.
    """

    active: Mapping[str, Sequence[TaskId]]
    copies: Mapping[str, Sequence[TaskId]]
    follow_up_ms: int | None


class SimulatedRounds:
    """The worker of one group, which appends nothing anywhere."""

    def __init__(self, group: str, log_id: str, configured: GroupConfigured, start_ms: int) -> None:
        self._group = group
        self._machine = GroupMachine()
        self._seen: object = None
        self._last_ms: int | None = None
        self.facts = 0
        self.decisions = 0
        self._fold(start_ms, LogOpened(log_id=log_id), group="")
        self.configure(start_ms, configured)

    def configure(self, now_ms: int, configured: GroupConfigured) -> None:
        self._fold(now_ms, configured)

    def ask(self, now_ms: int, tasks: Iterable[Task], processes: Sequence[AskedProcess]) -> RoundAnswer:
        """Plans a round. Raises GroupHalted as the machine does."""
        question = Question(round_id=f"{self.facts}", settings={}, tasks=tuple(map(_asked_task, tasks)), processes=tuple(processes))
        passed_ms = 0 if self._last_ms is None else now_ms - self._last_ms
        self._last_ms = now_ms
        *first, asked = facts_of(question, self._machine.state, passed_ms)
        for fact in (*first, *self._observed(question)):
            self._fold(now_ms, fact)
        (planned,) = [each for each in whole(self._fold(now_ms, asked)) if isinstance(each, RoundPlanned)]
        process_of = names_of(question)
        return RoundAnswer(
            active={process_of[each.member_id]: each.active for each in planned.members},
            copies={process_of[each.member_id]: (*each.standby, *each.warmup) for each in planned.members},
            follow_up_ms=planned.follow_up_ms,
        )

    def _observed(self, question: Question) -> list[PartitionsObserved]:
        """Returns what a worker sees by itself. The records of a task count for its first
        changelog.
        """
        ends: dict[str, dict[int, int]] = {}
        for task in question.tasks:
            if task.changelog:
                first = task.changelog[0]
                ends.setdefault(first.topic, {})[first.partition] = task.records
        if (seen := (ends, racks_of(question))) == self._seen:
            return []
        self._seen = seen
        return list(observed_in_parts(PartitionsObserved(end_offsets=ends, racks=seen[1])))

    def _fold(self, now_ms: int, fact: Fact, group: str | None = None) -> list[Decision]:
        record = make_record(self._group if group is None else group, self.facts, now_ms, fact)
        self.facts += 1
        decisions = [each.decision for each in self._machine.step(record)]
        self.decisions += len(decisions)
        return decisions


def asked_process(client: ClientState, runs: Iterable[TaskId], lags: Mapping[TaskId, int]) -> AskedProcess:
    """Returns what the application says of a process. `lags`: of what it runs (LATEST) and of the
    copies that it has.
    """
    active = frozenset(runs)
    said: dict[TaskId, Lag] = {task: LagSentinel.ACTIVE if lag == LATEST else lag for task, lag in lags.items()}
    return AskedProcess(
        id=client.id,
        consumers=(),
        threads=client.capacity,
        rack=client.rack,
        tags=client.tags,
        active=tuple(sorted(active)),
        standby=tuple(sorted(said.keys() - active)),
        lags=said,
    )


def _asked_task(task: Task) -> AskedTask:
    return AskedTask(
        id=task.id,
        stateful=task.stateful,
        source=tuple(map(_asked_partition, task.source)),
        changelog=tuple(map(_asked_partition, task.changelog)),
        records=task.end_offset,
    )


def _asked_partition(partition: Partition) -> AskedPartition:
    return AskedPartition(topic=partition.topic, partition=partition.partition, racks=tuple(sorted(partition.racks)))
