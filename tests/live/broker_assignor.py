"""The assignor inside the brokers (``java/broker-assignor``), compiled, and groups for it: made,
with plans that fit, that do not, and that are none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.lead.broker_seat.broker_plan import MARK, BrokerPlan, Kind, PlanEntry, entries_of, made_for, write_plan
from tests.support.assignor_model import BrokerMember, BrokerTopic, assign, listed
from tools import brokers

JAVA = Path(__file__).parents[2] / "java" / "broker-assignor"
API_POM = JAVA / "pom.xml"
IDS = ("a", "b", "c-1", "é", "\U0001f600", "～", "m" * 40, "A")
"""Two of them are in another order by UTF-16 than by code points."""
RACKS = ("", "", "r1", "r2")


def assignor_jar_classes() -> Path:
    """The folder with the classes of the assignor and of its tests' cases, compiled at the first
    call on this machine. Raises NoBrokerError.
    """
    tried = JAVA / "src/test/java/io/equipoise/broker"
    sources = [*sorted((JAVA / "src/main").rglob("*.java")), *(tried / f"{name}.java" for name in ("Cases", "TaskCases"))]
    libraries = f"{api_jars()}/*"

    def compile_into(part: Path) -> None:
        brokers.run("javac", "-nowarn", "--release", "17", "-cp", libraries, "-d", str(part), *map(str, sources))

    return brokers.cached("broker-assignor", b"".join(source.read_bytes() for source in sources) + libraries.encode(), compile_into, ("javac",))


def api_jars() -> Path:
    """The folder with the jars that the assignor is compiled against."""
    return brokers.jars(API_POM)


def case_of(members: Sequence[BrokerMember], topics: Mapping[bytes, BrokerTopic]) -> dict[str, Any]:
    """A group as JSON, as the vectors have it; `answer` is the model's."""
    order = list(topics)
    at = {topic: index for index, topic in enumerate(order)}
    answer = assign(members, topics)
    told = [[[at[topic], sorted(answer[each.member_id][topic])] for topic in order if topic in answer[each.member_id]] for each in members]
    return {
        "topics": [
            {"id": topic.hex(), "partitions": each.partitions, "racks": [sorted(each.racks.get(number, ())) for number in range(each.partitions)]}
            for topic, each in topics.items()
        ],
        "members": [
            {
                "id": each.member_id,
                "rack": each.rack,
                "topics": sorted(at[topic] for topic in each.topics),
                "held": [[at[topic], sorted(numbers)] for topic, numbers in each.held.items()],
            }
            for each in members
        ],
        "answer": json.dumps(told, separators=(",", ":")),
    }


def problems_of(members: Sequence[BrokerMember], topics: Mapping[bytes, BrokerTopic], answer: str) -> list[str]:
    """What is wrong with an answer, whoever gave it: a partition twice, at a member that does not
    read its topic, or at nobody though no plan holds anything.
    """
    order = list(topics)
    given: dict[tuple[int, int], str] = {}
    found = []
    for member, assigned in zip(members, json.loads(answer), strict=True):
        for index, numbers in assigned:
            for number in numbers:
                if order[index] not in member.topics or not 0 <= number < topics[order[index]].partitions:
                    found.append(f"{member.member_id} has {number} of topic {index}, which it does not read, or which does not exist")
                if (index, number) in given:
                    found.append(f"{member.member_id} and {given[index, number]} have {number} of topic {index}")
                given[index, number] = member.member_id
    if not any(";h" in each.rack or ";-:" in each.rack for each in members):
        read = {topic for each in members for topic in each.topics}
        there = {(index, number) for index, topic in enumerate(order) if topic in read for number in range(topics[topic].partitions)}
        found += [f"nobody has {place}" for place in sorted(there - given.keys())]
    return found


def random_groups(seed: int, count: int) -> Iterator[tuple[list[BrokerMember], dict[bytes, BrokerTopic]]]:
    """Groups in every state, some of them absurd. One in 500 is large."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _random_group(rng, large=rng.random() < 0.002)


def _random_group(rng: random.Random, *, large: bool) -> tuple[list[BrokerMember], dict[bytes, BrokerTopic]]:
    most = 300 if large else 7
    topics = {
        rng.randbytes(1) * 8 + rng.randbytes(8): BrokerTopic(partitions=rng.randrange(most), racks=_racks(rng, most))
        for _ in range(rng.randrange(12 if large else 4))
    }
    ids = [f"member-{number}" for number in range(60)] if large else rng.sample(IDS, rng.randrange(6))
    same = rng.random() < 0.5
    members = [_random_member(rng, name, topics, same=same) for name in ids]
    for name in rng.sample(("seat-1", "seat-2", "zz"), rng.choice((0, 1, 1, 1, 2, 3))):
        carried = _random_member(rng, name, topics, same=rng.random() < 0.1)
        own = carried.topics if rng.random() < 0.2 else frozenset[bytes]()
        members.append(BrokerMember(member_id=name, rack=_random_plan(rng, members, topics), topics=own))
    rng.shuffle(members)
    return members, topics


def _racks(rng: random.Random, partitions: int) -> dict[int, frozenset[str]]:
    return {number: frozenset(rng.sample(("r1", "r2", "r3"), rng.randrange(3))) for number in range(partitions if rng.random() < 0.5 else 0)}


def _random_member(rng: random.Random, name: str, topics: Mapping[bytes, BrokerTopic], *, same: bool) -> BrokerMember:
    reads = frozenset(topics if same else rng.sample(list(topics), rng.randint(0, len(topics))))
    share = rng.choice((0.0, 0.1, 0.3, 0.5, 1.0))
    held = {topic: {n for n in range(each.partitions + rng.choice((0, 0, 0, 1))) if rng.random() < share} for topic, each in topics.items()}
    return BrokerMember(member_id=name, rack=rng.choice(RACKS), topics=reads, held={topic: numbers for topic, numbers in held.items() if numbers})


def _random_plan(rng: random.Random, members: Sequence[BrokerMember], topics: Mapping[bytes, BrokerTopic]) -> str:
    names, read = listed(members, topics)
    wanted: dict[tuple[Kind, int, int], set[int]] = {}
    of = {each.member_id: each.topics for each in members}
    for topic, each in enumerate(read):
        readers = [at for at, name in enumerate(names) if each in of[name]]
        for partition in range(topics[each].partitions):
            if rng.random() < 0.4 and readers:
                kind: Kind = rng.choice(("move", "move", "hold"))
                wanted.setdefault((kind, 0 if kind == "hold" else rng.choice(readers), topic), set()).add(partition)
    entries = [entry for key, numbers in sorted(wanted.items()) for entry in entries_of(*key, numbers)]
    if rng.random() < 0.15:
        kinds: tuple[Kind, ...] = ("move", "hold", "copy", "drop")
        entries.append(PlanEntry(rng.choice(kinds), rng.randrange(8), rng.randrange(4), first := rng.randrange(9), first + rng.randrange(3)))
    foreign = rng.random() < 0.1
    hashed = made_for([*names, "gone"] if foreign else names, read)
    holds, together = rng.random() < 0.2, rng.random() < 0.2
    plan = BrokerPlan(number=rng.randrange(4), made_for=hashed, holds=holds, together=together, entries=tuple(entries))
    text = write_plan(plan)
    if rng.random() < 0.25:
        return _mutated(rng, text)
    return text if rng.random() < 0.95 else rng.choice((MARK, f"{MARK}2;1;-;x", f"{MARK}1", text + ";0:0=0-199999", text + ";0:0=0-99999999"))


def _mutated(rng: random.Random, text: str) -> str:
    chars = list(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(MARK), len(chars) + 1)
        chars[at : at + rng.randrange(2)] = rng.choice(("", "0", "1", "9", ";", ":", "=", "_", "-", "+", "~", "h", "é", "٣"))
    return "".join(chars)
