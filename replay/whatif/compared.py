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
AS_IT_WAS, LED = "as it was", "equipoise"
"""Who led a run: as recorded, or equipoise."""


@attrs.frozen(kw_only=True)
class ComparedCost:
    """The cost of one action, or of all together. Of several seeds the mean, and the longest gap of
    all. `measured`, `as_it_was` None: not known.
    """

    action: str
    measured: Totals | None
    as_it_was: Totals | None
    led: Totals


def cost_rows(windows: Sequence[Window], was: Sequence[SimulationResult], led: Sequence[SimulationResult]) -> list[dict[str, Any]]:
    """Returns a row for each action and run, JSON-ready. `windows`: the actions, as they were
    recorded. `was`, `led`: one simulation for each seed.
    """
    runs: list[tuple[str, str, int | None, list[tuple[str, Totals]]]] = [
        (AS_IT_WAS, MEASURED, None, [(each.label, each.measured["totals"]) for each in windows if each.measured is not None])
    ]
    for leader, results in ((AS_IT_WAS, was), (LED, led)):
        runs += [(leader, SIMULATED, result.seed, [(each.label, each.totals) for each in result.windows]) for result in results]
    return [
        {"action": action, "led_by": leader, "source": source, "seed": seed, "totals": {name: totals[name] for name in SHOWN}}
        for leader, source, seed, costs in runs
        for action, totals in costs
    ]


def compared(rows: Sequence[Mapping[str, Any]]) -> list[ComparedCost]:
    """Returns the costs of each action side by side, and of several together as ``in all``."""
    runs: dict[tuple[str, str], dict[int | None, dict[str, Totals]]] = {}
    for row in rows:
        runs.setdefault((row["led_by"], row["source"]), {}).setdefault(row["seed"], {})[row["action"]] = row["totals"]
    actions = list(dict.fromkeys(row["action"] for row in rows))
    if len(actions) > 1:
        for of_action in (each for of_seed in runs.values() for each in of_seed.values()):
            of_action["in all"] = sum_windows(list(of_action.values()))
        actions.append("in all")

    def mean(leader: str, source: str, action: str) -> Totals | None:
        every = [of_action[action] for of_action in runs.get((leader, source), {}).values() if action in of_action]
        return {name: _of_seeds(name, [totals[name] for totals in every]) for name in SHOWN} if every else None

    found = [(action, mean(AS_IT_WAS, MEASURED, action), mean(AS_IT_WAS, SIMULATED, action), mean(LED, SIMULATED, action)) for action in actions]
    return [ComparedCost(action=each.replace("_", " "), measured=measured, as_it_was=was, led=led or {}) for each, measured, was, led in found]


def simulated_unavailable(totals: Totals, seeds: int) -> Unavailable:
    """Returns how long tasks were unavailable, as pages tell it."""
    source = f"{SIMULATED}, mean of {seeds} seeds"
    return Unavailable(task_s=totals["unavailable_task_seconds"], longest_ms=round(totals["longest_silence_ms"]), source=source)


def _of_seeds(name: str, values: Sequence[float]) -> float:
    return max(values) if name.startswith("longest_") else round(sum(values) / len(values), 3)
