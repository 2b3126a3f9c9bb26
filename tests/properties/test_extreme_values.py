"""No valid fact halts a group, whatever its numbers: sums of large ones fit what decisions and
snapshots hold.
"""

from __future__ import annotations

import pytest

from equipoise.events import codec
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import LogOpened
from equipoise.statemachine.machine import GroupMachine
from tests.extremes import Extremes

OF_THE_BUILD = {"assignor_missing", "solver_missing"}
STEPS = 120
SEEDS = (6, 15, 42, 51, 76, 144, 174, 215)
"""Sums of records in a restart's plan and in a move, and deadlines, once went beyond their fields
here: 20 of the seeds 40 to 259 halted a group.
"""


def fold(seed: int, steps: int = STEPS) -> list[str]:
    """Folds so many facts, with a checkpoint at each. Returns the kinds of facts that were not
    rejected, in order.
    """
    machine, drawn = GroupMachine(), Extremes(seed, lambda: machine.state)
    append_ms, taken = 0, []
    for offset in range(steps):
        fact = LogOpened(log_id="l") if offset == 0 else drawn.configuration() if offset == 1 else drawn.fact()
        append_ms = max(-(2**62), min(2**63 - 1, append_ms + drawn.step_ms()))
        try:
            decided = machine.step(codec.make_record("g", offset, append_ms, fact))
        except GroupHalted as halted:
            assert halted.code in OF_THE_BUILD, f"seed {seed}, {fact}: {halted}"  # noqa: PT017  # only these may halt it
            break
        for each in decided:
            assert codec.decode(*codec.encode(each.decision)) == each.decision
        assert GroupMachine.restore(machine.snapshot()).snapshot() == machine.snapshot()
        if not any(each.decision.__class__.__name__ == "EventRejected" for each in decided):
            taken.append(fact.__class__.__name__)
    return taken


@pytest.mark.parametrize("seed", SEEDS)
def test_extreme_values_halt_no_group(seed: int) -> None:
    fold(seed)


def test_extreme_values_reach_the_state() -> None:
    taken = {kind for seed in SEEDS for kind in fold(seed)}
    most = {"LagReported", "LeaveIntended", "MemberJoined", "PartitionsObserved", "RestartIntended", "TaskReady", "TopologyDeclared"}
    assert most <= taken
