"""Which thread runs what: every generation of both recorded groups, as Kafka's own leader gave it
to each consumer.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.assignors import Task
from equipoise.assignors.kafka_streams.client_states import ClientState
from equipoise.assignors.kafka_streams.threads import ThreadSubscription, to_threads
from equipoise.events.tasks import TaskId, parse_task

DATA = Path(__file__).parents[2] / "data" / "kafka_streams"
SUBTOPOLOGY = {"orders": 0, "orders-by-customer-repartition": 1, "clicks": 2}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def tasks_of(names: Any) -> frozenset[TaskId]:
    return frozenset(map(parse_task, names))


def subscription(member: dict[str, Any]) -> ThreadSubscription:
    said = member["subscription"]
    owned = (TaskId(SUBTOPOLOGY[topic], partition) for topic, partitions in said["owned_partitions"].items() for partition in partitions)
    return ThreadSubscription(
        consumer=member["member_id"],
        process=member["process_id"],
        owned=frozenset(owned),
        offset_sums={parse_task(task): records for task, records in said["task_offset_sums"].items()},
    )


@pytest.mark.parametrize("run", ["scale-out", "rolling"])
def test_recorded_generations_reach_threads_as_in_kafka(run: str) -> None:
    views = {view["generation"]: view for view in lines(DATA / run / "leader_view.jsonl.gz")}
    compared = withheld = asked_to_probe = 0
    for generation in lines(DATA / run / "history.jsonl.gz"):
        view = views.get(generation["generation"])
        if view is None or not generation["members"]:
            continue
        ends = {parse_task(task): records for task, records in view["end_offset_sums"].items()}
        everything = {task for client in view["clients"] for task in tasks_of(client["target_active"])}
        tasks = {task: Task(id=task, stateful=task.subtopology < 2, end_offset=ends.get(task, 0)) for task in everything}
        said = [subscription(member) for member in generation["members"]]
        owned = frozenset(task for each in said for task in each.owned)
        members = {member["member_id"]: member["assignment"] for member in generation["members"]}
        for client in view["clients"]:
            process = client["process_id"]
            theirs = sorted((each for each in said if each.process == process), key=lambda each: each.consumer)
            active, standby = set(tasks_of(client["target_active"])), set(tasks_of(client["target_standby"]))
            given = ClientState(index=0, id=process, capacity=len(theirs), active=active, standby=standby)
            leads = any(each.consumer.startswith(view["leader_thread"]) for each in theirs)
            for consumer, found in to_threads(given, theirs, tasks, owned, probing=view["probing_follow_up"] and leads).items():
                recorded = members[consumer]
                assert set(found.active) == tasks_of(recorded["active"]), (generation["generation"], consumer)
                assert set(found.standby) == tasks_of(recorded["standby"]), (generation["generation"], consumer)
                assert found.now == (recorded["next_rebalance_ms"] == 0), (generation["generation"], consumer)
                assert found.probing == (0 < recorded["next_rebalance_ms"] < 2**63 - 1), (generation["generation"], consumer)
                compared += 1
                withheld += len(found.withheld)
                asked_to_probe += found.probing
    assert compared > 200
    assert withheld > 50
    assert asked_to_probe > 3
