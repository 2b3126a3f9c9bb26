"""The harness for a whole cluster: the simulated one, with real workers that publish and take over,
and processes that host real members.

Every record that a worker folds is folded once more by the scenario's GroupHarness, with its shadow
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.codec import make_record
from equipoise.events.errors import GroupHalted, InvariantBroken
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.simulation import ClusterConfig, SimulatedCluster
from equipoise.statemachine.machine import GroupMachine
from tests.support.scenarios.transcript import Transcript


class _Checksums:
    """A sink that stores nothing. The cluster's records have checksums only when there is a sink."""

    def __init__(self) -> None:
        self.facts = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        self.facts += 1
        return make_record(group, self.facts - 1, append_ms, event)

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        pass


class ClusterHarness:
    """The simulated cluster of one scenario."""

    def __init__(self, transcript: Transcript, config: ClusterConfig, seed: int) -> None:
        self._transcript = transcript
        self.halted: GroupHalted | None = None
        """Why the group is halted."""
        self._quiet = 0
        self._seen = 0
        self.cluster = SimulatedCluster(config, seed=seed, sink=_Checksums(), watcher=self._folded, machine_factory=self._machine)

    def _machine(self, checkpoint: bytes | None) -> GroupMachine:
        load = self._transcript.group_harness.build.load
        return GroupMachine(load=load) if checkpoint is None else GroupMachine.restore(checkpoint, load=load)

    def _folded(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        if isinstance(record.event, LogOpened):
            return
        transcript = self._transcript
        shown = len(transcript.group_harness.disagreements)
        before = len(transcript.out)
        transcript.group_harness.follow(record, decisions)
        transcript.show_step(record.event, decisions, shown, quiet=True)
        self._seen += 1
        self._quiet += len(transcript.out) == before

    def run(self, for_ms: int, until: int | None) -> None:
        """Runs the cluster for `for_ms` of simulated time, or until fact number `until` is folded,
        whichever comes first.
        """
        self._seen = self._quiet = 0
        exits = len(self.cluster.exits)
        try:
            end_ms = self.cluster.now_ms + for_ms
            if until is None:
                self.cluster.run_until(end_ms)
            group = self._transcript.group_harness
            while until is not None and group.machine.state.seq < until and self.cluster.now_ms < end_ms and self.cluster.step():
                pass
        except GroupHalted as error:
            self.halted = error
            self._transcript.say(f"!! halted {error.code}: {error.problem}")
        except InvariantBroken as broken:
            self._transcript.say(f"!! {broken}")
            self._transcript.group_harness.disagreements.append(str(broken))
        for at_ms, process, how in self.cluster.exits[exits:]:
            self._transcript.say(f"{process} ended at {at_ms} ms: {how.value}")
        self._transcript.say(f"({self._seen} facts until {self.cluster.now_ms} ms, {self._quiet} decided nothing)")
