"""The assignor inside the brokers beside its model in Python, and how long it takes.

``python -m bench.broker_differential [--groups 1000000] [--seed 1]`` compares both over made
groups and plans, and checks each answer; ``--speed`` measures `assign` with 1,000 members and
50,000 partitions by JMH, in a Java as Kafka starts it. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.live.broker_assignor import JAVA, api_jars, assignor_jar_classes, case_of, problems_of, random_groups
from tests.live.broker_tasks import random_task_groups, task_case, task_problems
from tools.brokers import FAST_JAVA, classes, jars

AT_ONCE = 5_000


def java(lines: str) -> list[str]:
    """What the assignor answers to lines of groups."""
    command = ["java", "-Xmx512m", "-cp", f"{assignor_jar_classes()}:{api_jars()}/*", "io.equipoise.broker.Cases"]
    return subprocess.run(command, input=lines, capture_output=True, encoding="utf-8", check=True).stdout.splitlines()


def measured() -> list[str]:
    """Returns how long `assign` takes, a line for each thing to do, by JMH."""
    source = JAVA / "src/jmh/java/io/equipoise/broker/AssignBenchmark.java"
    classpath = f"{assignor_jar_classes()}:{api_jars()}/*:{jars(JAVA / 'jmh.xml')}/*"
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        started = ["java", *FAST_JAVA, "-cp", f"{classes(source, classpath)}:{classpath}", "org.openjdk.jmh.Main"]
        subprocess.run([*started, "-rf", "json", "-rff", str(results)], stdout=sys.stderr, check=True)
        found = json.loads(results.read_text())
    lines = []
    for each in found:
        at = each["primaryMetric"]["scorePercentiles"]
        given = f"{int(each['params']['members']):,} members, {int(each['params']['partitions']):,} partitions"
        lines.append(f"{each['params']['what']}: p50 {at['50.0']:.2f} ms, p99 {at['99.0']:.2f} ms, p99.9 {at['99.9']:.2f} ms ({given})")
    return lines


def compared(seed: int, count: int) -> Counter[str]:
    """Compares so many groups. Raises AssertionError at the first difference."""
    seen: Counter[str] = Counter()
    groups = random_groups(seed, count)
    while some := list(itertools.islice(groups, AT_ONCE)):
        cases = [case_of(members, topics) for members, topics in some]
        answers = java("".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in cases))
        for (members, topics), case, answer in zip(some, cases, answers, strict=True):
            assert answer == case["answer"], f"Java: {answer}\n{json.dumps(case, ensure_ascii=False)}"
            problems = problems_of(members, topics, answer)
            assert not problems, f"{problems}\n{json.dumps(case, ensure_ascii=False)}"
        seen["groups"] += len(some)
        print(f"\r{seen['groups']:,} groups, equal", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return seen


def compared_tasks(seed: int, count: int) -> int:
    """The same for groups of Kafka Streams. Returns how many."""
    groups, seen = random_task_groups(seed, count), 0
    while some := list(itertools.islice(groups, AT_ONCE)):
        cases = [task_case(*group) for group in some]
        answers = java("".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in cases))
        for group, case, answer in zip(some, cases, answers, strict=True):
            assert answer == case["answer"], f"Java: {answer}\n{json.dumps(case, ensure_ascii=False)}"
            problems = task_problems(*group, answer)
            assert not problems, f"{problems}\n{json.dumps(case, ensure_ascii=False)}"
        seen += len(some)
        print(f"\r{seen:,} groups of Kafka Streams, equal", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return seen


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.broker_differential", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=100_000, help="how many groups to compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", action="store_true", help="measure instead")
    given = parser.parse_args(arguments)
    if given.speed:
        print(*measured(), sep="\n")
    else:
        print(json.dumps({"seed": given.seed, **compared(given.seed, given.groups), "streams": compared_tasks(given.seed, given.groups)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
