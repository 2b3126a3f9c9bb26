"""A worker that leads the group: it folds the facts with the real GroupMachine, publishes what that decides, and sends the ticks.

Two may do so at once (a zombie and its successor). Neither trusts what is published, nor repeats it blindly: on taking over, a worker folds from
the last checkpoint and compares (PROTOCOL L5).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from events import fields
from events.decisions import Checkpointed
from events.errors import GroupHalted
from events.facts import Fact, PartitionsObserved, ProbingTick
from events.records import DecisionRecord, Record
from replay.cluster.broker import Broker, StoredCheckpoint
from replay.cluster.engine import Engine
from replay.cluster.network import Endpoint, Network, Producer
from replay.cluster.reader import Reader
from replay.cluster.world import World
from statemachine.machine import GroupMachine


@attrs.frozen(kw_only=True)
class WorkerSettings:
    """Times in milliseconds."""

    takeover_ms: int = attrs.field(default=500, validator=fields.integer())
    """From its start to having read the checkpoint and the logs."""
    observe_ms: int = attrs.field(default=10_000, validator=fields.integer(1))
    """Between two PartitionsObserved."""
    fetch_wait_ms: int = attrs.field(default=1_000, validator=fields.integer(1))


MachineFactory = Callable[[bytes | None], GroupMachine]
"""From checkpoint bytes, or None for the log's start, to a machine."""


Folded = Callable[[Record, list[DecisionRecord], GroupMachine], None]
"""Called after each fact that was folded, while taking over too."""


def real_machine(checkpoint: bytes | None) -> GroupMachine:
    """The machine that every path steps."""
    return GroupMachine() if checkpoint is None else GroupMachine.restore(checkpoint)


class Worker(Endpoint):
    """One process of the leader."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        network: Network,
        broker: Broker,
        world: World,
        settings: WorkerSettings,
        *,
        machine_factory: MachineFactory = real_machine,
        folded: Folded = lambda record, decisions, machine: None,
    ) -> None:
        super().__init__(name, engine, network)
        self.settings = settings
        self.machine: GroupMachine | None = None
        self.taken_over = 0
        """Decisions recomputed on taking over and found to be those published."""
        self._broker = broker
        self._world = world
        self._machine_factory = machine_factory
        self._folded = folded
        self._decisions = Producer(self, broker, broker.decisions, self._published)
        self._facts = Producer(self, broker, broker.facts, self._told)
        self._reader = Reader(self, broker, broker.facts, wait_ms=settings.fetch_wait_ms, arrived=self._facts_arrived)
        self._checkpoints: list[StoredCheckpoint] = []
        """Taken, but what was decided up to them is not all acknowledged (PROTOCOL L7)."""
        self._tick_at_ms: int | None = None
        self._tick_armed = False
        self._ticks_under_way = 0
        self._observing = False
        self._observed: dict[str, dict[int, int]] = {}

    # Taking over

    def start(self) -> None:
        self.after(self.settings.takeover_ms, self._take_over)

    def kill(self) -> None:
        self._reader.end()
        super().kill()

    def skip_records(self, records: int) -> None:
        """A fault: its consumer loses some facts of the next answer."""
        self._reader.skip_next = records

    def _take_over(self) -> None:
        if not self._broker.up:
            self.after(self.network.settings.resend_after_ms, self._take_over)
            return
        broker = self._broker
        stored = broker.checkpoints[-1] if broker.checkpoints else None
        machine = self._machine_factory(None if stored is None else stored.state)
        missing: list[DecisionRecord] = []
        for record in broker.facts.records[machine.state.last_offset + 1 :]:
            decisions = self._step(machine, record)
            for decision in decisions:
                if decision.number > len(broker.published):
                    missing.append(decision)
                elif broker.published[decision.number - 1] != decision:
                    raise GroupHalted(
                        broker.group, record.offset, "published_differs", f"decision {decision.number} is published and differs from the one computed"
                    )
                else:
                    self.taken_over += 1
        self.machine = machine
        self._store_checkpoints(len(broker.published))
        for decision in missing:
            self._decisions.send(decision)
        self._reader.begin(machine.state.last_offset + 1)
        self._observe(first=True)
        self._plan_tick()

    # Folding

    def _step(self, machine: GroupMachine, record: Record) -> list[DecisionRecord]:
        decisions = machine.step(record)
        self._folded(record, decisions, machine)
        if decisions and any(isinstance(decision.decision, Checkpointed) for decision in decisions):
            self._checkpoints.append(StoredCheckpoint(offset=record.offset, number=machine.state.number, state=machine.snapshot()))
        return decisions

    def _facts_arrived(self, records: list[Record], first: int, reached_end: bool, sent_ms: int) -> None:
        machine = self.machine
        assert machine is not None, "facts are read once the group was taken over"
        for record in records:
            if record.offset <= machine.state.last_offset:
                continue
            if record.offset > machine.state.last_offset + 1:
                self._reader.seek(machine.state.last_offset + 1)  # the stream skipped some: they are read first
                break
            for decision in self._step(machine, record):
                self._decisions.send(decision)
            if self._ticks_under_way and isinstance(record.event, ProbingTick):
                self._ticks_under_way = 0
        if records:
            self._plan_tick()
            self._observe()

    def _published(self, decision: DecisionRecord, sent_ms: int) -> None:
        self._store_checkpoints(decision.number)

    def _store_checkpoints(self, number: int) -> None:
        """Every decision up to `number` is acknowledged."""
        while self._checkpoints and self._checkpoints[0].number <= number:
            self._broker.store_checkpoint(self._checkpoints.pop(0))

    # Ticks and end offsets

    def _plan_tick(self) -> None:
        """A tick is due when a deadline is, or when a group with members had no record for max_step_ms (PROTOCOL L3)."""
        machine = self.machine
        if machine is None or not machine.state.members:
            self._tick_at_ms = None
            return
        wait_ms = machine.state.knobs.max_step_ms
        deadline_ms = machine.next_deadline_ms
        if deadline_ms is not None:
            wait_ms = min(wait_ms, deadline_ms - machine.state.now_ms)
        self._tick_at_ms = self.engine.now_ms + max(1, wait_ms)
        if not self._tick_armed:
            self._tick_armed = True
            self.after(self._tick_at_ms - self.engine.now_ms, self._tick)

    def _tick(self) -> None:
        self._tick_armed = False
        if self._tick_at_ms is None:
            return
        if self.engine.now_ms < self._tick_at_ms:
            self._tick_armed = True
            self.after(self._tick_at_ms - self.engine.now_ms, self._tick)
        elif not self._ticks_under_way:
            self._ticks_under_way = 1
            self._facts.send(ProbingTick())

    def _told(self, fact: Fact, sent_ms: int) -> None:
        """A tick or an observation was appended; it is read like any other fact."""

    def _observe(self, *, first: bool = False) -> None:
        """End offsets that have changed, at most every `observe_ms`, while the group has members (PROTOCOL D6)."""
        machine = self.machine
        assert machine is not None, "end offsets are observed once the group was taken over"
        if self._observing or not (machine.state.members or first):
            return
        self._observing = True
        self.after(self.settings.observe_ms, self._observed_long_ago)
        changed: dict[str, dict[int, int]] = {}
        for (topic, partition), growth in self._world.growth.items():
            records = growth.at(self.engine.now_ms)
            if self._observed.setdefault(topic, {}).get(partition) != records:
                self._observed[topic][partition] = records
                changed.setdefault(topic, {})[partition] = records
        if changed:
            self._facts.send(PartitionsObserved(end_offsets=changed))

    def _observed_long_ago(self) -> None:
        self._observing = False
        self._observe()
