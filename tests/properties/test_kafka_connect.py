"""`kafka_connect` under any script of joins, failures, deletions and lost rounds: each task runs at
most once, and an undisturbed group settles evenly.
"""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.connect_differential import script
from tests.support.assign_json import assign_line
from tests.vectors import ConnectScript

MOST_ROUNDS = 40


def played(seed: int) -> ConnectScript:
    """Returns a group of workers after a script drawn from the seed; checks each plan."""
    given_ = script(random.Random(seed))
    group = ConnectScript(given_)
    group.play(given_["steps"])
    return group


def alone(group: ConnectScript) -> ConnectScript:
    """Runs rounds without new facts, each after the last one's delay, until one changes nothing and
    has no delay.
    """
    for _ in range(MOST_ROUNDS):
        group.happens({"op": "sleepdelay"})
        said = group.round("rebalance")
        if not said["delay"] and not any(part[key] for part in said["w"].values() for key in part):
            return group
    raise AssertionError(f"no rest after {MOST_ROUNDS} rounds")


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_group_at_rest_runs_every_task_once_and_evenly(seed: int):
    group = alone(played(seed))
    problem = group.problem()
    running = [task for has in group.workers.values() for task in has]
    assert sorted(running) == sorted(task["id"] for task in problem["tasks"])
    for connectors in (True, False):
        counts = [sum(task.startswith("0_") is connectors for task in has) for has in group.workers.values()]
        assert max(counts) - min(counts) <= 1
    before = {worker: list(has) for worker, has in group.workers.items()}
    alone(group)
    assert group.workers == before


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_order_of_tasks_members_and_keys_changes_nothing(seed: int, dice: random.Random):
    problem = played(seed).problem()
    turned: dict[str, Any] = dict(reversed(problem.items()))
    turned["tasks"] = dice.sample(problem["tasks"], len(problem["tasks"]))
    turned["members"] = dice.sample(problem["members"], len(problem["members"]))
    assert assign_line(json.dumps(turned)) == assign_line(json.dumps(problem))


@given(st.integers(0, 2**32))
def test_running_task_is_given_to_no_other_worker(seed: int):
    problem = played(seed).problem()
    plan = json.loads(assign_line(json.dumps(problem)))
    reported = {member["id"]: member["reported"] for member in problem["members"]}
    running = {task for has in reported.values() for task in has}
    granted = [task for name, part in plan["members"].items() for task in part["active"] if task not in reported[name]]
    assert not running.intersection(granted)
    assert len(granted) == len(set(granted))
