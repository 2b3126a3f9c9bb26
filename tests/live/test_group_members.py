"""The member of an unmodified client is taken out of its consumer group when its process has ended:
by `equipoise witness --group`, and by `equipoise witness --ended`. Sessions last for the default of
45 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, GroupMember, repeated
from equipoise.witness import member_watch
from tests.json_schemas import Coverage
from tests.live import group_clients
from tests.live.group_clients import GroupClient, children_of, confluent_kafka_command, java_command
from tests.live.kafka import admin_client
from tests.live.streams import PATIENCE_S, StreamsApplication
from tests.live.test_restorer import until
from tools import brokers

PARTITIONS = {0, 1, 2, 3}
SOON_S = 12.0
"""Less than a session. Heartbeats of KIP-848 are 5 s apart."""
STOPPED_S = 2.0
KIP_848 = {"group_protocol": "consumer"}
SOON = {"heartbeat_interval_ms": "500"}
"""Of the classic protocol."""

Start = Callable[..., GroupClient]
Command = Callable[[], list[str]]


def shell_command() -> list[str]:
    """A shell that starts the consumer and waits for it."""
    return ["sh", "-c", f'{" ".join(confluent_kafka_command())} "$@" & wait', "sh"]


@pytest.fixture
async def start(bootstrap: str, prefix: str) -> Any:
    """Starts a member of the group `prefix`, which reads a topic with the same name."""
    started: list[GroupClient] = []

    def start(*options: str, is_supervised: bool = True, command: Command = confluent_kafka_command, **settings: str) -> GroupClient:
        supervised = ["--group", prefix, "--bootstrap", bootstrap, *options] if is_supervised else None
        started.append(GroupClient(command(), prefix, supervised=supervised, bootstrap_servers=bootstrap, group_id=prefix, **settings))
        return started[-1]

    await make_topic(bootstrap, prefix)
    yield start
    for client in started:
        client.close()


async def make_topic(bootstrap: str, topic: str) -> None:
    from aiokafka.admin import NewTopic

    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])


async def members(bootstrap: str, group: str) -> list[GroupMember]:
    async with ConsumerGroup(Connection(bootstrap=bootstrap), group) as client:
        return await repeated(client.members, SOON_S)


async def until_shared(*clients: GroupClient) -> None:
    await until(lambda: all(each.assigned for each in clients) and set.union(*(each.assigned for each in clients)) == PARTITIONS)


async def until_known(client: GroupClient) -> None:
    """Until its supervisor knows which member it is."""
    await until(lambda: "which is removed at its end" in client.said)


@pytest.mark.parametrize(
    ("command", "protocol", "name"),
    [
        pytest.param(confluent_kafka_command, SOON, "group_instance_id", id="classic-static", marks=pytest.mark.smoke),
        pytest.param(confluent_kafka_command, KIP_848, "client_id", id="KIP-848", marks=[pytest.mark.smoke, pytest.mark.new_kafka]),
        pytest.param(confluent_kafka_command, SOON, "client_id", id="classic"),
        pytest.param(confluent_kafka_command, KIP_848, "group_instance_id", id="KIP-848-static"),
        pytest.param(java_command, SOON, "client_id", id="Java"),
    ],
)
async def test_killed_client_is_removed_and_a_stopped_one_is_not(
    bootstrap: str, prefix: str, start: Start, command: Command, protocol: dict[str, str], name: str
) -> None:
    option = {"client_id": "--client-id", "group_instance_id": "--instance-id"}[name]
    killed, heir = (start(option, each, command=command, **{name: each}, **protocol) for each in ("c1", "c2"))
    await until_shared(killed, heir)
    await until_known(killed)
    killed.signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    assert len(await members(bootstrap, prefix)) == 2
    assert "has ended" not in killed.said
    killed.signal(signal.SIGKILL)
    async with asyncio.timeout(SOON_S):
        await until(lambda: heir.assigned == PARTITIONS)
    said = await asyncio.to_thread(killed.ended)
    assert killed.process.returncode == 128 + signal.SIGKILL
    known, removed = (line for line in said.splitlines() if line.startswith(f"group {prefix}: "))
    assert known.endswith("host 127.0.0.1), which is removed at its end")
    assert "host 127.0.0.1) was removed after " in removed
    (left,) = await members(bootstrap, prefix)
    assert (left.instance_id or left.client_id) == "c2"


async def test_client_that_leaves_is_not_removed(bootstrap: str, prefix: str, start: Start) -> None:
    client = start("--client-id", "c1", client_id="c1", **SOON)
    await until_known(client)
    client.process.terminate()
    said = await asyncio.to_thread(client.ended)
    assert client.process.returncode == 0
    assert said.endswith("(client id c1, host 127.0.0.1) was out of it already\n")


async def test_static_member_that_ends_in_order_stays(bootstrap: str, prefix: str, start: Start) -> None:
    client = start("--instance-id", "x", group_instance_id="x", **SOON)
    await until_known(client)
    client.process.terminate()
    assert "stays, because the process ended in order" in await asyncio.to_thread(client.ended)
    assert len(await members(bootstrap, prefix)) == 1


async def test_neighbour_with_the_same_client_id_is_not_removed(bootstrap: str, prefix: str, start: Start) -> None:
    first = start("--client-id", "rdkafka", **SOON)
    await until_known(first)
    second = start(**SOON)
    await until_shared(first, second)
    await asyncio.sleep(member_watch.LOOK_S + 1)  # both supervisors have looked
    before = await members(bootstrap, prefix)
    assert len(before) == 2
    for client, reason in ((second, "may be another process of this host"), (first, "2 members with client id rdkafka, host 127.0.0.1 joined")):
        client.signal(signal.SIGKILL)
        said = await asyncio.to_thread(client.ended)
        assert "nothing was removed, because " in said
        assert reason in said
    assert await members(bootstrap, prefix) == before


async def test_only_client_of_a_machine_is_removed_without_an_id(prefix: str) -> None:
    """With a broker of its own: no other test is connected to it."""
    with brokers.Brokers() as own:
        supervised = ["--group", prefix, "--bootstrap", own.bootstrap]
        await make_topic(own.bootstrap, prefix)
        client = GroupClient(confluent_kafka_command(), prefix, supervised=supervised, bootstrap_servers=own.bootstrap, group_id=prefix, **SOON)
        try:
            await until_known(client)
            client.signal(signal.SIGKILL)
            assert "was removed after" in await asyncio.to_thread(client.ended)
            assert await members(own.bootstrap, prefix) == []
        finally:
            client.close()


async def test_member_stays_while_a_process_of_the_command_lives(bootstrap: str, prefix: str, start: Start) -> None:
    client = start("--client-id", "c1", client_id="c1", command=shell_command, **SOON)
    await until_known(client)
    (consumer,) = children_of(client.pid)
    client.signal(signal.SIGKILL)
    await asyncio.sleep(1)
    assert children_of(client.process.pid) == [consumer], "it has been adopted"
    assert len(await members(bootstrap, prefix)) == 1
    os.kill(consumer, signal.SIGKILL)
    assert "was removed after" in await asyncio.to_thread(client.ended)
    assert await members(bootstrap, prefix) == []


@pytest.mark.slow
async def test_nothing_is_removed_if_a_process_of_the_command_lives_on(bootstrap: str, prefix: str, start: Start) -> None:
    client = start("--client-id", "c1", client_id="c1", command=shell_command, **SOON)
    await until_known(client)
    (consumer,) = children_of(client.pid)
    try:
        client.signal(signal.SIGKILL)
        assert await asyncio.to_thread(client.process.wait, 30) == 128 + signal.SIGKILL
        assert len(await members(bootstrap, prefix)) == 1
    finally:
        os.kill(consumer, signal.SIGKILL)
    assert "nothing was removed, because a process that it started lives on" in await asyncio.to_thread(client.ended)


@pytest.mark.parametrize("protocol", [SOON, KIP_848], ids=["classic", "KIP-848"])
async def test_successor_with_the_same_instance_id_is_not_removed(bootstrap: str, prefix: str, start: Start, protocol: dict[str, str]) -> None:
    """It has another member id."""
    async with ConsumerGroup(Connection(bootstrap=bootstrap), prefix) as group:
        first = start(is_supervised=False, group_instance_id="x", **protocol)
        await until(lambda: first.assigned == PARTITIONS)
        (before,) = await repeated(group.members, SOON_S)
        first.signal(signal.SIGKILL)
        if protocol is KIP_848:  # whose coordinator lets a successor in only when the member has left
            assert await repeated(lambda: group.remove(before), SOON_S)
        second = start(is_supervised=False, group_instance_id="x", **protocol)
        await until(lambda: second.assigned == PARTITIONS)
        assert not await repeated(lambda: group.remove(before), SOON_S)
        (after,) = await repeated(group.members, SOON_S)
        assert (after.instance_id, after.member_id != before.member_id) == ("x", True)


@pytest.mark.smoke
async def test_remove_member_refuses_all_but_one_that_is_named_and_confirmed(bootstrap: str, prefix: str, start: Start) -> None:
    coverage = Coverage("witness")

    async def removed(*options: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "equipoise", "witness", "--ended", "--group", prefix, "--bootstrap", bootstrap, "--json", *options]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        document = json.loads(done.stdout)
        coverage.check(document)
        return done.returncode, document

    code, document = await removed("--instance-id", "x", "--yes")
    assert (code, document["outcome"], document["members"]) == (1, "refused", [])
    assert "no such consumer group" in document["reason"]

    static, neighbour = start(is_supervised=False, group_instance_id="x", **SOON), start(is_supervised=False, **SOON)
    await until_shared(static, neighbour)
    for options, reason, listed in (
        (["--yes"], "say which member", 2),
        (["--client-id", "rdkafka", "--host", "127.0.0.1", "--yes"], "2 members have client id rdkafka", 2),
        (["--client-id", "rdkafka", "--host", "10.0.0.9", "--yes"], "no member has", 2),
        (["--instance-id", "x"], "nothing shows that its process has ended", 1),
    ):
        code, document = await removed(*options)
        assert (code, document["outcome"], len(document["members"])) == (1, "refused", listed)
        assert reason in document["reason"]
    assert len(await members(bootstrap, prefix)) == 2

    assert "nothing was removed" in await asyncio.to_thread(answered_on_a_terminal, prefix, bootstrap, "n")
    assert len(await members(bootstrap, prefix)) == 2

    static.signal(signal.SIGKILL)
    code, document = await removed("--instance-id", "x", "--yes")
    assert (code, document["outcome"], document["members"][0]["instance_id"]) == (0, "removed", "x")
    async with asyncio.timeout(SOON_S):
        await until(lambda: neighbour.assigned == PARTITIONS)
    assert coverage.never_met() == set()

    neighbour.signal(signal.SIGKILL)
    assert "removed " in await asyncio.to_thread(answered_on_a_terminal, prefix, bootstrap, "y")
    assert await members(bootstrap, prefix) == []


def answered_on_a_terminal(group: str, bootstrap: str, answer: str) -> str:
    """What `witness --ended` shows on a terminal, where its question is answered so."""
    command = [sys.executable, "-m", "equipoise", "witness", "--ended", "--group", group, "--bootstrap", bootstrap]
    of_command = [*command, "--client-id", "rdkafka", "--host", "127.0.0.1"] if answer == "y" else [*command, "--instance-id", "x"]
    ours, its = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    with os.fdopen(ours, "rb") as shown, subprocess.Popen(of_command, stdin=its, stdout=its, stderr=its, cwd=group_clients.ROOT) as process:
        assert process.wait(SOON_S) == (answer != "y")
        os.close(its)
        text = b""
        with contextlib.suppress(OSError):  # Linux: a terminal that nobody has open any more
            while more := os.read(shown.fileno(), 65_536):
                text += more
    assert "Has the process of this member ended?" in text.decode()
    return text.decode()


@pytest.mark.slow
async def test_process_of_kafka_streams_is_taken_out_with_all_its_threads(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Kafka Streams names each thread's client by the process and a number. A close leaves the
    group to the session timeout by default; here it ends with the process.
    """
    await make_topic(bootstrap, f"{prefix}-in")
    settings = {"num.stream.threads": "2", "session.timeout.ms": "45000", "replication.factor": "1"}

    def started(name: str) -> StreamsApplication:
        options = ["--group", prefix, "--bootstrap", bootstrap, "--client-id", f"{name}-StreamThread-*"]
        return StreamsApplication(
            bootstrap, prefix, name, tmp_path, input=f"{prefix}-in", output=f"{prefix}-out", settings=settings, supervised=options
        )

    async def there() -> Counter[str]:
        return Counter(each.client_id.partition("-")[0] for each in await members(bootstrap, prefix))

    async def until_there(**expected: int) -> float:
        began_s = time.monotonic()
        while await there() != expected:  # the broker tells nobody
            assert time.monotonic() - began_s < PATIENCE_S, await there()
            await asyncio.sleep(0.1)
        return time.monotonic() - began_s

    with started("i1") as first, started("i2") as second:
        await until_there(i1=2, i2=2)
        for each in (first, second):
            await until(lambda each=each: each.said().count("which is removed at its end") == 2)
        (pid,) = children_of(second.process.pid)
        os.kill(pid, signal.SIGKILL)
        assert await until_there(i1=2) < SOON_S
        await until(lambda: second.said().count("was removed after") == 2)
        first.end("close")
        assert await until_there() < SOON_S + 2
