"""The table: a row for each system and action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLUMNS = (
    "system",
    "action",
    "task-s",
    "unavailable tasks",
    "longest, s",
    "owners changed",
    "longest wait, moved, ms",
    "not moved, ms",
    "at rest after, s",
    "repeated",
    "unanswered",
)
NAMES = {"restart": "rolling restart", "join": "one joins", "leave": "one leaves", "kill": "kill -9"}

Cell = str | int | float | None


def rows_of(runs: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Columns, and rows by action, then by system in the order of `runs` (documents of
    `actions.Run`). The bounces of a rolling restart are one row: sums and maxima over them."""
    rows: list[list[Cell]] = []
    for action, name in NAMES.items():
        for system, costs in _costs(runs, action).items():
            if costs:
                rows.append(_row(system, name + (f" of {len(costs)}" if action == "restart" else ""), costs))
    return COLUMNS, rows


def summary_of(runs: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Columns, and a row for each action: unavailability in task-seconds of each system; for
    a rolling restart, the mean over its bounces.
    """
    rows: list[list[Cell]] = []
    for action, name in NAMES.items():
        cells: list[Cell] = []
        for costs in _costs(runs, action).values():
            cut = "" if all(cost["settled"] for cost in costs) else "over "
            cells.append(f"{cut}{sum(cost['unavailable_ms'] for cost in costs) / len(costs) / 1_000:.1f}" if costs else None)
        if cells != [None] * len(cells):
            rows.append([name + (", each" if action == "restart" else ""), *cells])
    return ("task-seconds without an answer", *dict.fromkeys(run["system"] for run in runs)), rows


def _costs(runs: Sequence[dict[str, Any]], action: str) -> dict[str, list[dict[str, Any]]]:
    """System -> costs of `action` in all `runs`."""
    found: dict[str, list[dict[str, Any]]] = {run["system"]: [] for run in runs}
    for run in runs:
        found[run["system"]] += [step["cost"] for step in run["steps"] if step["action"] == action]
    return found


def _row(system: str, action: str, costs: list[dict[str, Any]]) -> list[Cell]:
    settled = all(cost["settled"] for cost in costs)
    lasts = f"{sum(cost['lasts_ms'] for cost in costs) / 1_000:.0f}"
    return [
        system,
        action,
        round(sum(cost["unavailable_ms"] for cost in costs) / 1_000, 1),
        sum(cost["tasks_still"] for cost in costs),
        round(max(cost["longest_still_ms"] for cost in costs) / 1_000, 1),
        sum(cost["moves"] for cost in costs),
        _largest(costs, "moved_wait_ms"),
        _largest(costs, "untouched_wait_ms"),
        lasts if settled else f"over {lasts}",
        sum(cost["repeated"] for cost in costs),
        sum(cost["unanswered"] for cost in costs),
    ]


def _largest(costs: list[dict[str, Any]], name: str) -> int | None:
    return max((cost[name] for cost in costs if cost[name] is not None), default=None)
