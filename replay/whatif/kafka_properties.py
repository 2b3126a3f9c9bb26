"""The lines for a Kafka Streams application's own properties that an answer comes down to, for
whoever keeps Kafka Streams as the leader.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.events.settings import GroupSettings
from equipoise.replay.simulation.run_kafka import ASSIGNOR as KAFKA
from equipoise.replay.whatif.advice import OBJECTIVES, advise, better, moved
from equipoise.replay.whatif.evaluate import Outcome, WhatIf
from equipoise.replay.whatif.sweep import text

APPLICATION = {
    "acceptable_recovery_lag": "acceptable.recovery.lag",
    "num_standbys": "num.standby.replicas",
    "max_warmups": "max.warmup.replicas",
    "probing_interval_ms": "probing.rebalance.interval.ms",
    "rack_aware_strategy": "rack.aware.assignment.strategy",
    "rack_traffic_cost": "rack.aware.assignment.traffic_cost",
    "rack_non_overlap_cost": "rack.aware.assignment.non_overlap_cost",
    "rack_aware_tags": "rack.aware.assignment.tags",
}
"""Setting -> its name in StreamsConfig."""
BROKER = {"initial_delay_ms": "group.initial.rebalance.delay.ms"}
"""Setting -> its name in the brokers' configuration."""
_STRATEGIES = {"min_cost": "min_traffic", "balanced_min_cost": "balance_subtopology"}
"""Value of `rack_aware_strategy` -> Kafka's name of it, where it has another."""


@attrs.frozen(kw_only=True)
class Gain:
    """A metric that gets better or worse. `before`, `after`: means over the seeds. `low`, `high`:
    the least and the greatest relative change of one seed; -0.5: half of it is saved. None: it was
    0 before. `error`: the simulation's own relative error in this metric; None: unknown.
    """

    metric: str
    before: float
    after: float
    low: float | None
    high: float | None
    error: float | None


@attrs.frozen(kw_only=True)
class KafkaProperties:
    """`application`, `brokers`: name -> value, to set. Both are empty if nothing that was tried is
    worth a change; `why` says so. `gains`: of the change, better ones first.
    """

    why: str
    application: dict[str, str]
    brokers: dict[str, str]
    gains: tuple[Gain, ...]

    def lines(self) -> list[str]:
        """Text to paste: comments, and one line for each property."""
        lines = [f"# Kafka Streams as the leader: {self.why}"]
        for gain in self.gains:
            between = "" if gain.low is None or gain.high is None else f"; {gain.low:+.0%} to {gain.high:+.0%} over the seeds"
            error = "" if gain.error is None else f"; error of the simulation {gain.error:+.0%}"
            lines.append(f"# {moved(gain.before, gain.after, gain.metric)}{between}{error}")
        lines += [f"{name}={value}" for name, value in self.application.items()]
        if self.brokers:
            lines += ["# in the configuration of the brokers, for all groups:", *(f"{name}={value}" for name, value in self.brokers.items())]
        return lines

    def as_json(self) -> dict[str, Any]:
        """Returns the properties, JSON-ready."""
        places = (("application", self.application), ("brokers", self.brokers))
        values = [{"where": where, "name": name, "value": value} for where, properties in places for name, value in properties.items()]
        return {"why": self.why, "set": values, "gains": [attrs.asdict(each) for each in self.gains]}


def kafka_properties(answer: WhatIf) -> KafkaProperties | None:
    """Returns what to set if Kafka Streams stays the leader, by the outcomes whose changes it
    knows. None: it does not lead the group.
    """
    if answer.factual.assignor != KAFKA:
        return None
    kept = [each for each in answer.outcomes if each.assignor == KAFKA and each.configuration.announce_closes is None and _is_kafkas(each)]
    advice = advise(attrs.evolve(answer, outcomes=tuple(kept)))
    best = next((each for each in kept if each.configuration.name == advice.change), None)
    if best is None:
        return KafkaProperties(why=advice.line, application={}, brokers={}, gains=())
    values = _changes(best, answer.factual)
    gains = [_gain(answer, best, metric) for metric in OBJECTIVES if better(best, answer.factual, metric)]
    losses = [_gain(answer, best, metric) for metric in OBJECTIVES if better(answer.factual, best, metric)]
    return KafkaProperties(
        why=f"{best.configuration.name}{' makes nothing worse' if not losses else ''}",
        application={APPLICATION[name]: value for name, value in values.items() if name in APPLICATION},
        brokers={BROKER[name]: value for name, value in values.items() if name in BROKER},
        gains=(*gains, *losses),
    )


def _is_kafkas(outcome: Outcome) -> bool:
    return outcome.configuration.settings.keys() <= APPLICATION.keys() | BROKER.keys()


def _changes(outcome: Outcome, factual: Outcome) -> dict[str, str]:
    """Setting -> its new value as Kafka writes it."""
    pairs = {field.name: (getattr(factual.settings, field.name), getattr(outcome.settings, field.name)) for field in attrs.fields(GroupSettings)}
    return {name: _STRATEGIES.get(text(after), text(after)) for name, (before, after) in pairs.items() if before != after}


def _gain(answer: WhatIf, one: Outcome, metric: str) -> Gain:
    before, after = ([getattr(run, metric) for run in each.runs] for each in (answer.factual, one))
    changes = [(b - a) / a for a, b in zip(before, after, strict=True)] if all(before) else []
    return Gain(
        metric=metric,
        before=getattr(answer.factual.metrics, metric),
        after=getattr(one.metrics, metric),
        low=min(changes, default=None),
        high=max(changes, default=None),
        error=next((each.error for each in answer.fidelity if each.metric == metric), None),
    )
