"""Shadow replicas: further machines that fold the same log and must always agree with the first.

- decoded: encodes and decodes each fact before it folds it;
- restored: is restored from its snapshot after each fact, so every split of the log into checkpoint
  and tail is tried;
- shuffled: reorders mappings in facts and state, and the tasks and members of each problem.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import attrs

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, Plan
from equipoise.events import codec
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.machine import AssignorLoader, GroupMachine


class ShadowReplica:
    """A replica of the machine. `name` is the prefix of its findings."""

    name = "decoded"

    def __init__(self, load: AssignorLoader) -> None:
        self._load = load
        self.machine = GroupMachine(load=load)

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        """Encodes and decodes its decisions too."""
        fact = codec.decode(*codec.encode(record.event))
        decisions = self.machine.step(attrs.evolve(record, event=fact))  # type: ignore[arg-type]
        return [attrs.evolve(decision, decision=codec.decode(*codec.encode(decision.decision))) for decision in decisions]  # type: ignore[arg-type]

    def forget_halt(self, checkpoint: bytes) -> None:
        """Continues from the last good state after a halt, as the machine itself does."""
        self.machine = GroupMachine.restore(checkpoint, load=self._load)


class RestoredReplica(ShadowReplica):
    name = "restored"

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        decisions = self.machine.step(record)
        self.machine = GroupMachine.restore(self.machine.snapshot(), load=self._load)
        return decisions


class ShuffledReplica(ShadowReplica):
    name = "shuffled"

    def __init__(self, load: AssignorLoader) -> None:
        super().__init__(lambda name, version: ShuffledAssignor(load(name, version)))

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        rng = random.Random(record.offset)
        _shuffle_state(self.machine.state, rng)
        return self.machine.step(attrs.evolve(record, event=_shuffled_fact(record.event, rng)))


def _shuffled_mapping(mapping: dict[Any, Any], rng: random.Random) -> dict[Any, Any]:
    """Shuffles nested mappings too."""
    items = [(key, _shuffled_mapping(value, rng) if isinstance(value, dict) else value) for key, value in mapping.items()]
    rng.shuffle(items)
    return dict(items)


def _shuffled_fact(fact: Fact, rng: random.Random) -> Fact:
    """An equal fact whose mappings are in another order. Built past the constructor, which would
    sort them again.
    """
    shuffled = copy.copy(fact)
    for field in attrs.fields(type(fact)):
        value = getattr(fact, field.name)
        if isinstance(value, dict):
            object.__setattr__(shuffled, field.name, _shuffled_mapping(value, rng))
    return shuffled


def _shuffle_state(state: Any, rng: random.Random) -> None:
    """Reorders every mapping of the state in place, those of its members too."""
    for field in attrs.fields(type(state)):
        value = getattr(state, field.name)
        if not isinstance(value, dict):
            continue
        shuffled = _shuffled_mapping(value, rng)
        value.clear()
        value.update(shuffled)
        if field.name == "members":
            for member in value.values():
                _shuffle_state(member, rng)


class ShuffledAssignor(DelegatingAssignor):
    """Gives the assignor each problem in another order."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        return self.wrapped.assign(shuffled_problem(problem, random.Random(len(problem.tasks) * 31 + len(problem.members))))


def shuffled_problem(problem: AssignmentProblem, rng: random.Random) -> AssignmentProblem:
    """The same problem: tasks, members, movements and every list and mapping in them in another
    order.
    """

    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rng.sample(items, len(items)))

    members = tuple(
        attrs.evolve(
            member,
            active=shuffled(member.active),
            standby=shuffled(member.standby),
            warmup=shuffled(member.warmup),
            lags=_shuffled_mapping(dict(member.lags), rng),
            tags=_shuffled_mapping(dict(member.tags), rng),
        )
        for member in shuffled(problem.members)
    )
    return attrs.evolve(problem, tasks=shuffled(problem.tasks), members=members, in_flight=shuffled(problem.in_flight))


def shadow_replicas(load: AssignorLoader) -> list[ShadowReplica]:
    """One of each."""
    return [ShadowReplica(load), RestoredReplica(load), ShuffledReplica(load)]


def disagreement(
    machine: GroupMachine, decisions: list[DecisionRecord], halted: GroupHalted | None, replica: ShadowReplica, record: FactRecord
) -> str | None:
    """Steps the replica through `record`, which `machine` has folded already. Returns the first
    difference, or None.
    """
    try:
        theirs = replica.step(record)
        their_halt = None
    except GroupHalted as error:
        theirs, their_halt = [], error
    if (halted and halted.code) != (their_halt and their_halt.code):
        return f"{replica.name}: halted {halted and halted.code} here, {their_halt and their_halt.code} there"
    if theirs != decisions:
        return f"{replica.name}: other decisions: {[d.decision for d in decisions]} here, {[d.decision for d in theirs]} there"
    if halted is None and machine.snapshot() != replica.machine.snapshot():
        return f"{replica.name}: the same decisions, another state"
    return None
