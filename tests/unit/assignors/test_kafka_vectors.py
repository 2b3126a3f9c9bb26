"""`kafka_streams`, held equal with what Kafka's own class
answered.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.assign_json import assign_line

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
SENTINELS = {-2: "active", -3: "unknown"}
SETTINGS = {
    "lag": "acceptable_recovery_lag",
    "standby": "num_standbys",
    "warm": "max_warmups",
    "tags": "rack_aware_tags",
    "strategy": "rack_aware_strategy",
    "traffic": "rack_traffic_cost",
    "nonoverlap": "rack_non_overlap_cost",
}


def question(given: dict[str, Any]) -> dict[str, Any]:
    """A vector's `in` as `assign_line` takes it."""

    def partition(name: str) -> dict[str, Any]:
        topic, number = name.rsplit("-", 1)
        return {"topic": topic, "partition": int(number), "racks": given.get("tpracks", {}).get(name, [])}

    return {
        "assignor": "kafka_streams",
        "config": {SETTINGS[key]: value for key, value in given["cfg"].items()},
        "tasks": [
            {
                "id": task,
                "stateful": task in given["stateful"],
                "source": [partition(name) for name in given.get("parts", {}).get(task, [])],
                "changelog": [partition(name) for name in given.get("clparts", {}).get(task, [])],
            }
            for task in given["all"]
        ],
        "members": [
            {
                "id": client["id"],
                "capacity": client["cap"],
                "rack": client.get("rack"),
                "tags": client.get("tags", {}),
                "lags": {task: SENTINELS.get(lag, lag) for task, lag in client["lags"].items()},
            }
            for client in given["clients"]
        ],
    }


def in_order(tasks: list[str]) -> list[str]:
    return sorted(tasks, key=lambda task: tuple(map(int, task.split("_"))))


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".jsonl.gz") for path in VECTORS.glob("ha_*.jsonl.gz")))
def test_answers_are_kafkas(name: str) -> None:
    lines = gzip.decompress((VECTORS / f"{name}.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) >= 8
    for line in lines:
        vector = json.loads(line)
        answer = json.loads(assign_line(json.dumps(question(vector["in"]))))
        assert answer["probing"] == vector["out"]["probing"]
        assert {member: (part["active"], part["standby"], part["warmup"]) for member, part in answer["members"].items()} == {
            member: (in_order(part["active"]), in_order(part["standby"]), []) for member, part in vector["out"]["clients"].items()
        }
