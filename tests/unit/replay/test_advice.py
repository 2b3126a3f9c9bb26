"""Advice changes settings only for a gain beyond chance and beyond the simulation's own error;
otherwise it names the reason not to.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from equipoise.events.settings import GroupSettings
from equipoise.replay.whatif.advice import advise, better, dominates, pareto_front
from equipoise.replay.whatif.evaluate import FACTUAL, Configuration, Deviation, Outcome, WhatIf
from equipoise.replay.whatif.kafka_properties import APPLICATION, BROKER, kafka_properties
from equipoise.replay.whatif.recorded_costs import Metrics, mean


def run(unavailable: float = 100.0, restored: float | None = 1_000_000, rebalances: float = 50, imbalanced: float = 200.0) -> Metrics:
    return Metrics(
        unavailable_task_seconds=unavailable,
        records_restored=restored,
        rebalances=rebalances,
        imbalance_task_seconds=imbalanced,
        moves=10,
        records_restored_before_running=None,
    )


def outcome(name: str, *runs: Metrics, error: str = "", **settings: Any) -> Outcome:
    return Outcome(
        configuration=Configuration(name=name, settings=settings),
        assignor="high_availability",
        behaviour_version=3,
        settings=GroupSettings(**settings),
        runs=runs,
        metrics=mean(runs) if runs else None,
        error=error,
    )


def answer(factual: Sequence[Metrics], *outcomes: Outcome, error: float = 0.05) -> WhatIf:
    own = outcome(FACTUAL, *factual)
    deviations = tuple(Deviation(metric=metric, recorded=1.0, simulated=1.0, low=1.0, high=1.0, error=error) for metric in attrs.asdict(factual[0]))
    return WhatIf(
        group="orders",
        facts=10,
        span_ms=1_000,
        seeds=tuple(range(len(factual))),
        restore_records_per_s=1,
        restore_basis="given",
        recorded=factual[0],
        metrics_source="measured",
        fidelity=deviations,
        factual=own,
        outcomes=outcomes,
    )


def test_better_exceeds_chance_and_a_minimum() -> None:
    metric = "unavailable_task_seconds"
    assert better(outcome("a", run(90)), outcome("b", run(100)), metric)
    assert not better(outcome("a", run(99)), outcome("b", run(100)), metric)  # 1 %
    assert not better(outcome("a", run(90)), outcome("b", run(90)), metric)
    steady = (outcome("a", run(80), run(81), run(79)), outcome("b", run(100), run(101), run(99)))
    by_chance = (outcome("a", run(20), run(180), run(40)), outcome("b", run(100), run(101), run(99)))
    assert better(*steady, metric)
    assert not better(*by_chance, metric)
    unknown, known = outcome("a", run(restored=None)), outcome("b", run())
    assert not better(unknown, known, "records_restored")
    assert not better(known, unknown, "records_restored")


def test_pareto_front_has_no_dominated_outcome() -> None:
    saves, pays, both = outcome("saves", run(50)), outcome("pays", run(50, restored=2_000_000)), outcome("both", run(40, restored=2_000_000))
    assert dominates(saves, pays)
    assert not dominates(pays, saves)
    assert not dominates(saves, both)
    assert pareto_front(answer([run()], saves, pays, both, outcome("broken", error="it halts"))) == ["saves", "both"]


def test_advice_names_a_dominating_configuration_with_its_reason() -> None:
    found = advise(answer([run()], outcome("four", run(50, rebalances=25), max_warmups=4), outcome("worse", run(200), max_warmups=1)))
    assert found.change == "four"
    assert found.line == (
        "change max_warmups from 2 to 4 because unavailability goes from 100 to 50 task-seconds (-50%), "
        "the number of rebalances goes from 50 to 25 (-50%); nothing gets worse"
    )


def test_advise_equal_savings_names_the_smallest_change() -> None:
    large = outcome("large", run(50), max_warmups=4, num_standbys=1)
    small = outcome("small", run(50.5), max_warmups=4)
    assert advise(answer([run()], large, small)).change == "small"


def test_advise_trade_only_if_clear_and_with_its_cost() -> None:
    clear = outcome("clear", run(50, restored=1_100_000), max_warmups=4)
    found = advise(answer([run()], clear))
    assert found.change == "clear"
    assert found.line.endswith("; but what is restored goes from 1,000,000 to 1,100,000 records (+10%)")
    dear = outcome("dear", run(70, restored=2_500_000), num_standbys=1)
    kept = advise(answer([run()], dear))
    assert kept.change is None
    assert kept.line.startswith("keep what you have: no change is better without being worse elsewhere; the nearest is dear: unavailability goes")


def test_advise_gain_below_simulation_error_is_none() -> None:
    found = advise(answer([run()], outcome("four", run(85), max_warmups=4), error=-0.27))
    assert found.change is None
    assert found.line == "keep what you have: four would save 15% of the unavailability, less than the simulation's own error of 27% there"


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ((), "nothing else was tried"),
        ((outcome("broken", error="it halts"),), "keep what you have: nothing else was tried that could lead"),
        ((outcome("same", run()), outcome("worse", run(200))), "keep what you have: nothing that was tried is better in any respect"),
    ],
)
def test_advise_no_change_names_reason(outcomes: tuple[Outcome, ...], told: str) -> None:
    found = advise(answer([run()], *outcomes))
    assert (found.change, found.line) == (None, told)


# ------------------------------------------------------------------------------- Kafka's properties


def as_kafka(given: WhatIf) -> WhatIf:
    """The same answer of a group that Kafka Streams leads."""
    led = [attrs.evolve(each, assignor="kafka_streams") for each in (given.factual, *given.outcomes)]
    return attrs.evolve(given, factual=led[0], outcomes=tuple(led[1:]))


def test_properties_are_those_of_the_best_change_that_kafka_knows() -> None:
    better_one = outcome("x", run(40), run(60), max_warmups=1, rack_aware_strategy="min_cost", initial_delay_ms=9_000)
    not_kafkas = outcome("y", run(1), run(1), max_warmups_per_member=1)
    given = as_kafka(answer([run(100), run(100)], better_one, not_kafkas))
    equipoise_leads = attrs.evolve(outcome("z", run(1), run(1), max_warmups=3), assignor="high_availability")
    found = kafka_properties(attrs.evolve(given, outcomes=(*given.outcomes, equipoise_leads)))
    assert found is not None
    assert found.lines() == [
        "# Kafka Streams as the leader: x makes nothing worse",
        "# unavailability goes from 100 to 50 task-seconds (-50%); -60% to -40% over the seeds; error of the simulation +5%",
        "max.warmup.replicas=1",
        "rack.aware.assignment.strategy=min_traffic",
        "# in the configuration of the brokers, for all groups:",
        "group.initial.rebalance.delay.ms=9000",
    ]
    assert found.as_json()["set"][0] == {"where": "application", "name": "max.warmup.replicas", "value": "1"}
    assert [each["where"] for each in found.as_json()["set"]] == ["application", "application", "brokers"]


def test_properties_of_a_trade_name_its_cost() -> None:
    found = kafka_properties(as_kafka(answer([run(100, rebalances=0)], outcome("x", run(10, rebalances=0, restored=1_200_000), max_warmups=1))))
    assert found is not None
    assert [(each.metric, each.low) for each in found.gains] == [("unavailable_task_seconds", -0.9), ("records_restored", 0.2)]
    assert found.why == "x"


def test_properties_without_a_gain_say_why() -> None:
    found = kafka_properties(as_kafka(answer([run(100)], outcome("x", run(100), max_warmups=1))))
    assert found is not None
    assert found.lines() == ["# Kafka Streams as the leader: keep what you have: nothing that was tried is better in any respect"]
    assert kafka_properties(answer([run(100)], outcome("x", run(50), max_warmups=1))) is None


def test_every_setting_with_a_name_in_kafka_has_its_property() -> None:
    """The docstrings of the settings name them."""
    _, *parts = re.split(r"^    (\w+): ", inspect.getsource(GroupSettings), flags=re.MULTILINE)
    named = {name: re.search(r"Kafka:\s+([\w.]+\w)", text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    assert {name: found[1] for name, found in named.items() if found} == {**APPLICATION, **BROKER}
