"""Every built-in assignor keeps the contract (`equipoise.testing.contract`) that third parties run."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, Task, TaskLoad, registry
from equipoise.assignors.lag_aware import LagAware
from equipoise.testing import CONTRACT, Check, Subject


def loaded(problem: AssignmentProblem) -> AssignmentProblem:
    """Weights by task, the same in every call; every third task has none."""

    def load(task: Task) -> TaskLoad | None:
        number = 7 * task.id.partition + 3 * task.id.subtopology
        return None if number % 3 == 0 else TaskLoad(cpu=number % 5 * 100_000, records_per_s=number % 7)

    return attrs.evolve(problem, tasks=tuple(attrs.evolve(task, load=load(task)) for task in problem.tasks))


def behind(problem: AssignmentProblem) -> AssignmentProblem:
    """Lags by task, the same in every call; every fifth task has none."""

    def lag(task: Task) -> int | None:
        number = 7 * task.id.partition + 3 * task.id.subtopology
        return None if number % 5 == 4 else number % 4 * 1_000

    return attrs.evolve(problem, tasks=tuple(attrs.evolve(task, lag=lag(task)) for task in problem.tasks))


LAG_OPTIONS = st.fixed_dictionaries(
    {"cross_topic": st.booleans()},
    optional={"rack_lag_tolerance": st.sampled_from([0, 10]), "deal_after_ms": st.just(1), "deal_gain_records": st.just(100)},
)
LOAD_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "load_high_percent": st.sampled_from([20, 100]),
        "load_low_percent": st.sampled_from([1, 20]),
        "load_throughput": st.sampled_from([0, 1, 3]),
    },
)

SUBJECTS: dict[str, Subject] = {
    "load_balanced": Subject(
        assignor=registry.latest("load_balanced"),
        group_settings={"options": LOAD_OPTIONS, "rack_aware_strategy": st.sampled_from(["none", "none", "min_cost"])},
        adapted=loaded,
    ),
    "kafka_streams": Subject(
        assignor=registry.latest("kafka_streams"),
        group_settings={
            "rack_aware_strategy": st.sampled_from(["none", "min_cost", "balanced_min_cost"]),
            "rack_aware_tags": st.sampled_from([(), ("zone",)]),
        },
    ),
    "lag_aware": Subject(
        assignor=LagAware(),
        group_settings={"options": LAG_OPTIONS, "rack_aware_strategy": st.sampled_from(["none", "min_cost"])},
        adapted=behind,
    ),
    "cooperative": Subject(
        assignor=registry.latest("cooperative"),
        group_settings={
            "options": st.fixed_dictionaries(
                {},
                optional={
                    "scheduled_delay_ms": st.sampled_from([0, 700, 500_000]),
                    "revocation_backoff_ms": st.sampled_from([0, 1, 90_000]),
                    "revocations_per_round": st.sampled_from([0, 1, 2]),
                },
            )
        },
    ),
    "learner": Subject(assignor=registry.latest("learner"), group_settings={"options": st.sampled_from([{}, {"strict": False}, {"strict": True}])}),
}
"""Assignors that are asked more than the usual: by name, with their own group_settings."""

LEFT_OUT: dict[str, dict[str, str]] = {
    "kafka_connect": {"names_play_no_part": "in Connect who keeps more than others depends on hashes of their names; the baseline does the same"},
    "kafka_streams": {"names_play_no_part": "Kafka deals tasks out by the order of process ids, wherever they run; the baseline does the same"},
    "lag_aware": {
        "names_play_no_part": "copies play no part in it, so what is to be restored is left to chance; test_lag_aware holds its other costs, counts "
        "and lags",
    },
}
"""Assignor -> check that it cannot pass by its nature -> why."""

ASKED = [
    (name, check)
    for name in dict.fromkeys(name for name, _ in registry.available())
    for check in CONTRACT
    if check.__name__ not in LEFT_OUT.get(name, {})
]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=pytest.mark.slow if check.__name__ == "hash_seeds_play_no_part" and name != "high_availability" else ())
        for name, check in ASKED
    ],
    ids=[f"{name}-{check.__name__}" for name, check in ASKED],
)
def test_assignor_keeps_the_contract(name: str, check: Check):
    check(SUBJECTS.get(name) or Subject(assignor=registry.latest(name)))


def test_contract_exceptions_name_existing_checks():
    names = {name for name, _ in registry.available()}
    assert SUBJECTS.keys() | LEFT_OUT.keys() <= names
    assert {check for left_out in LEFT_OUT.values() for check in left_out} <= {check.__name__ for check in CONTRACT}
