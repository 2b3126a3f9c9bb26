"""One decision of `high_availability` over one of Kafka Streams' own class, warm, in the same run on the same machine.

Ours: from the frozen problem to the plan with its reasons, judged by `plan_faults`. Java's: `HighAvailabilityTaskAssignor.assign` alone, in one JVM,
its first turns dropped. Times are of the CPU, of the thread that decides, and of both the best turn counts: so what else the machine does plays
little part. Groups are as at their start: nobody runs anything and no copy is reported, as Kafka's own scale test begins.

Needs a JDK 17 and Maven; without them there are no rows, and a word why.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from typing import Any

import attrs

from assignors import registry
from assignors.problem import AssignmentProblem
from assignors.validation import plan_faults
from assignors.wire import problem_of
from bench import kafka_java

WARM_TURNS = 30
WARM_MOST_S = 20
"""Java's turns end after so many seconds; a first one that takes longer counts as it is."""
OUR_TURNS = 3
SUBTOPOLOGIES = 10
END_OFFSET = 100_000


@attrs.frozen
class Case:
    """A group at its start. `goal`: ours over Java's."""

    tasks: int
    members: int
    standbys: int
    goal: float = 1.0

    def __str__(self) -> str:
        return f"{self.tasks:,} tasks, {self.members:,} members, {self.standbys} standbys"


CASES = (Case(6_000, 2, 1, goal=2.0), Case(1_000, 1_000, 1), Case(1_000, 100, 50))


def question(case: Case) -> dict[str, Any]:
    """In the form of `equipoise assign`, which the Java driver reads, too."""
    dice = random.Random(1)
    return {
        "config": {"num_standbys": case.standbys},
        "tasks": [
            {"id": f"{number % SUBTOPOLOGIES}_{number // SUBTOPOLOGIES}", "stateful": True, "end_offset": END_OFFSET} for number in range(case.tasks)
        ],
        "members": [{"id": str(uuid.UUID(int=dice.getrandbits(128), version=4))} for _ in range(case.members)],
    }


def our_seconds(problem: AssignmentProblem, turns: int = OUR_TURNS) -> float:
    """The best of some turns."""
    assignor = registry.latest("high_availability")
    spent = []
    for _ in range(turns):
        started = time.thread_time()
        plan = assignor.assign(problem)
        faults = plan_faults(problem, plan, assignor.guarantees)
        spent.append(time.thread_time() - started)
        assert not faults, faults
    return min(spent)


def java_seconds(asked: dict[str, Any]) -> float:
    """The best of the warm turns: of the second half of them, or of the only one."""
    nanos = kafka_java.assigned([asked], turns=WARM_TURNS, most_s=WARM_MOST_S)[0]["nanos"]
    return float(min(nanos[len(nanos) // 2 :])) / 1e9


def row(case: Case) -> tuple[str, float, str]:
    """One row for `python -m bench`."""
    asked = question(case)
    ours, java = our_seconds(problem_of(json.dumps(asked))[2]), java_seconds(asked)
    return (f"{case}: ours / warm Java", float(f"{ours / java:.2g}"), f"{ours:.3f} s over {java:.3f} s; goal: at most {case.goal:g}")


def run() -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    if not kafka_java.available():
        return [("Java beside ours", 0.0, "not measured: java, javac or mvn is not installed (JDK 17 and Maven)")]
    return [row(case) for case in CASES]
