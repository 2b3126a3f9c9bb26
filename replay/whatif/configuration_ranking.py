"""Ranks configurations over many groups, by the unavailability that each saves beside the groups as
they are.

A configuration is compared group by group, only in groups that both it and the group's own
configuration could lead, so that a group without an answer makes none look cheaper. Sums are of
whole thousandths, so that they are the same in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import attrs

from equipoise.replay.whatif.advice import better
from equipoise.replay.whatif.evaluate import Outcome
from equipoise.replay.whatif.recorded_costs import METRICS

LEADING = "unavailable_task_seconds"
"""The metric by which configurations are ranked."""
SAVED = (LEADING, "records_restored", "moves", "rebalances")
"""Metrics whose savings are summed."""
_PART = 1_000


def compared(one: Outcome, factual: Outcome) -> str | None:
    """Returns whether an outcome is ``better`` or ``worse`` in unavailability than the group as it
    is, by more than chance and by enough to matter, or the ``same``; None: one of them has no runs.
    """
    if not one.runs or not factual.runs:
        return None
    return "better" if better(one, factual, LEADING) else "worse" if better(factual, one, LEADING) else "same"


@attrs.define(kw_only=True)
class Ranked:
    """One configuration over all groups. `seq`: its place as given; 0: the groups as they are.

    `sums`: metric -> sum over the groups that it could lead, in thousandths; None: unknown in one
    of them. `saved`: the same for what it costs less than the groups as they are. `worst_group`:
    the group in which it costs most more; None: it costs more in none.
    """

    seq: int
    configuration: str
    groups: int = 0
    failed: int = 0
    """Groups that it could not lead."""
    best_in: int = 0
    better: int = 0
    worse: int = 0
    sums: dict[str, int | None] = attrs.field(factory=lambda: dict.fromkeys(METRICS, 0))
    saved: dict[str, int | None] = attrs.field(factory=lambda: dict.fromkeys(SAVED, 0))
    pairs: int = 0
    """Groups that both could lead; with 0 of them nothing is known to be saved."""
    worst_group: str | None = None
    worst: int = 0
    """Unavailability that `worst_group` has more, in thousandths of a task-second."""

    def as_json(self) -> dict[str, Any]:
        """Returns it as a flat dict, JSON-ready, in whole units."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        saved = {f"saved_{name}": _whole(value) if self.pairs else None for name, value in self.saved.items()}
        worst = {"worst_group": self.worst_group, "worst_task_seconds": None if self.worst_group is None else _whole(self.worst)}
        return {**counts, **saved, **worst, **{name: _whole(value) for name, value in self.sums.items()}}


_COUNTS = ("seq", "configuration", "groups", "failed", "best_in", "better", "worse")
RANKED = (
    *((name, "string" if name == "configuration" else "int64") for name in _COUNTS),
    *((f"saved_{name}", "double") for name in SAVED),
    ("worst_group", "string"),
    ("worst_task_seconds", "double"),
    *((name, "double") for name in METRICS),
)
"""Columns of `Ranked.as_json`."""


class Ranking:
    """Sums rows of groups and configurations (`equipoise.replay.spark.what_if.COLUMNS`), handed in
    group by group.
    """

    def __init__(self) -> None:
        self._found: dict[int, Ranked] = {}

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes rows in the order of group and location. Rows without an answer do not count."""
        for _, of_group in groupby(rows, key=lambda row: (row["group"], row["location"])):
            self._take_group([row for row in of_group if row["seq"] is not None])

    def _take_group(self, rows: list[Mapping[str, Any]]) -> None:
        factual = next((row for row in rows if row["seq"] == 0 and row["error"] is None), None)
        for row in rows:
            of = self._found.setdefault(row["seq"], Ranked(seq=row["seq"], configuration=row["configuration"]))
            if row["error"] is not None:
                of.failed += 1
                continue
            of.groups += 1
            of.best_in += row["front"]
            for name in METRICS:
                of.sums[name] = _sum(of.sums[name], _parts(row[name]))
            if factual is None:
                continue
            of.pairs += 1
            of.better += row["compared"] == "better"
            of.worse += row["compared"] == "worse"
            for name in SAVED:
                of.saved[name] = _sum(of.saved[name], _difference(factual[name], row[name]))
            more = -(_difference(factual[LEADING], row[LEADING]) or 0)
            if more > of.worst:
                of.worst, of.worst_group = more, row["group"]

    def ranked(self) -> list[Ranked]:
        """Returns the configurations, the one first that saves most unavailability."""
        return sorted(self._found.values(), key=lambda each: (-(each.saved[LEADING] or 0), each.worse, each.seq))


def _parts(value: float | None) -> int | None:
    return None if value is None else round(value * _PART)


def _whole(value: int | None) -> float | None:
    return None if value is None else value / _PART


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _difference(before: float | None, after: float | None) -> int | None:
    return None if before is None or after is None else round(before * _PART) - round(after * _PART)
