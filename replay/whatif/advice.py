"""Compares outcomes: the Pareto front, and whether to change any setting.

Less is better in every metric. One outcome is *better* than another in a metric when the difference
is more than MATTERS of it, and with several seeds also more than twice the standard error of the
difference, run by run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from equipoise.replay.whatif.evaluate import Outcome, WhatIf
from equipoise.replay.whatif.sweep import text

OBJECTIVES = {
    "unavailable_task_seconds": "unavailability",
    "records_restored": "what is restored",
    "rebalances": "the number of rebalances",
    "imbalance_task_seconds": "imbalance",
}
"""Metric -> its name in a sentence; in order of weight."""
MATTERS = 0.02
"""Fraction of a metric by which two outcomes must differ for one to be better."""
CLEAR_GAIN = 0.2
"""Fraction of the unavailability that a trade must save."""
CLEAR_TRADE = 2.0
"""Least ratio of gain to cost of a trade, both as sums of fractions over the objectives."""


@attrs.frozen(kw_only=True)
class Advice:
    """`change`: name of the outcome to change to; None: keep the present settings. `line`: one
    sentence with the reason.
    """

    change: str | None
    line: str


def better(one: Outcome, other: Outcome, metric: str) -> bool:
    """Returns whether `one` costs less than `other`, by more than chance and by enough to matter.
    False where a value is unknown.
    """
    pairs = [(getattr(a, metric), getattr(b, metric)) for a, b in zip(one.runs, other.runs, strict=True)]
    if not pairs or any(None in pair for pair in pairs):
        return False
    gains = [b - a for a, b in pairs]
    gain = sum(gains) / len(gains)
    least = MATTERS * sum(b for _, b in pairs) / len(pairs)
    if len(gains) > 1:
        variance = sum((each - gain) ** 2 for each in gains) / (len(gains) - 1)
        least = max(least, 2 * math.sqrt(variance / len(gains)))
    return bool(gain > least)


def dominates(one: Outcome, other: Outcome) -> bool:
    """Returns whether `one` is better in some objective and worse in none."""
    return any(better(one, other, metric) for metric in OBJECTIVES) and not any(better(other, one, metric) for metric in OBJECTIVES)


def pareto_front(answer: WhatIf) -> list[str]:
    """Returns the names of the outcomes that no other outcome dominates, the factual one's included
    where that is so.
    """
    led = [each for each in (answer.factual, *answer.outcomes) if not each.error]
    return [each.configuration.name for each in led if not any(dominates(other, each) for other in led)]


def advise(answer: WhatIf) -> Advice:
    """Returns the advice: a change only when its outcome dominates the factual configuration, or is
    a clear trade: at least CLEAR_GAIN less unavailability, and CLEAR_TRADE times its cost. A gain
    in the leading metric that is smaller than the simulation's own error counts as none.
    """
    factual = answer.factual
    if factual.error:
        return Advice(change=None, line=f"keep what you have: the simulation could not lead as it is ({factual.error})")
    led = [each for each in answer.outcomes if not each.error]
    if not led:
        return Advice(change=None, line="keep what you have: nothing else was tried that could lead" if answer.outcomes else "nothing else was tried")
    winners = [each for each in led if dominates(each, factual)]
    trades = [each for each in led if each not in winners and _trades_clearly(each, factual)]
    for candidates in (winners, trades):
        sure = [each for each in candidates if _beyond_error(answer, each)]
        if sure:
            order = {each.configuration.name: number for number, each in enumerate(answer.outcomes)}
            best = min(sure, key=lambda each: (round(_paid(each, factual), 1), _distance(each, factual), order[each.configuration.name]))
            return Advice(change=best.configuration.name, line=f"change {_changes(best, factual)} because {_because(best, factual)}")
    return Advice(change=None, line=f"keep what you have: {_why_not(answer, led, winners + trades)}")


def _part(one: Outcome, other: Outcome, metric: str) -> float:
    """Returns the extra cost of `one` over `other`, as a fraction of `other`; 0.0 where the
    difference does not matter.
    """
    if not better(one, other, metric) and not better(other, one, metric):
        return 0.0
    after, before = getattr(one.metrics, metric), getattr(other.metrics, metric)
    return float((after - before) / before) if before else 1.0


def _paid(one: Outcome, factual: Outcome) -> float:
    """Returns the sum of the extra costs in all objectives; below zero: a saving."""
    return sum(_part(one, factual, metric) for metric in OBJECTIVES)


def _distance(one: Outcome, factual: Outcome) -> int:
    """Returns the number of settings to change. Of configurations that cost about the same, the
    smallest change is advised.
    """
    changed = sum(getattr(one.settings, field.name) != getattr(factual.settings, field.name) for field in attrs.fields(type(one.settings)))
    given = (one.configuration.announce_closes, one.configuration.carrier)
    leader = (one.assignor, one.behaviour_version) != (factual.assignor, factual.behaviour_version)
    return int(changed + leader + sum(each is not None for each in given))


def _trades_clearly(one: Outcome, factual: Outcome) -> bool:
    parts = {metric: _part(one, factual, metric) for metric in OBJECTIVES}
    gained = -sum(part for part in parts.values() if part < 0)
    paid = sum(part for part in parts.values() if part > 0)
    return parts["unavailable_task_seconds"] <= -CLEAR_GAIN and gained >= CLEAR_TRADE * paid


def _leading(one: Outcome, factual: Outcome) -> str:
    """Returns the weightiest objective in which it is better."""
    return next(metric for metric in OBJECTIVES if better(one, factual, metric))


def _beyond_error(answer: WhatIf, one: Outcome) -> bool:
    metric = _leading(one, answer.factual)
    error = next((each.error for each in answer.fidelity if each.metric == metric), None)
    return error is None or -_part(one, answer.factual, metric) > abs(error)


def _changes(one: Outcome, factual: Outcome) -> str:
    """``max_warmups from 2 to 4``."""
    changes = []
    if one.assignor != factual.assignor:
        changes.append(f"the assignor from {factual.assignor} to {one.assignor}")
    elif one.configuration.behaviour_version is not None and one.behaviour_version != factual.behaviour_version:
        changes.append(f"the behaviour version of {one.assignor} from {factual.behaviour_version} to {one.behaviour_version}")
    for field in attrs.fields(type(one.settings)):
        before, after = getattr(factual.settings, field.name), getattr(one.settings, field.name)
        if before != after and field.name == "options":
            changes += [f"options.{name} to {text(value)}" for name, value in sorted(after.items()) if before.get(name) != value]
        elif before != after:
            changes.append(f"{field.name} from {_number(before)} to {_number(after)}")
    if one.configuration.announce_closes is not None:
        changes.append(f"closes to be {'announced' if one.configuration.announce_closes else 'at once'}")
    if one.configuration.carrier is not None:
        changes.append(f"the carrier to {one.configuration.carrier}")
    return " and ".join(changes) or "nothing"


def _because(one: Outcome, factual: Outcome) -> str:
    gains = [_moved(one, factual, metric) for metric in OBJECTIVES if better(one, factual, metric)]
    losses = [_moved(one, factual, metric) for metric in OBJECTIVES if better(factual, one, metric)]
    return ", ".join(gains) + (f"; but {', '.join(losses)}" if losses else "; nothing gets worse")


def _moved(one: Outcome, factual: Outcome, metric: str) -> str:
    return moved(getattr(factual.metrics, metric), getattr(one.metrics, metric), metric)


def moved(before: float, after: float, metric: str) -> str:
    """``unavailability goes from 971.5 to 612.7 task-seconds (-37 %)``."""
    unit = {"records_restored": " records", "rebalances": ""}.get(metric, " task-seconds")
    return f"{OBJECTIVES[metric]} goes from {_number(before)} to {_number(after)}{unit}" + (f" ({(after - before) / before:+.0%})" if before else "")


def _why_not(answer: WhatIf, led: Sequence[Outcome], unsure: Sequence[Outcome]) -> str:
    factual = answer.factual
    if unsure:
        best = min(unsure, key=lambda each: (_part(each, factual, _leading(each, factual)), each.configuration.name))
        metric = _leading(best, factual)
        error = next(each.error for each in answer.fidelity if each.metric == metric) or 0.0
        saved = -_part(best, factual, metric)
        much = f"{best.configuration.name} would save {saved:.0%} of the {OBJECTIVES[metric]}"
        return f"{much}, less than the simulation's own error of {abs(error):.0%} there"
    tempting = [each for each in led if any(better(each, factual, metric) for metric in OBJECTIVES)]
    if not tempting:
        return "nothing that was tried is better in any respect"
    best = min(tempting, key=lambda each: (sum(max(-1.0, min(1.0, _part(each, factual, metric))) for metric in OBJECTIVES), each.configuration.name))
    return f"no change is better without being worse elsewhere; the nearest is {best.configuration.name}: {_because(best, factual)}"


def _number(value: Any) -> str:
    if isinstance(value, bool | str | list | tuple):
        return text(value) or "none"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 10_000 or value == int(value) else f"{value:,.1f}"
