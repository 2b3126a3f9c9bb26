"""A worker that leads the group: it folds the facts with the real GroupMachine, publishes the
decisions, and appends ticks.

Two workers may lead at once (a zombie and its successor). On taking over, a worker folds from the
last checkpoint and compares its decisions with those published. See docs/protocol.md#l5.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.partition_reader import PartitionReader
from equipoise.replay.simulation.process_network import NetworkEnd, SimulatedNetwork
from equipoise.replay.simulation.simulated_broker import Broker, ReplayedProducer
from equipoise.replay.simulation.world import SimulatedWorld
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import Folded, MachineFactory, PartitionLead, real_machine
from equipoise.statemachine.rejections import refused_fact
from equipoise.statemachine.watched_change import ChangeObserver


@attrs.frozen(kw_only=True)
class SimulatedWorkerSettings:
    """Times in milliseconds."""

    takeover_ms: int = attrs.field(default=500, validator=fields.integer())
    """From the start to having read the checkpoint and the logs."""
    observe_ms: int = attrs.field(default=10_000, validator=fields.integer(1))
    """Between two PartitionsObserved."""
    fetch_wait_ms: int = attrs.field(default=1_000, validator=fields.integer(1))


class ReplayedWorker(NetworkEnd):
    """One process of the leader."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        network: SimulatedNetwork,
        broker: Broker,
        world: SimulatedWorld,
        settings: SimulatedWorkerSettings,
        *,
        machine_factory: MachineFactory = real_machine,
        folded: Folded = lambda record, decisions, machine: None,
    ) -> None:
        super().__init__(name, engine, network)
        self.settings = settings
        self._lead: PartitionLead | None = None
        self._broker = broker
        self._world = world
        self._machine_factory = machine_factory
        self._folded = folded
        self._decisions = ReplayedProducer(self, broker, broker.decisions, self._published)
        self._facts = ReplayedProducer(self, broker, broker.facts, self._appended)
        self._reader = PartitionReader(self, broker, broker.facts, wait_ms=settings.fetch_wait_ms, arrived=self._facts_arrived)
        self._tick_armed = False
        self._observing = False

    @property
    def machine(self) -> GroupMachine | None:
        """None until the worker has taken the group over."""
        return None if self._lead is None else self._group(self._lead).machine

    @property
    def observer(self) -> ChangeObserver | None:
        """None until the worker has taken the group over."""
        return None if self._lead is None else self._group(self._lead).observer

    @property
    def taken_over(self) -> int:
        """Number of published decisions that the takeover recomputed and found equal."""
        return 0 if self._lead is None else self._group(self._lead).confirmed

    def _group(self, lead: PartitionLead) -> GroupLead:
        return lead.group(self._broker.group)

    # Taking over

    def start(self) -> None:
        self.after(self.settings.takeover_ms, self._take_over)

    def kill(self) -> None:
        self._reader.end()
        super().kill()

    def skip_records(self, records: int) -> None:
        """Fault: its consumer loses some facts of the next answer."""
        self._reader.skip_next = records

    def _take_over(self) -> None:
        if not self._broker.up:
            self.after(self.network.settings.resend_after_ms, self._take_over)
            return
        broker = self._broker
        lead = PartitionLead(machine_factory=self._machine_factory, folded=self._folded)
        if broker.checkpoints:
            lead.restore(broker.checkpoints[-1])
            lead.position = broker.checkpoints[-1].offset + 1
        group = self._group(lead)
        self._read_published(lead)
        missing = [decision for record in broker.facts.records[lead.position :] for decision in self._fold(lead, record)]
        self._lead = lead
        self._store_checkpoints(group.last_published)
        for decision in missing:
            self._decisions.send(decision)
        self._reader.begin(lead.position)
        self._observe(first=True)
        lead.plan_ticks(self.engine.now_ms)
        self._arm_tick()

    def _read_published(self, lead: PartitionLead) -> None:
        """Reads the published decisions that the lead does not have."""
        for decision in self._broker.published[self._group(lead).machine.state.number :]:
            lead.take_published(self._broker.group, decision.number, decision, refused_fact(decision.decision, decision.caused_by))

    # Folding

    def _fold(self, lead: PartitionLead, record: FactRecord) -> list[DecisionRecord]:
        """Folds one fact and publishes its decisions. A halt of the only group ends the run."""
        group = self._group(lead)
        if lead.must_read_published(record):
            self._read_published(lead)
        missing = lead.fold(record, self.engine.now_ms)
        if group.halted is not None:
            raise group.halted
        return missing

    def _facts_arrived(self, records: list[FactRecord], first: int, reached_end: bool, sent_ms: int) -> None:
        lead = self._lead
        assert lead is not None, "facts are read once the group was taken over"
        for record in records:
            if record.offset < lead.position:
                continue
            if record.offset > lead.position:
                self._reader.seek(lead.position)  # the stream skipped facts: they are read first
                break
            for decision in self._fold(lead, record):
                self._decisions.send(decision)
        if records:
            lead.plan_ticks(self.engine.now_ms)
            self._arm_tick()
            self._observe()

    def _published(self, decision: DecisionRecord, sent_ms: int) -> None:
        self._store_checkpoints(decision.number)

    def _store_checkpoints(self, number: int) -> None:
        """Called when every decision up to `number` is acknowledged."""
        if self._lead is not None:
            for checkpoint in self._lead.acknowledged(self._broker.group, number):
                self._broker.store_checkpoint(checkpoint)
                self._lead.stored(checkpoint)

    # Ticks and end offsets

    def _arm_tick(self) -> None:
        """Schedules a look at the time a tick is due, unless one is scheduled."""
        if self._lead is None or self._tick_armed:
            return
        tick_at_ms = self._group(self._lead).tick_at_ms
        if tick_at_ms is not None:
            self._tick_armed = True
            self.after(tick_at_ms - self.engine.now_ms, self._tick)

    def _tick(self) -> None:
        self._tick_armed = False
        assert self._lead is not None, "ticks are for a group that was taken over"
        tick_at_ms = self._group(self._lead).tick_at_ms
        if tick_at_ms is not None and self.engine.now_ms < tick_at_ms:
            self._arm_tick()
        for name in self._lead.ticks_due(self.engine.now_ms):
            self._facts.send(self._lead.tick(name))

    def _appended(self, fact: Fact, sent_ms: int) -> None:
        """Called when a tick or an observation was appended; it is read like any other fact."""

    def _observe(self, *, first: bool = False) -> None:
        """Appends changed end offsets, at most every `observe_ms`, while the group has members. See
        docs/protocol.md#d6.
        """
        assert self._lead is not None, "end offsets are observed once the group was taken over"
        group = self._group(self._lead)
        if (self._observing and not group.machine.awaits_lags) or not (group.machine.state.members or first):
            return
        if not self._observing:
            self._observing = True
            self.after(self.settings.observe_ms, self._observed_long_ago)
        ends: dict[str, dict[int, int]] = {}
        for (topic, partition), growth in self._world.growth.items():
            ends.setdefault(topic, {})[partition] = growth.at(self.engine.now_ms)
        observed = self._lead.observe(group.name, ends, source_lags=_source_lags(group.machine) if group.machine.deals_by_lag else {})
        for part in observed_in_parts(observed) if observed is not None else ():
            self._facts.send(part)

    def _observed_long_ago(self) -> None:
        self._observing = False
        self._observe()


def _source_lags(machine: GroupMachine) -> dict[str, dict[int, int]]:
    """Sources are not simulated: unless stated otherwise they are read to their ends."""
    state = machine.state
    lags: dict[str, dict[int, int]] = {}
    for task, part in state.tasks().items():
        for topic in part.source_topics:
            if task.partition not in state.source_lags.get(topic, {}):
                lags.setdefault(topic, {})[task.partition] = 0
    return lags
