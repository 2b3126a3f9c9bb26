"""`equipoise migrate` on a real broker, without any jar: what it says of a group is what the broker
does, for each client and each of its strategies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from equipoise.kafka.connection import Connection
from equipoise.kafka.group_client import GroupClient as Asked
from equipoise.lead.broker_seat.ways import CLASS, SETTING
from equipoise.lead.migrating.asking_groups import GroupsAsking, JudgedGroup
from equipoise.lead.migrating.taking_over import TakenOver, TakingOver
from equipoise.log import open_log
from equipoise.replay.known_changes import known_changes
from tests.json_schemas import Coverage
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.group_clients import ROOT, GroupClient, aiokafka_command, confluent_kafka_command, java_command, kafka_python_command
from tests.live.kafka import admin_client
from tests.live.seat_process import SeatProcess
from tests.live.test_restorer import until
from tools.brokers import Brokers

PARTITIONS = 6
ALL = set(range(PARTITIONS))
REST_S = 30.0
KAFKA = os.environ.get("KAFKA_VERSION", "4.4.0")
SOON = {"session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}
_JAVA = "org.apache.kafka.clients.consumer."
JAVA_STRATEGIES = {
    "range": f"{_JAVA}RangeAssignor",
    "roundrobin": f"{_JAVA}RoundRobinAssignor",
    "sticky": f"{_JAVA}StickyAssignor",
    "cooperative-sticky": f"{_JAVA}CooperativeStickyAssignor",
}
COMMANDS: dict[str, Callable[[], list[str]]] = {
    "aiokafka": aiokafka_command,
    "kafka-python": kafka_python_command,
    "librdkafka": confluent_kafka_command,
    "Java": java_command,
}
TAKEN = {
    ("aiokafka", "range"): True,
    ("aiokafka", "roundrobin"): True,
    ("aiokafka", "sticky"): True,
    ("kafka-python", "range"): True,
    ("kafka-python", "roundrobin"): True,
    ("kafka-python", "sticky"): True,
    ("kafka-python", "cooperative-sticky"): True,
    ("librdkafka", "range"): True,
    ("librdkafka", "roundrobin"): True,
    ("librdkafka", "cooperative-sticky"): False,
    ("Java", "range"): True,
    ("Java", "roundrobin"): True,
    ("Java", "sticky"): True,
    ("Java", "cooperative-sticky"): True,
}
"""Library and strategy -> whether the broker takes it over. aiokafka has no cooperative-sticky, and
librdkafka no sticky.
"""

Start = Callable[..., GroupClient]


@pytest.fixture(scope="module")
def broker() -> Iterator[Brokers]:
    with Brokers(version=KAFKA) as brokers:
        yield brokers


@pytest.fixture
async def start(broker: Brokers, prefix: str) -> AsyncIterator[Start]:
    """Starts a client of the group `prefix`, with a client id that nobody set."""
    started: list[GroupClient] = []

    def start(library: str, strategy: str, **settings: str) -> GroupClient:
        named = JAVA_STRATEGIES[strategy] if library == "Java" else strategy
        given = {"bootstrap_servers": broker.bootstrap, "group_id": prefix, "partition_assignment_strategy": named} | SOON | settings
        started.append(GroupClient(COMMANDS[library](), prefix, **{name: value for name, value in given.items() if value}))
        return started[-1]

    async with admin_client(Connection(bootstrap=broker.bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    yield start
    for client in started:
        client.close()


async def until_shared(*clients: GroupClient) -> None:
    share = PARTITIONS // len(clients)
    try:
        await until(lambda: all(len(each.assigned) == share for each in clients) and set.union(*(each.assigned for each in clients)) == ALL)
    except BaseException as error:
        raise AssertionError([(sorted(each.assigned), each.said) for each in clients]) from error


async def judged(broker: Brokers, group: str) -> JudgedGroup:
    async with GroupsAsking(Connection(bootstrap=broker.bootstrap)) as asking:
        (found,) = await asking.judged([group])
    return found


async def is_classic(broker: Brokers, group: str) -> bool:
    async with Asked(Connection(bootstrap=broker.bootstrap), group) as client:
        kind = await client.kind()
    return kind is not None and kind[0].lower() == "classic"


@pytest.mark.slow
@pytest.mark.parametrize(("library", "strategy"), TAKEN)
async def test_verdict_is_what_the_broker_does(broker: Brokers, start: Start, prefix: str, library: str, strategy: str) -> None:
    clients = [start(library, strategy)]
    await until_shared(*clients)
    clients.append(start(library, strategy))
    await until_shared(*clients)
    had = [each.assigned for each in clients]
    before = await judged(broker, prefix)
    assert [each.library for each in before.group.clients] == [library] * 2
    assert before.group.protocol == strategy
    expected = TAKEN[library, strategy]
    assert (before.verdict.takes == "yes") is expected, before
    async with TakingOver(Connection(bootstrap=broker.bootstrap), before.group) as taking:
        done: TakenOver = await taking.take_over(REST_S)
        assert done.is_done is expected, done
        if expected:
            assert (done.clients, done.partitions, done.moves) == (2, PARTITIONS, 0), done
            assert (await judged(broker, prefix)).verdict.takes == "taken over"
            await until(lambda: [each.assigned for each in clients] == had)
        else:
            assert "an unsupported custom assignor is in use" in done.problem
    for _ in range(100):
        if await is_classic(broker, prefix):
            break
        await asyncio.sleep(0.1)
    assert await is_classic(broker, prefix)
    await until_shared(*clients)
    assert all(each.process.poll() is None for each in clients)


def ran(broker: Brokers, *options: str, code: int = 0, what: str = "migrate") -> Any:
    command = [sys.executable, "-m", "equipoise", what, "--bootstrap", broker.bootstrap, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if "--json" in options else done.stdout + done.stderr


def started(broker: Brokers, group: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "equipoise", "migrate", "--bootstrap", broker.bootstrap, "--group", group, "--apply", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.smoke
@pytest.mark.new_kafka
async def test_group_is_migrated_one_client_at_a_time_and_given_back(broker: Brokers, start: Start, prefix: str, tmp_path: Path) -> None:
    coverage = Coverage("migrate")
    clients = [start("librdkafka", "range"), start("librdkafka", "range")]
    await until_shared(*clients)
    document = ran(broker, "--group", prefix, "--json")
    coverage.check(document)
    (found,) = document["groups"]
    assert (found["verdict"], len(found["clients"]), len(found["cost"])) == ("yes", 2, 3)
    assert f"{prefix}" in ran(broker)
    assert "taken over: yes" in ran(broker, "--group", f"{prefix}*")
    applying = started(broker, prefix, "--logs", str(tmp_path))
    try:
        assert applying.stdout is not None
        first = await asyncio.to_thread(applying.stdout.readline)
        assert "at rest with 2 clients, 0 of 6 partitions moved; it is over: 0.0 task-s, 0 moves" in first
        with open_log(tmp_path / f"{prefix}.db") as log:
            (known,) = known_changes(log.read())
        assert known.planned is not None
        assert (known.kind, known.verdict, len(known.planned.expected)) == ("migrate", "at_rest", 3)
        assert known.planned.made_from is not None
        for number in range(2):
            clients[number].signal(signal.SIGTERM)
            clients[number].ended()
            clients[number] = start("librdkafka", "", group_protocol="consumer", session_timeout_ms="", heartbeat_interval_ms="")
            await until_shared(*clients)
        assert await asyncio.to_thread(applying.wait, 60) == 0
        assert applying.stderr is not None
        said = applying.stderr.read()
        assert "every client uses the new protocol" in said
        assert "left; nothing of this process is in it any more" in said
    finally:
        applying.kill()
        applying.communicate()
    assert (await judged(broker, prefix)).verdict.takes == "new protocol"
    assert "start them again with group.protocol=classic" in ran(broker, "--group", prefix, "--back", code=1)
    clients[0].close()
    clients[0] = start("librdkafka", "range")
    clients[1].signal(signal.SIGTERM)
    clients[1].ended()
    await until(lambda: clients[0].assigned == ALL)
    document = ran(broker, "--group", prefix, "--back", "--json")
    coverage.check(document)
    assert document["given_back"][0]["is_classic"]


@pytest.mark.slow
async def test_process_that_is_killed_leaves_a_member_that_back_takes_out(broker: Brokers, start: Start, prefix: str) -> None:
    clients = [start("aiokafka", "range"), start("aiokafka", "range")]
    await until_shared(*clients)
    with started(broker, prefix, "--json") as applying:
        try:
            assert applying.stdout is not None
            said = ""
            while not said.endswith("\n}\n"):
                said += await asyncio.to_thread(applying.stdout.readline)
            Coverage("migrate").check(json.loads(said))
        finally:
            applying.kill()
    assert not await is_classic(broker, prefix)
    assert "1 member of equipoise taken out; it is a classic group" in ran(broker, "--group", prefix, "--back")
    await until_shared(*clients)
    with started(broker, prefix) as applying:
        assert applying.stdout is not None
        assert "taken over in" in await asyncio.to_thread(applying.stdout.readline)
        ran(broker, "--group", prefix, "--back")
        _, said = await asyncio.to_thread(applying.communicate, timeout=60)
    assert "its member was taken out of the group (`equipoise migrate --back`)" in said
    await until_shared(*clients)


@pytest.mark.slow
async def test_group_with_user_data_is_taken_over_once_equipoise_has_assigned_it(broker: Brokers, start: Start, prefix: str, tmp_path: Path) -> None:
    clients = [start("librdkafka", "cooperative-sticky"), start("librdkafka", "cooperative-sticky")]
    await until_shared(*clients)
    clients.append(start("librdkafka", "cooperative-sticky"))
    await until_shared(*clients)
    before = await judged(broker, prefix)
    assert (before.verdict.takes, "as librdkafka does" in before.verdict.why) == ("no", True)
    assert "equipoise lead --evict" in before.verdict.to_do
    seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "seat.db", "--evict")
    try:
        await until(lambda: "assigned in" in seat.said)
        for _ in range(100):
            before = await judged(broker, prefix)
            if before.verdict.takes == "yes":
                break
            await asyncio.sleep(0.2)
        async with TakingOver(Connection(bootstrap=broker.bootstrap), before.group) as taking:
            done = await taking.take_over(REST_S)
            assert done.is_done, (done, before)
            await until(lambda: seat.process.poll() is not None)
            assert "so it has no leader's seat" in seat.said, "it has no work any more"
            await until_shared(*clients)
    finally:
        seat.end(signal.SIGKILL)
    await until_shared(*clients)


@contextlib.asynccontextmanager
async def group_with_policy(policy: str, group: str) -> AsyncIterator[Brokers]:
    """A broker with the assignor of equipoise, and a classic group of one client."""
    settings = {"group.consumer.migration.policy": policy, SETTING: f"uniform,range,{CLASS}"}
    with Brokers(version=KAFKA, classpath=str(assignor_jar_classes()), **settings) as brokers:
        async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
            await admin.create_topics([NewTopic(group, PARTITIONS, 1)])
        client = GroupClient(aiokafka_command(), group, bootstrap_servers=brokers.bootstrap, group_id=group, **SOON)
        try:
            await until(lambda: client.assigned == ALL)
            yield brokers
        finally:
            client.close()


@pytest.mark.slow
async def test_lead_converts_no_group_that_the_broker_would_not_give_back(prefix: str, tmp_path: Path) -> None:
    async with group_with_policy("upgrade", prefix) as brokers:
        for how in ("--dry-run",), ("--to", str(tmp_path / "seat.db")):
            said = ran(brokers, "--group", prefix, "--convert", *how, code=2, what="lead")
            assert "the broker would not give it back: group.consumer.migration.policy of broker 0 is upgrade" in said
        assert await is_classic(brokers, prefix)


@pytest.mark.slow
async def test_policy_of_the_broker_is_said_with_its_remedy(prefix: str) -> None:
    async with group_with_policy("disabled", prefix) as brokers:
        found = await judged(brokers, prefix)
        assert found.verdict.takes == "no"
        assert "group.consumer.migration.policy of broker 0 is disabled" in found.verdict.why
        assert "set group.consumer.migration.policy=bidirectional on every broker" in found.verdict.to_do
        async with TakingOver(Connection(bootstrap=brokers.bootstrap), found.group) as taking:
            assert "online upgrade is disabled" in (await taking.take_over(REST_S)).problem
        said = ran(brokers, "--group", prefix, "--convert", "--dry-run", code=2, what="lead")
        assert "the broker does not take it over: group.consumer.migration.policy of broker 0 is disabled; set" in said
