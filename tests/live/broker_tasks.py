"""Groups of Kafka Streams for the assignor inside the brokers: made, with plans that fit, that do
not, and that are none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.lead.broker_seat.broker_plan import BrokerPlan, Kind, PlanEntry, in_order, made_for, write_plan
from tests.live.broker_assignor import IDS
from tests.support.task_assignor_model import TaskMember, TaskPart, assign_tasks, listed_parts

PARTS = ("0", "1", "10", "2", "é")

Group = tuple[list[TaskMember], dict[str, TaskPart], list[str]]


def task_case(members: Sequence[TaskMember], parts: Mapping[str, TaskPart], tags: Sequence[str]) -> dict[str, Any]:
    """A group as JSON, as the vectors have it; `answer` is the model's."""
    at = {name: index for index, name in enumerate(parts)}
    answer = assign_tasks(members, parts, tags)

    def shown(tasks: Mapping[str, Any]) -> list[Any]:
        return [[at[name], sorted(tasks[name])] for name in parts if tasks.get(name)]

    told = [[shown(answer[each.member_id].active), shown(answer[each.member_id].standby)] for each in members]
    return {
        "parts": [{"id": name, "partitions": each.partitions, "stateful": int(each.stateful)} for name, each in parts.items()],
        "tags": list(tags),
        "members": [
            {
                "id": each.member_id,
                "process": each.process,
                "active": shown(each.active),
                "standby": shown(each.standby),
                "offsets": [[at[part], number, offset] for part, offsets in each.offsets.items() for number, offset in offsets.items()],
            }
            for each in members
        ],
        "answer": json.dumps(told, separators=(",", ":")),
    }


def task_problems(members: Sequence[TaskMember], parts: Mapping[str, TaskPart], tags: Sequence[str], answer: str) -> list[str]:
    """What is wrong with an answer: a task twice, or at nobody though no plan holds anything; a
    copy of what has no state, beside its task or twice in a process.
    """
    order = list(parts)
    runs: dict[tuple[int, int], str] = {}
    held: dict[tuple[int, int], list[str]] = {}
    found = []
    for member, (active, standby) in zip(members, json.loads(answer), strict=True):
        for index, numbers in active:
            for number in numbers:
                if (index, number) in runs or not 0 <= number < parts[order[index]].partitions:
                    found.append(f"{member.member_id} runs {index}_{number}, which another one runs, or which does not exist")
                runs[index, number] = member.process
        for index, numbers in standby:
            for number in numbers:
                held.setdefault((index, number), []).append(member.process)
    for task, processes in held.items():
        if not parts[order[task[0]]].stateful or len(set(processes)) < len(processes) or runs.get(task) in processes:
            found.append(f"{task} has copies in {processes}, and runs in {runs.get(task)}")
    if members and not any(";h" in tag or ";-:" in tag for tag in tags):
        there = {(index, number) for index, name in enumerate(order) for number in range(parts[name].partitions)}
        found += [f"nobody runs {task}" for task in sorted(there - runs.keys())]
    return found


def random_task_groups(seed: int, count: int) -> Iterator[Group]:
    """Groups in every state, some of them absurd."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = {name: TaskPart(partitions=rng.randrange(6), stateful=rng.random() < 0.7) for name in rng.sample(PARTS, rng.randrange(len(PARTS)))}
        members = [_member(rng, name, parts) for name in rng.sample(IDS, rng.randrange(6))]
        tags = [_plan(rng, members, parts) for _ in range(rng.choice((0, 1, 1, 1, 2)))] + rng.choice(([], ["zone"]))
        yield members, parts, tags


def _member(rng: random.Random, name: str, parts: Mapping[str, TaskPart]) -> TaskMember:
    share = rng.choice((0.0, 0.2, 0.5))

    def some() -> dict[str, set[int]]:
        found = {part: {n for n in range(each.partitions + rng.choice((0, 0, 1))) if rng.random() < share} for part, each in parts.items()}
        return {part: numbers for part, numbers in found.items() if numbers}

    offsets = {part: {number: rng.choice((-2, 0, 1, 7, 2**63 - 1)) for number in numbers} for part, numbers in some().items()}
    return TaskMember(member_id=name, process=rng.choice(("p1", "p2", name)), active=some(), standby=some(), offsets=offsets)


def _plan(rng: random.Random, members: Sequence[TaskMember], parts: Mapping[str, TaskPart]) -> str:
    names, order = in_order(each.member_id for each in members), listed_parts(parts)
    entries: list[PlanEntry] = []
    for topic, part in enumerate(order):
        for number in range(parts[part].partitions):
            if names and rng.random() < 0.4:
                kind: Kind = rng.choice(("move", "move", "copy", "copy", "drop", "hold"))
                entries.append(PlanEntry(kind, 0 if kind == "hold" else rng.randrange(len(names)), topic, number, number))
    if rng.random() < 0.15:
        kind = rng.choice(("move", "copy"))
        entries.append(PlanEntry(kind, rng.randrange(8), rng.randrange(5), first := rng.randrange(6), first + rng.randrange(3)))
    hashed = made_for([*names, "gone"] if rng.random() < 0.1 else names, [part.encode() for part in order])
    text = write_plan(BrokerPlan(number=rng.randrange(4), made_for=hashed, holds=rng.random() < 0.2, entries=tuple(entries)))
    return text if rng.random() < 0.9 else text.replace(";", rng.choice(("", ";;", "_")), 1)
