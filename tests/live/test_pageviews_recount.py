"""The results of examples/pageviews.py on a real broker are recounted, with both guarantees: a
member is killed, all restart one after the other, a third one joins, and a second application reads
all of the input again, some partitions only when it is through with the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.kafka.client import ConsumedRecord, TopicPartition, Unsent, acknowledged, partition_of_key
from equipoise.kafka.connection import Connection
from tests.live.kafka import reader
from tests.live.test_pageviews import send_clicks
from tests.live.test_restorer import make_topic, producing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pageviews.py"
PARTITIONS, USERS, CLICKS = 4, 200, 12_000
COUNTRIES = ["SE", "NO", "DE"]
BEGIN_MS = 1_700_000_000_000 // 60_000 * 60_000
END_MS = BEGIN_MS + 36_000_000
"""A click that closes all sessions of its partition."""
GAP_MS = 30_000
MOST_S = 240
MAIN = """
import os


async def enrich_in_another_order(record, context):
    global waited
    if context.task.partition % 2 and not waited:
        await asyncio.sleep(15)
        waited = True
    enrich(record, context)

waited = os.environ["ORDER"] == "usual"
if __name__ == "__main__":
    PROCESSORS[0] = Processor(enrich_in_another_order, sources=PROCESSORS[0].inputs, state=PROCESSORS[0].state, outputs=PROCESSORS[0].outputs)
    options = {**OPTIONS, "guarantee": os.environ["GUARANTEE"]}
    member = Member(
        "GROUP", processors=PROCESSORS, create_topics=True, member_id=sys.argv[1], lead=True, prefix="GROUP", state_directory=f"GROUP-{sys.argv[1]}",
        on_sigterm="restart", session_timeout_ms=10_000, **options,
    )
    sys.exit(asyncio.run(member.run()))
"""


def click(number: int) -> tuple[int, int]:
    """User and time of a click: 20 a second with a pause after each 3,000, some of them late."""
    return number * 7 % USERS, BEGIN_MS + number * 50 + number // 3_000 * 2 * GAP_MS - (2_000 if number % 50 == 49 else 0)


def key_of(user: int) -> bytes:
    return b"u%d" % user


@attrs.define
class Application:
    """Processes of the example in one group. `name`: of the group; its topics begin with it."""

    name: str
    bootstrap: str
    inputs: str
    folder: Path
    guarantee: str
    order: str
    processes: dict[str, subprocess.Popen[bytes]] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        text, _, _ = EXAMPLE.read_text(encoding="utf-8").partition("if __name__")
        for topic in ("clicks", "users"):
            text = text.replace(f'"{topic}"', f'"{self.inputs}-{topic}"')
        text = text.replace('"pv-', f'"{self.name}-')
        (self.folder / f"{self.name}.py").write_text(text + MAIN.replace("GROUP", self.name))

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start(self, *members: str) -> None:
        environment = {
            **os.environ,
            "EQUIPOISE_BOOTSTRAP": self.bootstrap,
            "PYTHONPATH": str(ROOT),
            "GUARANTEE": self.guarantee,
            "ORDER": self.order,
        }
        for member in members:
            command = [sys.executable, f"{self.name}.py", member]
            self.processes[member] = subprocess.Popen(command, cwd=self.folder, env=environment)

    def kill(self, member: str) -> None:
        self.processes[member].kill()
        self.processes[member].wait()

    async def restart(self, member: str) -> None:
        self.processes[member].send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.processes[member].wait, MOST_S) == 0
        self.start(member)

    async def read(self, topic: str, wanted: int, holds: Any = len) -> list[ConsumedRecord]:
        """The committed records of an output, once `holds` of them is at least `wanted`."""
        found: list[ConsumedRecord] = []
        async with asyncio.timeout(MOST_S), reader(Connection(bootstrap=self.bootstrap), read_committed=True) as consumer:
            partitions = [TopicPartition(f"{self.name}-{topic}", partition) for partition in range(PARTITIONS)]
            consumer.assign(partitions)
            while not consumer.partitions_for_topic(f"{self.name}-{topic}"):  # noqa: ASYNC110  # it is asked for again and again
                await asyncio.sleep(0.5)
            for at, offset in (await consumer.beginning_offsets(partitions)).items():
                consumer.seek(at, offset)
            while holds(found) < wanted:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += records
        return found


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_results_are_those_of_a_recount(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str) -> None:
    for topic in ("clicks", "users"):
        await make_topic(bootstrap, f"{prefix}-{topic}", PARTITIONS, **{"retention.ms": "-1"})
    with ExitStack() as stack:
        usual, other = (
            stack.enter_context(Application(f"{prefix}-{order}", bootstrap, prefix, tmp_path, guarantee, order)) for order in ("usual", "other")
        )
        async with producing(bootstrap) as producer:
            await send_clicks(producer, f"{prefix}-clicks", clicks(0, 2), PARTITIONS)
            for user in range(USERS):  # behind the clicks, and later than all of them
                value = json.dumps({"country": COUNTRIES[user % 3]}).encode()
                await producer.send(f"{prefix}-users", value, key=key_of(user), partition=partition_of_key(key_of(user), PARTITIONS))
            await producer.flush()
            usual.start("m1", "m2")
            await usual.read("counts", CLICKS // 10)
            usual.kill("m1")
            usual.start("m1")
            await send_clicks(producer, f"{prefix}-clicks", clicks(2, 3), PARTITIONS)
            await usual.read("counts", CLICKS * 6 // 10)
            usual.start("m3")
            for member in ("m1", "m2"):
                await usual.restart(member)
            await send_clicks(producer, f"{prefix}-clicks", clicks(3, 4), PARTITIONS)
            last = [TopicPartition(f"{prefix}-clicks", partition) for partition in range(PARTITIONS)]
            end: Unsent = (b"end", b'{"page": "/end"}', [], END_MS)
            await acknowledged(batch for each in last for batch in producer.send_batches(each, [end]))
        await recount(usual, guarantee)
        other.start("m1")
        await recount(other, guarantee)


def clicks(begin: int, end: int) -> list[tuple[int, int, int]]:
    """User, time and page of the clicks between two quarters."""
    return [(*click(number), number) for number in range(CLICKS * begin // 4, CLICKS * end // 4)]


def text_of(record: ConsumedRecord) -> str:
    assert record.key is not None
    return record.key.decode()


def pages_of(views: list[ConsumedRecord]) -> set[str]:
    return {json.loads(each.value or b"")["page"] for each in views}


async def recount(application: Application, guarantee: str) -> None:
    """Compares the outputs with what the clicks must give. With at_least_once the records between
    the two processors may repeat; each of these is counted once.
    """
    views = await application.read("views", CLICKS + 1, lambda found: len(pages_of(found)))
    places = Counter((text_of(each), each.timestamp_ms // 60_000 * 60_000) for each in views)
    expected = Counter((COUNTRIES[user % 3], at_ms // 60_000 * 60_000) for user, at_ms in map(click, range(CLICKS)))
    clicked = {place: views for place, views in places.items() if place[0] != "??"}
    wrong = [each for each in views if json.loads(each.value or b"")["page"] != "/end" and text_of(each) != country_of(each)]
    assert not wrong, f"{len(wrong)} clicks have the country of another user, the first {wrong[0]}"
    if guarantee == "exactly_once":
        assert clicked == expected
    else:
        assert all(clicked[place] >= number for place, number in expected.items())
    counts = await application.read("counts", sum(places.values()), lambda found: sum(counted(found).values()))
    assert counted(counts) == places
    sessions = expected_sessions()
    visits = await application.read("sessions", len(sessions), lambda found: len(visited(found)))
    assert visited(visits) == sessions
    if guarantee == "exactly_once":
        assert len(visits) == len(sessions)


def country_of(view: ConsumedRecord) -> str:
    user, _ = click(int(json.loads(view.value or b"")["page"].removeprefix("/")))
    return COUNTRIES[user % 3]


def counted(counts: list[ConsumedRecord]) -> dict[tuple[str, int], int]:
    """Country and minute -> the greatest count."""
    found: dict[tuple[str, int], int] = {}
    for each in counts:
        value = json.loads(each.value or b"")
        place = text_of(each), value["minute"]
        found[place] = max(found.get(place, 0), value["views"])
    return found


def visited(visits: list[ConsumedRecord]) -> set[tuple[str, int, int]]:
    read = [(text_of(each), json.loads(each.value or b"")) for each in visits]
    return {(user, value["start"], value["end"]) for user, value in read}


def expected_sessions() -> set[tuple[str, int, int]]:
    """User, first and last time."""
    times: dict[int, list[int]] = {}
    for user, at_ms in map(click, range(CLICKS)):
        times.setdefault(user, []).append(at_ms)
    found = set()
    for user, its in times.items():
        its.sort()
        begins = [at for number, at in enumerate(its) if not number or at - its[number - 1] > GAP_MS]
        ends = [at for number, at in enumerate(its) if number + 1 == len(its) or its[number + 1] - at > GAP_MS]
        found |= {(str(key_of(user), "utf-8"), *each) for each in zip(begins, ends, strict=True)}
    assert len(found) > USERS, "each has several"
    return found
