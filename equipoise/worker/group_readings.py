"""Reads the values of one group off its machine, for `equipoise.worker.group_metrics`.

With thousands of groups this runs thousands of times for each scrape, so it counts where
`equipoise.replay.group_view` builds rows.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from equipoise.assignors import MovementState
from equipoise.events.facts import TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.replay.trouble import parked_tasks, unread_partitions
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupState, MemberPhase, Parked

LAGGING_RECORDS = 10_000
"""Source lag from which a group does not count as at rest: the threshold of the alert
EquipoiseSourceLagGrows.
"""


class GroupCondition(enum.StrEnum):
    """The condition of a group, the most urgent first. An alert may fire for all but the last."""

    HALTED = "halted"
    UNKNOWN = "unknown"
    """This worker does not lead it now, or the brokers do not answer: what follows is of before."""
    TROUBLE = "trouble"
    """Tasks have no owner or have failed, partitions are unread, members are refused or held up, it
    has no configuration, or its state cannot be read.
    """
    BUSY = "busy"
    """Tasks move or wait, load is uneven, sources lag, or a round or a standstill came lately."""
    EMPTY = "empty"
    """Its tasks have no owner because it has no member."""
    AT_REST = "at_rest"


@attrs.define(kw_only=True)
class Reading:
    """The values of one group. None: there is none, or its state cannot be read. Lags in records."""

    halted: int
    is_known: bool = True
    """It is led here, and the brokers answer."""
    is_read: bool = True
    is_configured: bool = True
    stable: int | None = None
    unrevoked: int | None = None
    """Members of that phase; None: 0. So for `unreleased`."""
    unreleased: int | None = None
    owned: int | None = None
    revoking: int | None = None
    nobody: int | None = None
    waiting_movements: int | None = None
    warming_movements: int | None = None
    revoking_movements: int | None = None
    imbalance: int | None = None
    warmup_lag: int | None = None
    unread: Mapping[str, int] | None = None
    """Topic -> partitions; topics without any are left out."""
    topology: TopologyDeclared | None = None
    refused: int | None = None
    held_up: int | None = None
    """Members that something outside holds up, or a handler that does not return."""
    parked: Mapping[TaskId, Parked] | None = None
    """Tasks that have failed; None: none."""
    generation: int | None = None
    planned_moves: int | None = None
    fewest_moves: int | None = None
    cross_rack: int | None = None
    spread_now: float | None = None
    spread_target: float | None = None
    spread_bound: float | None = None
    source_lag: int | None = None
    lost_waiting: int | None = None
    lost_free: int | None = None
    lost_wait_s: float | None = None

    @property
    def source_topics(self) -> list[str]:
        """Source topics of the newest topology, by name."""
        parts = () if self.topology is None else self.topology.subtopologies
        return sorted({topic for part in parts for topic in part.source_topics})

    @property
    def condition(self) -> GroupCondition:
        """By these values alone: what came lately is not known here."""
        if self.halted:
            return GroupCondition.HALTED
        if not self.is_known:
            return GroupCondition.UNKNOWN
        if not (self.is_read and self.is_configured):
            return GroupCondition.TROUBLE
        if not (self.stable or self.unrevoked or self.unreleased):
            return GroupCondition.EMPTY if self.nobody else GroupCondition.AT_REST
        if self.nobody or self.unread or self.refused or self.lost_free or self.parked or self.held_up:
            return GroupCondition.TROUBLE
        moves = self.waiting_movements or self.warming_movements or self.revoking_movements or self.revoking or self.warmup_lag
        if moves or self.imbalance or self.lost_waiting or (self.source_lag or 0) > LAGGING_RECORDS:
            return GroupCondition.BUSY
        return GroupCondition.AT_REST


def read(lead: GroupLead, *, is_known: bool = True) -> Reading:
    """Returns the values of a group now. `is_known`: it is led here, and the brokers answer. Raises
    any exception where a defect has left its state half-way through a step.
    """
    state = lead.machine.state
    is_configured, halted = state.config is not None, int(lead.halted is not None)
    found = Reading(halted=halted, is_known=is_known, is_configured=is_configured, generation=state.generation)
    _read_members(state, found)
    found.waiting_movements, found.warming_movements, found.revoking_movements = state.waiting, 0, 0
    if state.in_flight:
        states = [movement.state for movement in state.in_flight.values()]
        found.waiting_movements += states.count(MovementState.WAITING)
        found.warming_movements = states.count(MovementState.WARMING)
        found.revoking_movements = states.count(MovementState.REVOKING)
    found.imbalance = 0 if state.verdict is None else state.verdict[3]
    found.lost_waiting, found.lost_free, found.lost_wait_s = 0, 0, 0.0
    if state.lost:
        waits_ms = [lost.until_ms - state.now_ms for lost in state.lost.values() if lost.until_ms is not None]
        found.lost_waiting, found.lost_free = len(waits_ms), len(state.lost) - len(waits_ms)
        found.lost_wait_s = max(0, *waits_ms, 0) / 1_000
    found.source_lag = sum(state.behind.values()) if state.behind else 0
    found.refused = len(state.recently_refused()) if state.refused else 0
    found.held_up = sum(bool(member.troubles) for member in state.members.values())
    found.parked = {task: state.parked[task] for task in parked_tasks(state)} if state.parked else None
    found.topology = topology = state.topology
    if topology is not None and _has_more_partitions(state, topology):
        found.unread = unread_partitions(state, state.end_offsets)
    _read_promises(lead, found)
    return found


def _read_members(state: GroupState, found: Reading) -> None:
    """Members by phase, and tasks by state."""
    tasks, members = state.tasks(), state.members.values()
    owner = state.owner
    owned = len(owner) if owner.keys() <= tasks.keys() else len(tasks.keys() & owner.keys())
    found.nobody = len(tasks) - owned
    found.revoking = behind = 0
    is_revoking = False
    for member in members:
        if member.revoking:
            is_revoking = True
            found.revoking += sum(task in tasks for task in member.revoking)
        if member.warmup:
            lags = (member.lags.get(task) for task in member.warmup if task in tasks)
            behind += sum(lag for lag in lags if isinstance(lag, int))
    found.owned = owned - found.revoking
    found.warmup_lag = behind
    found.stable = len(members)
    if state.in_flight or is_revoking:
        phases = [state.member_phase(member) for member in members]
        found.stable = phases.count(MemberPhase.STABLE)
        found.unrevoked = phases.count(MemberPhase.UNREVOKED) or None
        found.unreleased = phases.count(MemberPhase.UNRELEASED) or None


def _has_more_partitions(state: GroupState, topology: TopologyDeclared) -> bool:
    """Returns whether a source topic has a partition that one of its sub-topologies has no task
    for: false for almost all groups, in a fraction of the time that `unread_partitions` takes.
    """
    for part in topology.subtopologies:
        for topic in part.source_topics:
            ends = state.end_offsets.get(topic)
            if ends and max(ends) >= part.partitions:
                return True
    return False


def _read_promises(lead: GroupLead, found: Reading) -> None:
    """Values of the last evaluation: absent from a takeover to the next round."""
    evaluation = lead.machine.last_evaluation
    if evaluation is None:
        return
    cost, load = evaluation.cost, evaluation.load
    found.planned_moves, found.fewest_moves, found.cross_rack = cost.moves, cost.moves_lower_bound, cost.cross_rack
    if load is not None:
        found.spread_now = (load.highest_now - load.lowest_now) / 1_000_000
        found.spread_target = (load.highest - load.lowest) / 1_000_000
        found.spread_bound = load.bound / 1_000_000
