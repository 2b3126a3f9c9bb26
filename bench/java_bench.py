"""One decision of `high_availability` over one of Kafka Streams' own class, warm, in the same run
on the same machine.

Ours: from the frozen problem to the plan with its reasons, judged by `plan_faults`. Java's:
`HighAvailabilityTaskAssignor.assign` alone, in one JVM, its first turns dropped. Times are of the
CPU, of the thread that decides, and of both the best turn counts: so what else the machine does
plays little part. Groups are as at their start: nobody runs anything and no copy is reported, as
Kafka's own scale test begins.

In rows with racks there are five, each task reads two partitions with two replicas each, and the
strategy is KIP-925's for the least traffic; what is read across racks is said of both. Groups that
Java is not asked about, because it would not end, are held against a time in seconds.

The Java rows need a JDK 17 and Maven; without them there is a word why.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import random
import subprocess
import time
import uuid
from collections.abc import Mapping
from typing import Any

import attrs

from bench import kafka_java
from bench.memory import peak_mb
from equipoise.assignors import AssignmentProblem, Plan, registry
from equipoise.assignors.common.validation import plan_faults
from tests.support.assign_json import problem_of

WARM_TURNS = 30
WARM_MOST_S = 20
"""Java's turns end after so many seconds; a first one that takes longer counts as it is."""
JAVA_MOST_S = 120
"""Then it is stopped."""
OUR_TURNS = 3
SUBTOPOLOGIES = 10
END_OFFSET = 100_000
RACKS = tuple("abcde")


@attrs.frozen
class Case:
    """A group at its start. `goal`: ours over Java's; in `ALONE` the seconds it may take."""

    tasks: int
    members: int
    standbys: int = 0
    racks: bool = False
    goal: float = 1.0

    def __str__(self) -> str:
        return f"{self.tasks:,} tasks, {self.members:,} members, {self.standbys} standbys{', racks' if self.racks else ''}"


CASES = (
    Case(6_000, 2, 1, goal=2.0),
    Case(1_000, 1_000, 1),
    Case(1_000, 100, 50),
    Case(100, 10, racks=True),
    Case(200, 20, racks=True),
    Case(400, 40, racks=True),
    Case(800, 80, racks=True),
)
ALONE = (Case(800, 80, racks=True, goal=0.05), Case(6_000, 1_000, 1, racks=True, goal=1.0), Case(100_000, 10_000, racks=True, goal=5.0))
MOST_MB = 2_000


def question(case: Case) -> dict[str, Any]:
    """In the form of `tests.support.assign_json`, which the Java driver reads, too."""
    dice = random.Random(1)
    tasks = []
    for number in range(case.tasks):
        subtopology, partition = number % SUBTOPOLOGIES, number // SUBTOPOLOGIES
        task: dict[str, Any] = {"id": f"{subtopology}_{partition}", "stateful": True, "end_offset": END_OFFSET}
        if case.racks:
            for field, topics in (("source", ("left", "right")), ("changelog", ("log",))):
                task[field] = [{"topic": f"{topic}-{subtopology}", "partition": partition, "racks": dice.sample(RACKS, 2)} for topic in topics]
        tasks.append(task)
    members = [{"id": str(uuid.UUID(int=dice.getrandbits(128), version=4))} for _ in range(case.members)]
    if case.racks:
        members = [{**member, "rack": dice.choice(RACKS)} for member in members]
    return {
        "config": {"num_standbys": case.standbys, "rack_aware_strategy": "min_traffic" if case.racks else "none"},
        "tasks": tasks,
        "members": members,
    }


def remote_reads(asked: Mapping[str, Any], active: Mapping[str, list[str]]) -> int:
    """Source partitions of which no replica is in the rack of the member that runs the task."""
    sources = {task["id"]: task.get("source", []) for task in asked["tasks"]}
    rack = {member["id"]: member.get("rack") for member in asked["members"]}
    return sum(rack[member] not in partition["racks"] for member, tasks in active.items() for task in tasks for partition in sources[task])


def decided(problem: AssignmentProblem, turns: int = OUR_TURNS) -> tuple[float, Plan]:
    """Seconds of the best of some turns, and the plan."""
    assignor = registry.latest("high_availability")
    spent = []
    for _ in range(turns):
        started = time.thread_time()
        plan = assignor.assign(problem)
        faults = plan_faults(problem, plan, assignor.guarantees)
        spent.append(time.thread_time() - started)
        assert not faults, faults
    return min(spent), plan


def our_seconds(problem: AssignmentProblem, turns: int = OUR_TURNS) -> float:
    """The best of some turns."""
    return decided(problem, turns)[0]


def beside_java(case: Case) -> tuple[str, float, str]:
    """One row for `python -m bench`."""
    asked = question(case)
    ours_s, plan = decided(problem_of(json.dumps(asked))[2])
    what = f"{case}: ours / warm Java"
    try:
        answer = kafka_java.assigned([asked], turns=WARM_TURNS, most_s=WARM_MOST_S, timeout_s=JAVA_MOST_S)[0]
    except subprocess.TimeoutExpired:
        ratio, java = ours_s / JAVA_MOST_S, f"Java's, stopped after {JAVA_MOST_S} s"
    else:
        java_s = min(answer["nanos"][len(answer["nanos"]) // 2 :]) / 1e9  # the second half of its turns, or the only one
        ratio, java = ours_s / java_s, f"{java_s:.3f} s"
        if case.racks:
            theirs = remote_reads(asked, {name: part["active"] for name, part in answer["members"].items()})
            java += f"; read across racks {remote_reads(asked, _texts(plan))}, Java {theirs}"
    return what, float(f"{ratio:.2g}"), f"{ours_s:.3f} s over {java}; goal: at most {case.goal:g}"


def _texts(plan: Plan) -> dict[str, list[str]]:
    return {name: [str(task) for task in part.active] for name, part in plan.members.items()}


def alone(case: Case) -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`, from a process of its own, whose memory is that of the problem,
    the decision and what Python has loaded.
    """
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds, peak_mb = pool.submit(_alone, case).result()
    return [
        (f"{case}: ours, over {case.goal:g} s", float(f"{seconds / case.goal:.2g}"), f"{seconds:.2f} s; goal: at most 1"),
        (f"{case}: peak memory, over {MOST_MB:,} MB", float(f"{peak_mb / MOST_MB:.2g}"), f"{peak_mb:,.0f} MB; goal: at most 1"),
    ]


def _alone(case: Case) -> tuple[float, float]:
    problem = problem_of(json.dumps(question(case)))[2]
    return our_seconds(problem, turns=2), peak_mb()


def run() -> list[tuple[str, float, str]]:
    """Rows for `python -m bench`."""
    if kafka_java.available():
        rows = [beside_java(case) for case in CASES]
    else:
        rows = [("ours beside Java", 0.0, "not measured: java, javac or mvn is not installed (JDK 17 and Maven)")]
    return rows + [row for case in ALONE for row in alone(case)]
