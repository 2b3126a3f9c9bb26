"""The decisions that equipoise would have made at each generation of a group led by other software,
beside the leader's own. See docs/protocol.md#d7.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.events.decisions import AssignmentProposed
from equipoise.events.facts import AssignmentObserved, Fact
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.importers.kafka_streams.import_options import ImportOptions
from equipoise.replay.importers.kafka_streams.importer import import_history
from equipoise.replay.importers.kafka_streams.source import StreamsSource
from equipoise.statemachine.machine import GroupMachine


@attrs.frozen(kw_only=True)
class ShadowMove:
    """One task that changes its owner. None: no member."""

    task: TaskId
    source: str | None
    destination: str | None

    def text(self) -> str:
        return f"{self.task} {self.source or 'nobody'} -> {self.destination or 'nobody'}"


@attrs.frozen(kw_only=True)
class ShadowRound:
    """One generation. `moved`: tasks whose owner the leader changed, including those given to no
    member; a first owner is no move.

    `target`: moves of equipoise in its place, up to the final target; `warming`: those of them that
    would be copied first while they run on.
    """

    generation: int
    at_ms: int
    cause: str
    members: tuple[str, ...]
    moved: tuple[ShadowMove, ...]
    unassigned: tuple[TaskId, ...]
    target: tuple[ShadowMove, ...]
    warming: tuple[TaskId, ...]

    def document(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "at_ms": self.at_ms,
            "cause": self.cause,
            "members": list(self.members),
            "leader": {"moved": [_step(each) for each in self.moved], "unassigned": [str(task) for task in self.unassigned]},
            "equipoise": {"moves": [_step(each) for each in self.target], "warming": [str(task) for task in self.warming]},
        }


def _step(step: ShadowMove) -> dict[str, str | None]:
    return {"task": str(step.task), "from": step.source, "to": step.destination}


class _Shadow:
    """A log that folds what is imported into it and keeps the results."""

    def __init__(self) -> None:
        self.rounds: list[ShadowRound] = []
        self._machine = GroupMachine()
        self._offset = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """See `importer.FactSink`."""
        record = FactRecord(group, self._offset, append_ms, event)
        self._offset += 1
        before = dict(self._machine.state.owner)
        decided = self._machine.step(record)
        if isinstance(event, AssignmentObserved):
            self._observed(record, event, before, decided)
        return record

    def _observed(self, record: FactRecord, event: AssignmentObserved, before: dict[TaskId, str], decided: list[DecisionRecord]) -> None:
        after = {task: each.member_id for each in event.members for task in each.active}
        present = {each.member_id for each in event.members}
        proposal = next((each for each in whole(each.decision for each in decided) if isinstance(each, AssignmentProposed)), None)
        ours = {} if proposal is None else {task: each.member_id for each in proposal.members for task in each.active}
        copied = [] if proposal is None else [move.task for move in proposal.moves if move.state == "warming"]
        self.rounds.append(
            ShadowRound(
                generation=event.generation,
                at_ms=record.append_ms,
                cause=event.cause,
                members=tuple(sorted(present)),
                moved=_steps(before, after),
                unassigned=tuple(task for task in sorted(self._machine.state.tasks()) if task not in after),
                target=_steps(before, ours),
                warming=tuple(sorted(copied)),
            )
        )


def _steps(before: dict[TaskId, str], after: dict[TaskId, str]) -> tuple[ShadowMove, ...]:
    """Returns the tasks that had an owner and have another, or none, after."""
    changed = (ShadowMove(task=task, source=owner, destination=after.get(task)) for task, owner in sorted(before.items()))
    return tuple(step for step in changed if step.destination != step.source)


def shadow(source: StreamsSource, options: ImportOptions) -> list[ShadowRound]:
    """Returns every generation that `source` holds, in order. The source is imported again at each
    call, because later records may say more about earlier rounds (the topology, the identity of a
    member). Raises as `import_history` does.
    """
    log = _Shadow()
    import_history(source, log, options=options)
    return log.rounds
