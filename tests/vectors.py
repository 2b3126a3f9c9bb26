"""Recorded answers of the Java assignors, and the same questions as problems of `equipoise assign`.

`python -m tests.vectors lag FILE...` says how many of a file's vectors come out equal, and shows the first that does not. A file holds one object a
line, ``{"in": ..., "out": ...}``, and may be gzipped.

lag    in: {"lags": {topic: [lag by partition]}, "subs": {member: [topics]}}; out: {member: ["topic-partition" in the order of assignment]}
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assignors.wire import assign_line

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
    """What each member is assigned, as `equipoise assign` says it."""
    plan = json.loads(assign_line(json.dumps(lag_problem(given))))
    return {member: part["active"] for member, part in plan["members"].items()}


ANSWERS: dict[str, Callable[[dict[str, Any]], Any]] = {"lag": lag_answer}


def main(arguments: list[str]) -> int:
    """See the module. 1 when any is not equal."""
    kind, *paths = arguments
    unequal = 0
    for path in paths:
        equal = total = 0
        for vector in vectors(Path(path)):
            total += 1
            answer = ANSWERS[kind](vector["in"])
            if answer == vector["out"]:
                equal += 1
            elif not unequal:
                print(f"{path}:{total}\nin       {json.dumps(vector['in'])}\nexpected {json.dumps(vector['out'])}\nanswer   {json.dumps(answer)}")
        unequal += total - equal
        print(f"{path}: {equal} of {total} equal")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
