"""Predicted changes beside what they did cost: which intervals hold, and how wide they are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import click

from equipoise.events.facts import JUDGED_METRICS, ExpectedCost
from equipoise.replay.wording import METRIC_TEXTS, metric_text

BUSY = 0.6
"""A machine whose processors are busy for a larger part of the time is loaded."""
GOALS = {95: (0.92, 0.98), 50: (0.40, 0.60)}
NARROW = ("unavailable_task_ms", "moves")
MOST_WIDTH = 2.0


@attrs.frozen(kw_only=True)
class MadeChange:
    """A change of a real group. `busy`: part of the time in which the machine's processors did
    something. `costs`: by `JUDGED_METRICS`. `expected` empty: it was not predicted.
    """

    group: str
    tasks: int
    members: int
    guarantee: str
    standbys: int
    kind: str
    busy: float
    what: str
    outcome: str
    verdict: str
    expected: tuple[ExpectedCost, ...]
    costs: dict[str, int]

    @property
    def text(self) -> str:
        """Returns what was changed, of which group."""
        machine = "loaded" if self.busy > BUSY else "quiet"
        group = f"{self.members} members, {self.tasks} tasks, {self.standbys} standbys, {self.guarantee}"
        return f"{self.kind}: {self.what} ({group}; {machine} machine, {self.busy:.0%} busy)"


def held(pairs: Iterable[tuple[ExpectedCost, float]], percent: int) -> list[bool]:
    """Returns whether each interval holds its value; those of one value that was met hold by
    nature, and are left out.
    """
    found = []
    for expected, value in pairs:
        low, high = (expected.low_50, expected.high_50) if percent == 50 else (expected.low_95, expected.high_95)
        if not expected.low_95 == expected.high_95 == value:
            found.append(low <= value <= high)
    return found


def read_results(results: Path) -> list[MadeChange]:
    """Returns the changes in a file of results."""
    found = []
    for line in results.read_text().splitlines() if results.exists() else ():
        each = json.loads(line)
        found.append(MadeChange(**{**each, "expected": tuple(ExpectedCost(**expected) for expected in each["expected"])}))
    return found


def _pairs(found: Iterable[MadeChange], metric: str | None = None) -> list[tuple[ExpectedCost, float]]:
    """Returns intervals with what was. What cost too much is judged at once, so of its other costs
    nobody knows what they became.
    """
    return [
        (expected, each.costs[expected.metric])
        for each in found
        for expected in each.expected
        if metric in (None, expected.metric) and (each.outcome != "too_much" or each.costs[expected.metric] > expected.high_95)
    ]


def compared(made: MadeChange) -> Iterator[str]:
    for each in made.expected:
        was = made.costs[each.metric]
        side = ": above" if was > each.high_95 else ": below" if was < each.low_95 and made.outcome != "too_much" else ""
        low, high = (metric_text(each.metric, value) for value in (each.low_95, each.high_95))
        yield f"{METRIC_TEXTS[each.metric]} {metric_text(each.metric, was)}, predicted {low} to {high}{side}"


def told(found: list[MadeChange]) -> bool:
    """Says what the changes show, and returns whether all goals are met."""
    predicted = [each for each in found if each.expected]
    click.echo(f"{len(found)} changes, {len(predicted)} of them predicted; on a loaded machine {sum(each.busy > BUSY for each in predicted)}")
    is_good = True
    for percent, (least, most) in GOALS.items():
        whole = held(_pairs(predicted), percent)
        share = statistics.fmean(whole or [True])
        is_good &= least <= share <= most
        parts = {METRIC_TEXTS[metric]: held(_pairs(predicted, metric), percent) for metric in JUDGED_METRICS}
        shown = ", ".join(f"{name} {sum(each)} of {len(each)}" for name, each in parts.items())
        goal = f"goal: {least:.0%} to {most:.0%}{'' if least <= share <= most else ': MISSED'}"
        click.echo(f"{share:.1%} of {len(whole)} intervals of {percent} % hold ({shown}); {goal}")
    for metric in JUDGED_METRICS:
        widths = [each.high_95 / each.low_95 for each, _ in _pairs(predicted, metric) if each.low_95 > 0]
        width = statistics.median(widths or [1.0])
        is_in = metric not in NARROW or width <= MOST_WIDTH
        is_good &= is_in
        goal = f"; goal: at most {MOST_WIDTH:g}{'' if is_in else ': MISSED'}" if metric in NARROW else ""
        click.echo(f"{METRIC_TEXTS[metric]}: median width of {len(widths)} intervals of 95 % is a factor of {width:.2f}{goal}")
    for name in ("kind", "group", "standbys", "guarantee"):
        for key in sorted({getattr(each, name) for each in predicted}):
            those = [each for each in predicted if getattr(each, name) == key]
            shares = " and ".join(f"{statistics.fmean(held(_pairs(those), percent) or [True]):.0%}" for percent in GOALS)
            click.echo(f"{name} {key}: {len(those)} changes, {shares} hold")
    for each in predicted:
        lines = [line for line in compared(each) if line.endswith((": above", ": below"))]
        if lines:
            click.echo(f"missed: {each.text}: {'; '.join(lines)}")
    return is_good
