"""`python -m bench.pageviews`: the application of examples/pageviews.py (clicks joined with users,
sessions of 30 s, views per country and minute, exactly once) beside the same in the DSL of Kafka
Streams and in Quix Streams: one process each, one after the other, on the same broker and the same
topics, filled before.

A rate is that of appends to the output of counts, which gets one for each click, by the broker's
clock, between FROM and TO of all. CPU is the process's, from its start. Results are compared: the
last count of each country and minute, and the sessions that each must have closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from bench.live import PATIENCE_S, broker, cpu_seconds
from bench.results import conditions, write_csv
from bench.seat import QUIXSTREAMS, quixstreams_command
from equipoise.kafka.client import Producer, TopicPartition, Unsent, acknowledged, partition_of_key
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader, writer
from tests.live.streams import JAVA
from tools import brokers

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PARTITIONS, USERS = 4, 2_000
COUNTRIES = ("SE", "NO", "DE", "FR")
BEGIN_MS = 1_700_000_000_000 // 60_000 * 60_000
CLICK_MS = 10
GAP_MS, GRACE_MS = 30_000, 5_000
FROM, TO = 0.1, 0.95
PAGES = 5
SETTLE_S = 3.0
Sessions = set[tuple[str, int, int, tuple[str, ...]]]


@attrs.frozen
class System:
    """One application. `files`: whose lines are counted; `outputs`: what its topics begin with;
    `closes_ms`: how far behind stream time the last record of a session is when that is closed;
    `linger_ms`: of Kafka Streams' producer, None: its default, 100; `commit_s`: Quix Streams' commit
    interval.
    """

    label: str
    files: tuple[Path, ...]
    outputs: str
    settings: str
    closes_ms: int = GAP_MS + GRACE_MS
    linger_ms: int | None = None
    commit_s: float = 0.1


STREAMS, QUIX = "Kafka Streams 4.3.1, DSL", QUIXSTREAMS.replace("quixstreams==", "Quix Streams ")
SYSTEMS = {
    "equipoise": System(
        "equipoise", (ROOT / "examples" / "pageviews.py",), "pv", "commits after 100 ms (its default), outputs are sent at once; RocksDB"
    ),
    "streams": System(STREAMS, (HERE / "PageViews.java",), "ks", "commit.interval.ms=100 and linger.ms=100 (its defaults), no cache; RocksDB"),
    "streams-linger-0": System(
        f"{STREAMS}, linger.ms=0",
        (HERE / "PageViews.java",),
        "ks0",
        "commit.interval.ms=100 (its default), linger.ms=0, no cache; RocksDB",
        linger_ms=0,
    ),
    "quixstreams": System(QUIX, (HERE / "quixstreams_app.py",), "qx", "commit_interval=0.1; RocksDB", 2 * GAP_MS + GRACE_MS),
    "quixstreams-commit-5": System(
        f"{QUIX}, commits after 5 s",
        (HERE / "quixstreams_app.py",),
        "qx5",
        "commit_interval=5.0 (its default); RocksDB",
        2 * GAP_MS + GRACE_MS,
        commit_s=5.0,
    ),
}


@attrs.frozen(kw_only=True)
class Outcome:
    """What one system did. `sessions`: user, first and last time, last pages."""

    counts: Mapping[tuple[str, int], int]
    sessions: Sessions
    per_s: float
    cpu_s: float
    state_bytes: int


def events(clicks: int) -> list[tuple[str, str, int]]:
    """User, page and time of each click, in order."""
    draw = random.Random(1)
    return [(f"user-{draw.randrange(USERS)}", f"/{draw.randrange(100)}", BEGIN_MS + number * CLICK_MS) for number in range(clicks)]


def expected(made: list[tuple[str, str, int]]) -> tuple[dict[tuple[str, int], int], Sessions]:
    """The counts, and the sessions that are over before the last second."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    sessions: Sessions = set()
    open_ones: dict[str, tuple[int, int, tuple[str, ...]]] = {}
    for user, page, at_ms in made:
        counts[country_of(user), at_ms // 60_000 * 60_000] += 1
        start, end, pages = open_ones.get(user, (at_ms, at_ms, ()))
        if at_ms - end > GAP_MS:
            sessions.add((user, start, end, pages))
            start, pages = at_ms, ()
        open_ones[user] = start, at_ms, (*pages, page)[-PAGES:]
    return dict(counts), closed_by(sessions | {(user, *each) for user, each in open_ones.items()}, made[-1][2], GAP_MS + GRACE_MS)


def closed_by(sessions: Sessions, last_ms: int, closes_ms: int) -> Sessions:
    """Those that each partition must have closed, if its last click is within the last second."""
    return {each for each in sessions if each[2] + closes_ms < last_ms - 1_000}


def country_of(user: str) -> str:
    return COUNTRIES[int(user.removeprefix("user-")) % len(COUNTRIES)]


async def fill(connection: Connection, made: list[tuple[str, str, int]]) -> None:
    """Makes the topics, and sends users, then clicks."""
    from aiokafka.admin import NewTopic

    kept = {"retention.ms": "-1"}
    topics = {"clicks": kept, "users": kept}
    for system in SYSTEMS.values():
        topics |= {f"{system.outputs}-{what}": {"message.timestamp.type": "LogAppendTime"} for what in ("counts", "sessions")}
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=each) for name, each in topics.items()])
    users = [(f"user-{number}", {"country": country_of(f"user-{number}")}, BEGIN_MS - 1_000) for number in range(USERS)]
    async with writer(connection, max_batch_size=256 * 1024) as producer:
        await send(producer, "users", users)
        await send(producer, "clicks", [(user, {"page": page}, at_ms) for user, page, at_ms in made])


async def send(producer: Producer, topic: str, records: list[tuple[str, Any, int]]) -> None:
    """Sends users' records, each with its time."""
    await producer.partitions_for(topic)
    by_partition: dict[int, list[Unsent]] = {}
    for user, data, at_ms in records:
        key = user.encode()
        by_partition.setdefault(partition_of_key(key, PARTITIONS), []).append((key, json.dumps(data).encode(), [], at_ms))
    await acknowledged(batch for partition, each in by_partition.items() for batch in producer.send_batches(TopicPartition(topic, partition), each))


def start(key: str, bootstrap: str, folder: Path) -> subprocess.Popen[bytes]:
    """The process of a system."""
    state = folder / "state"
    state.mkdir(parents=True)
    system = SYSTEMS[key]
    if system.label.startswith(STREAMS):
        libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"
        settings = {
            "bootstrap.servers": bootstrap,
            "application.id": system.outputs,
            "state.dir": str(state),
            "auto.offset.reset": "earliest",
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "100",
            "statestore.cache.max.bytes": "0",
        }
        if system.linger_ms is not None:
            settings["producer.linger.ms"] = str(system.linger_ms)
        (folder / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        path = f"{brokers.classes(HERE / 'PageViews.java', libraries)}:{libraries}"
        command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", path, "PageViews", str(folder / "settings")]
    elif system.label.startswith(QUIX):
        command = [quixstreams_command()[0], str(HERE / "quixstreams_app.py"), bootstrap, str(state), system.outputs, str(system.commit_s)]
    else:
        command = [sys.executable, "-m", "bench.pageviews.equipoise_app", bootstrap, str(state)]
    with open(folder / "out.txt", "wb") as out:
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)})


async def outputs(connection: Connection, topic: str, wanted: int, process: subprocess.Popen[bytes], folder: Path) -> list[Any]:
    """The committed records of a topic, as soon as there are so many and no more come."""
    found: list[Any] = []
    end_s = time.monotonic() + PATIENCE_S
    async with reader(connection, read_committed=True) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        for place, offset in (await consumer.beginning_offsets(partitions)).items():
            consumer.seek(place, offset)
        while True:
            records = [each for some in (await consumer.getmany(timeout_ms=1_000)).values() for each in some]
            found += records
            if records:
                end_s = time.monotonic() + PATIENCE_S
            elif len(found) >= wanted:
                return found
            said = (folder / "out.txt").read_text(errors="replace")[-3_000:]
            assert process.poll() is None, f"{topic}: the application has ended with {process.returncode}:\n{said}"
            assert time.monotonic() < end_s, f"{topic}: {len(found)} of {wanted} records"


async def measure(key: str, connection: Connection, folder: Path, made: list[tuple[str, str, int]]) -> Outcome:
    """Runs one system."""
    system = SYSTEMS[key]
    process = start(key, connection.bootstrap, folder)
    try:
        counted = await outputs(connection, f"{system.outputs}-counts", len(made), process, folder)
        await asyncio.sleep(SETTLE_S)
        cpu_s = cpu_seconds(process.pid)
        visits = await outputs(connection, f"{system.outputs}-sessions", 1, process, folder)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for record in counted:
        value, country = json.loads(record.value), record.key.decode().strip('"')
        counts[country, value["minute"]] = max(counts[country, value["minute"]], value["views"])
    sessions = set()
    for record in visits:
        value = json.loads(record.value)
        sessions.add((record.key.decode().strip('"'), value["start"], value["end"], tuple(value["pages"])))
    times = sorted(record.timestamp_ms for record in counted)
    begin, end = int(FROM * len(times)), int(TO * len(times))
    state = sum(path.stat().st_size for path in (folder / "state").rglob("*") if path.is_file())
    return Outcome(
        counts=dict(counts), sessions=sessions, per_s=(end - begin) / max(0.001, (times[end] - times[begin]) / 1_000), cpu_s=cpu_s, state_bytes=state
    )


def lines_of(files: tuple[Path, ...]) -> int:
    """Lines that are neither empty nor comments."""
    texts = [line.strip() for file in files for line in file.read_text().splitlines()]
    return sum(bool(text) and not text.startswith(("#", "//", "/*", "*")) for text in texts)


@click.command()
@click.option("--clicks", default=200_000, show_default=True)
@click.option("--systems", default=",".join(SYSTEMS), show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="CSV file for every run, with the settings of each system.")
def main(clicks: int, systems: str, out: Path | None) -> None:
    """Compares the applications. Exits with 1 when a result is not as it must be."""
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    made = events(clicks)
    counts, sessions = expected(made)
    wrong = False
    under, written = conditions("bench.pageviews"), list[dict[str, object]]()
    with broker() as bootstrap, tempfile.TemporaryDirectory() as folder:
        connection = Connection(bootstrap=bootstrap)
        asyncio.run(fill(connection, made))
        print("| | lines | records/s | CPU s per 100k | state, MB | counts | sessions |\n|---|--:|--:|--:|--:|---|---|")
        for key in systems.split(","):
            found = asyncio.run(measure(key, connection, Path(folder) / key, made))
            same = found.counts == counts
            missing = len(closed_by(sessions, made[-1][2], SYSTEMS[key].closes_ms) - found.sessions)
            wrong = wrong or not same or bool(missing)
            print(
                f"| {SYSTEMS[key].label} | {lines_of(SYSTEMS[key].files)} | {found.per_s:,.0f} | {found.cpu_s / clicks * 100_000:.2f} | "
                f"{found.state_bytes / 1e6:.1f} | {'equal' if same else 'WRONG'} | {f'{missing} MISSING' if missing else 'equal'} |",
                flush=True,
            )
            measured = {
                "records_per_s": round(found.per_s),
                "cpu_s_per_100k": round(found.cpu_s / clicks * 100_000, 2),
                "state_bytes": found.state_bytes,
            }
            results = {"counts_equal": same, "sessions_missing": missing}
            written.append({"system": SYSTEMS[key].label, **measured, **results, "settings": SYSTEMS[key].settings, **under})
            if out is not None:
                write_csv(out, written)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
