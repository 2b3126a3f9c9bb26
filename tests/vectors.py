"""Recorded answers of the Java assignors, and the same questions as lines of JSON
(`tests.support.assign_json`).

`python -m tests.vectors lag FILE...` says how many of a file's vectors come out equal, and shows
the first that does not; `connect` likewise. A file holds one object a line, ``{"in": ..., "out":
...}``, and may be gzipped.

lag
    in: {"lags": {topic: [lag by partition]}, "subs": {member: [topics]}}; out: {member:
    ["topic-partition" in the order of assignment]}

connect
    in: {"maxDelay": ms, "steps": [{"op": ...}]}; out: {"rounds": [{"delay": ms, "scheduled": ms,
    "w": {worker: {"ac": ..., "at": ..., "rc": ..., "rt": ...}}}]}: connectors and tasks newly
    assigned, in that order, and revoked, in any order. The clock begins at 1,000,000. Steps: join,
    leave (w), conf (c, n tasks), del (c), sleep (ms), sleepdelay, claim (w, from: w says that it
    runs what the other runs, too); and the rounds: rebalance, fail (no worker gets the decision),
    mismatch (the leader has not seen the last generation through). `connect_problem` has the
    mapping: a connector is a task of sub-topology 0, in the order of names; its tasks are the
    sub-topology after its place. Each round is one problem: it has what workers report, in their
    own order, and the memory of the last plan.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from equipoise.events.java_order import text_key
from tests.support.assign_json import assign_line

FOLDER = Path(__file__).parent / "data" / "vectors"


def vectors(path: Path) -> Iterator[dict[str, Any]]:
    """The vectors of a file."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def lag_problem(given: dict[str, Any]) -> dict[str, Any]:
    """A group of plain consumers, for `lag_aware`."""
    return {
        "assignor": "lag_aware",
        "tasks": [
            {"id": f"{topic}-{partition}", "topic": topic, "partition": partition, "lag": lag}
            for topic, lags in given["lags"].items()
            for partition, lag in enumerate(lags)
        ],
        "members": [{"id": member, "topics": topics} for member, topics in given["subs"].items()],
    }


def lag_answer(given: dict[str, Any]) -> dict[str, list[str]]:
    """What each member is assigned."""
    plan = json.loads(assign_line(json.dumps(lag_problem(given))))
    return {member: part["active"] for member, part in plan["members"].items()}


CONNECT_STARTS_MS = 1_000_000


class ConnectScript:
    """A group of Connect's workers that does what plans of `kafka_connect` say, as its vectors tell
    it.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.max_delay_ms = given["maxDelay"]
        self.places = {name: place for place, name in enumerate(sorted({step["c"] for step in given["steps"] if "c" in step}, key=text_key))}
        self.names = list(self.places)
        self.now_ms = CONNECT_STARTS_MS
        self.configured: dict[str, int] = {}
        self.workers: dict[str, list[str]] = {}
        self.memory: dict[str, Any] = {}

    def play(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the rounds among the steps decide, in the form of the vectors."""
        return [self.round(step["op"]) for step in steps if not self.happens(step)]

    def happens(self, step: dict[str, Any]) -> bool:
        """Does what one step says; False: it is a round."""
        match step:
            case {"op": "join", "w": worker}:
                self.workers.setdefault(worker, [])
            case {"op": "leave", "w": worker}:
                self.workers.pop(worker, None)
            case {"op": "conf", "c": connector, "n": count}:
                self.configured[connector] = count
            case {"op": "del", "c": connector}:
                self.configured.pop(connector, None)
            case {"op": "sleep", "ms": sleep_ms}:
                self.now_ms += sleep_ms
            case {"op": "sleepdelay"}:
                self.now_ms += self.memory.get("delay_ms", 0)
            case {"op": "claim", "w": worker, "from": other}:
                claimed = self.workers.get(other, []) if worker in self.workers else []
                self.workers[worker] = list(dict.fromkeys([*self.workers.get(worker, []), *claimed]))
            case _:
                return False
        return True

    def problem(self) -> dict[str, Any]:
        """The next round."""
        tasks = [f"0_{self.places[name]}" for name in self.configured]
        tasks += [f"{self.places[name] + 1}_{number}" for name, count in self.configured.items() for number in range(count)]
        return {
            "assignor": "kafka_connect",
            "config": {"options": {"connectors": 0, "scheduled_delay_ms": self.max_delay_ms}},
            "now_ms": self.now_ms,
            "tasks": [{"id": task, "stateful": False} for task in tasks],
            "members": [{"id": worker, "reported": has} for worker, has in self.workers.items()],
            "memory": self.memory,
        }

    def round(self, kind: str) -> dict[str, Any]:
        if kind == "mismatch":
            self.memory.pop("assigned_tasks", None)
        plan = json.loads(assign_line(json.dumps(self.problem())))
        self.memory = plan["memory"]
        said = {}
        for worker, part in plan["members"].items():
            granted = [task for task in part["active"] if task not in self.workers[worker]]
            said[worker] = {
                "ac": [self.name(task) for task in granted if task.startswith("0_")],
                "at": [self.name(task) for task in granted if not task.startswith("0_")],
                "rc": [self.name(task) for task in part["revoke"] if task.startswith("0_")],
                "rt": [self.name(task) for task in part["revoke"] if not task.startswith("0_")],
            }
            if kind != "fail":
                self.workers[worker] = [task for task in self.workers[worker] if task not in part["revoke"]] + granted
        return {"delay": self.memory["delay_ms"], "scheduled": self.memory["scheduled_ms"], "w": said}

    def name(self, task: str) -> str:
        place, number = map(int, task.split("_"))
        return self.names[number] if place == 0 else f"{self.names[place - 1]}-{number}"


def in_any_order(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rounds of Connect, with what is revoked sorted."""
    return [
        {**each, "w": {name: {**part, "rc": sorted(part["rc"]), "rt": sorted(part["rt"])} for name, part in each["w"].items()}} for each in rounds
    ]


def connect_answer(given: dict[str, Any]) -> dict[str, Any]:
    """What the rounds of a script decide."""
    return {"rounds": in_any_order(ConnectScript(given).play(given["steps"]))}


ANSWERS: dict[str, Callable[[dict[str, Any]], Any]] = {"lag": lag_answer, "connect": connect_answer}


def main(arguments: list[str]) -> int:
    """See the module. 1 when any is not equal."""
    kind, *paths = arguments
    unequal = 0
    for path in paths:
        equal = total = 0
        for vector in vectors(Path(path)):
            total += 1
            answer = ANSWERS[kind](vector["in"])
            expected = {"rounds": in_any_order(vector["out"]["rounds"])} if kind == "connect" else vector["out"]
            if answer == expected:
                equal += 1
            elif not unequal:
                print(f"{path}:{total}\nin       {json.dumps(vector['in'])}\nexpected {json.dumps(vector['out'])}\nanswer   {json.dumps(answer)}")
        unequal += total - equal
        print(f"{path}: {equal} of {total} equal")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
