"""Compares what the actions of a run cost: simulated as it was led, and simulated with equipoise.
What was measured in the group itself stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.replay.inputs_reader import sum_windows
from equipoise.replay.numbers import MEASURED, SIMULATED, Unavailable
from equipoise.replay.recorded_inputs import Window
from equipoise.replay.simulation.run import SimulationResult

SHOWN = (
    "unavailable_task_seconds",
    "longest_silence_ms",
    "active_moves",
    "net_active_moves",
    "generations",
    "records_restored_before_running",
    "min_moves_for_balance",
)
"""Totals that are compared (`equipoise.replay.simulation.measures`)."""
Totals = Mapping[str, float]


@attrs.frozen(kw_only=True)
class MarkedCost:
    """The cost of one action in one run. `source`: MEASURED, or SIMULATED with `seed`. `totals`:
    those SHOWN.
    """

    action: str
    led_by: str
    source: str
    seed: int | None
    totals: Totals

    def as_json(self) -> dict[str, Any]:
        """Returns it JSON-ready."""
        return {**attrs.asdict(self, recurse=False), "totals": dict(self.totals)}


@attrs.frozen(kw_only=True)
class ComparedCost:
    """The cost of one action, or of all together. Of several seeds the mean, and the longest gap of
    all. `measured`, `as_it_was` None: not known.
    """

    action: str
    measured: Totals | None
    as_it_was: Totals | None
    led: Totals


AS_IT_WAS, LED = "as it was", "equipoise"
"""Who led a run: as recorded, or equipoise."""


def action_costs(windows: Sequence[Window], was: Sequence[SimulationResult], led: Sequence[SimulationResult]) -> tuple[MarkedCost, ...]:
    """Returns the cost of each action in each run. `windows`: the actions, as they were recorded.
    `was`, `led`: one simulation for each seed.
    """
    found = [
        MarkedCost(action=each.label, led_by=AS_IT_WAS, source=MEASURED, seed=None, totals=_shown(each.measured["totals"]))
        for each in windows
        if each.measured is not None
    ]
    for leader, results in ((AS_IT_WAS, was), (LED, led)):
        found += [
            MarkedCost(action=window.label, led_by=leader, source=SIMULATED, seed=result.seed, totals=_shown(window.totals))
            for result in results
            for window in result.windows
        ]
    return tuple(found)


def compared(costs: Sequence[MarkedCost]) -> list[ComparedCost]:
    """Returns the costs of each action side by side, and of several together as ``in all``."""
    runs: dict[tuple[str, str], dict[int | None, dict[str, Totals]]] = {}
    for each in costs:
        runs.setdefault((each.led_by, each.source), {}).setdefault(each.seed, {})[each.action] = each.totals
    actions = list(dict.fromkeys(each.action for each in costs))
    if len(actions) > 1:
        for of_seed in runs.values():
            for of_action in of_seed.values():
                of_action["in all"] = sum_windows([of_action[action] for action in actions if action in of_action])
        actions.append("in all")

    def mean(leader: str, source: str, action: str) -> Totals | None:
        every = [of_action[action] for of_action in runs.get((leader, source), {}).values() if action in of_action]
        return {name: _of_seeds(name, [totals[name] for totals in every]) for name in SHOWN} if every else None

    return [
        ComparedCost(
            action=action.replace("_", " "),
            measured=mean(AS_IT_WAS, MEASURED, action),
            as_it_was=mean(AS_IT_WAS, SIMULATED, action),
            led=mean(LED, SIMULATED, action) or {},
        )
        for action in actions
    ]


def simulated_unavailable(totals: Totals, seeds: int) -> Unavailable:
    """Returns how long tasks were unavailable, as pages tell it."""
    source = f"{SIMULATED}, mean of {seeds} seeds"
    return Unavailable(task_s=totals["unavailable_task_seconds"], longest_ms=round(totals["longest_silence_ms"]), source=source)


def _of_seeds(name: str, values: Sequence[float]) -> float:
    return max(values) if name.startswith("longest_") else round(sum(values) / len(values), 3)


def _shown(totals: Totals) -> Totals:
    return {name: totals[name] for name in SHOWN}
