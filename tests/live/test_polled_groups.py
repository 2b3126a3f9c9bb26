"""Recording a real cluster whose `__consumer_offsets` this user may not read."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.events.log.kafka.client import NewTopic
from equipoise.events.log.kafka.connection import Connection
from equipoise.operations.doctor.access import Acl
from equipoise.replay.importers.groups.observed import GroupKind
from equipoise.replay.importers.groups.polled import LOST
from equipoise.replay.importers.groups.recording import open_recording
from equipoise.replay.incident import history_of
from equipoise.replay.incident.history import State
from tests.live.group_clients import GroupClient, confluent_kafka_command
from tests.live.kafka import admin_client, writer
from tests.live.secured import secured_broker

PARTITIONS = 4
MOST_S = 60.0


async def make_topic(bootstrap: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin, writer(Connection(bootstrap=bootstrap)) as producer:
        await admin.create_topics([NewTopic("orders", PARTITIONS, 1)])
        for partition in range(PARTITIONS):
            await producer.send("orders", b"", key=b"k", partition=partition)


@pytest.mark.slow
def test_groups_are_polled_where_their_records_may_not_be_read(tmp_path: Path) -> None:
    with secured_broker(tmp_path, "watcher") as secured, ExitStack() as running:
        secured.allow("watcher", [Acl("Group", "*", "Describe"), Acl("Topic", "orders", "Describe")])
        asyncio.run(make_topic(secured.inside))
        recording = str(tmp_path / "cluster.db")
        environment = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("watcher").items()}

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(main, list(arguments), env=environment)

        def consumer(name: str, protocol: str) -> None:
            client = GroupClient(
                confluent_kafka_command(), "orders", bootstrap_servers=secured.inside, group_id=f"billing-{protocol}", client_id=name,
                group_protocol=protocol, auto_offset_reset="earliest", auto_commit_interval_ms="200",
            )  # fmt: skip
            running.callback(client.close)

        def states() -> list[State]:
            with open_recording(recording) as opened:
                return history_of(opened, "billing-classic").states

        def seen(members: int) -> None:
            end = time.monotonic() + MOST_S
            while True:
                shown = run("record", f"kafka://{secured.bootstrap}", "--to", recording, "--once")
                assert shown.exit_code == 0, shown.output
                assert LOST in shown.stderr.replace("\n", " ")
                with open_recording(recording) as opened:
                    history = history_of(opened, "billing-classic")
                groups = [state.group for state in history.states]
                if groups and len(groups[-1].members) == members and len(history.commits) == PARTITIONS:
                    break
                assert time.monotonic() < end, (groups, history.commits)
            group = groups[-1]
            assert (group.kind, group.protocol) == (GroupKind.CLASSIC_CONSUMER, "range")
            assert sorted(group.owners) == [f"orders-{number}" for number in range(PARTITIONS)]
            assert {member.client_id for member in group.members.values()} == set("ab"[:members])
            assert {offset for commits in history.commits.values() for _, offset in commits} == {1}

        consumer("a", "classic")
        consumer("c", "consumer")
        seen(1)
        settled = len(states())
        seen(1)
        assert len(states()) == settled, "recorded again, and nothing had changed"
        consumer("b", "classic")
        seen(2)
        with open_recording(recording) as opened:
            assert opened.groups() == ["billing-classic"], "DescribeGroups does not describe groups of KIP-848"
        refused = run("cluster", f"kafka://{secured.bootstrap}")
        assert refused.exit_code == 2, refused.output
        assert "__consumer_offsets" in refused.stderr
        assert "equipoise doctor" in refused.stderr.replace("\n", " ")
