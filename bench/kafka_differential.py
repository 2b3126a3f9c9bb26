"""`python -m bench.kafka_differential`: random problems, the assignor `kafka_streams` against the
class of the published jar.

Everything that Kafka's answer depends on is drawn: ids that Java orders otherwise than we, many and
few clients, uneven threads, lags and sentinels, tags, racks known and unknown, both strategies,
standbys, warm-ups. Prints how many answers were equal, and the first problem for which one was not.
"""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import click

from bench import kafka_java
from tests.support.assign_json import assign_line

LAGS = (0, 1, 50, 100, 101, 1_000, 2_000, 5_000, 10_000, 150_000, 2**63 - 1, "active", "active", "active", "unknown")
ACCEPTABLE = (0, 100, 1_000, 10_000, 2**63 - 1)
AT_ONCE = 200


def problem(dice: random.Random) -> dict[str, Any]:
    """A problem in the form of `tests.support.assign_json`."""
    racks = [f"r{number}" for number in range(dice.randint(1, 5))]
    strategy = dice.choice(("none", "none", "min_traffic", "balance_subtopology"))
    if strategy == "none" and dice.random() < 0.002:
        return _crowded(dice)
    large = dice.random() < (0.15 if strategy == "none" else 0.08)
    tasks = _tasks(dice, racks, most=60 if large and strategy == "none" else 25 if large else 9)
    keys = [f"k{number}" for number in range(dice.randint(1, 3))] if dice.random() < 0.5 else []
    all_racks = dice.random() < 0.9
    return {
        "assignor": "kafka_streams",
        "config": {
            "acceptable_recovery_lag": dice.choice(ACCEPTABLE),
            "num_standbys": dice.choice((0, 0, 1, 1, 2, 3)),
            "max_warmups": dice.choice((1, 2, 2, 5, 50)),
            "rack_aware_strategy": strategy,
            "rack_traffic_cost": dice.choice((0, 1, 10, 10, 4)),
            "rack_non_overlap_cost": dice.choice((0, 1, 1, 5, 20)),
            "rack_aware_tags": [key for key in keys if dice.random() < 0.8],
        },
        "tasks": tasks,
        "members": [
            {
                "id": member_id,
                "capacity": dice.choice((1, 1, 2, 3, 4, 7)),
                "rack": dice.choice(racks) if all_racks or dice.random() < 0.8 else None,
                "tags": {key: dice.choice("abcd"[: 2 + index]) for index, key in enumerate([*keys, "other"]) if dice.random() < 0.9},
                "lags": {task["id"]: dice.choice(LAGS) for task in tasks if task["stateful"] and dice.random() < 0.8},
            }
            for member_id in _ids(dice, dice.randint(1, 40 if large else 9))
        ],
    }


def _crowded(dice: random.Random) -> dict[str, Any]:
    """Tasks so many that Java's maps keep them in trees, and clients of whom few differ in every
    tag.
    """
    subtopologies, partitions = dice.randint(10, 16), dice.randint(260, 320)
    return {
        "assignor": "kafka_streams",
        "config": {"num_standbys": dice.choice((2, 3)), "rack_aware_tags": ["zone", "cluster"]},
        "tasks": [
            {"id": f"{subtopology}_{partition}", "stateful": True, "end_offset": 1_000}
            for subtopology in range(subtopologies)
            for partition in range(partitions)
        ],
        "members": [
            {"id": member_id, "capacity": dice.choice((1, 1, 2, 3)), "tags": {"zone": dice.choice("abc"), "cluster": dice.choice("xyz")}, "lags": {}}
            for member_id in _ids(dice, dice.randint(5, 9))
        ],
    }


def _ids(dice: random.Random, count: int) -> list[str]:
    """UUIDs: anywhere in the range, or close to each other."""
    if dice.random() < 0.2:
        first = dice.choice((0, 2**63 - 3, 2**64 - 3, 2**127 - 3, 2**127 + 2**63 - 3, 2**128 - 60))
        return [str(uuid.UUID(int=first + number)) for number in range(count)]
    return [str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(count)]


def _tasks(dice: random.Random, racks: list[str], most: int) -> list[dict[str, Any]]:
    some_unknown = dice.random() < 0.05
    tasks = []
    for subtopology in range(dice.choice((1, 1, 2, 3, 5))):
        stateful = dice.random() < 0.75
        sources = dice.randint(1, 2)
        for partition in range(dice.randint(1, most)):

            def partitions(prefix: str, count: int, partition: int = partition, subtopology: int = subtopology) -> list[dict[str, Any]]:
                return [
                    {
                        "topic": f"{prefix}{subtopology}{number}",
                        "partition": partition,
                        "racks": [] if some_unknown and dice.random() < 0.1 else dice.sample(racks, dice.randint(1, min(3, len(racks)))),
                    }
                    for number in range(count)
                ]

            tasks.append(
                {
                    "id": f"{subtopology}_{partition}",
                    "stateful": stateful,
                    "end_offset": dice.choice((0, 60, 5_000, 200_000)) if stateful else 0,
                    "source": partitions("t", sources),
                    "changelog": partitions("c", 1) if stateful else [],
                }
            )
    return tasks


def ours(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of the assignor, in the driver's form."""
    answer = json.loads(assign_line(json.dumps(question)))
    assert all(not part["revoke"] and not part["warmup"] for part in answer["members"].values()), "nobody owned anything"
    return {
        "probing": answer["probing"],
        "members": {name: {"active": part["active"], "standby": part["standby"]} for name, part in answer["members"].items()},
    }


@click.command()
@click.option("--problems", default=10_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
def differential(problems: int, seed: int) -> None:
    """Compares PROBLEMS random ones; ends with 1 at the first batch with a difference."""
    dice = random.Random(seed)
    equal = rack_aware = 0
    while equal < problems:
        batch = [problem(dice) for _ in range(min(AT_ONCE, problems - equal))]
        for question, answer in zip(batch, kafka_java.assigned(batch), strict=True):
            rack_aware += answer.pop("rack_aware", False)
            answer.pop("nanos", None)
            if ours(question) != answer:
                raise click.ClickException(f"after {equal} equal answers:\n{json.dumps(question)}\nKafka: {json.dumps(answer)}")
            equal += 1
        click.echo(f"{equal} equal, {rack_aware} of them rack-aware")


if __name__ == "__main__":
    differential()
