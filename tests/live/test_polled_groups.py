"""Recording a real cluster whose `__consumer_offsets` this user may not read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from equipoise.operations.doctor.access import Acl
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup
from equipoise.replay.importers.groups.polled import LOST
from equipoise.replay.incident import history_of
from equipoise.replay.incident.coordinator_history import ObservedState
from tests.live.group_clients import GroupClient, confluent_kafka_command
from tests.live.kafka import admin_client, writer
from tests.live.secured import secured_broker
from tests.live.streams import StreamsApplication

PARTITIONS = 4
MOST_S = 60.0


async def make_topics(bootstrap: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin, writer(Connection(bootstrap=bootstrap)) as producer:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("orders", "counts")])
        for partition in range(PARTITIONS):
            await producer.send("orders", b"", key=b"k", partition=partition)


def compare_with_the_coordinators(polled: str, read: str, bootstrap: str, run: Callable[..., Result]) -> None:
    """Groups of KIP-848 and KIP-1071 are, polled, what their coordinator has of them."""

    def last(recording: str, group: str) -> ObservedGroup | None:
        with open_recording(recording) as opened:
            states = history_of(opened, group).states if group in opened.groups() else []
        return states[-1].group if states else None

    kinds = {"billing-consumer": GroupKind.CONSUMER, "billing-app": GroupKind.STREAMS}
    end = time.monotonic() + MOST_S
    while True:
        assert run("record", f"kafka://{bootstrap}", "--to", read, "--once", connect=False).exit_code == 0
        assert run("record", "--to", polled, "--once").exit_code == 0
        found = {name: (last(polled, name), last(read, name)) for name in kinds}
        pairs = [(ours, theirs) for ours, theirs in found.values() if ours and theirs and ours.epoch == theirs.epoch and ours.owners]
        if len(pairs) == len(kinds) and all(each.state == "stable" for pair in pairs for each in pair):
            break
        assert time.monotonic() < end, found
    for name, (ours, theirs) in found.items():
        assert ours is not None
        assert theirs is not None
        members = {key: attrs.evolve(member, rebalance_timeout_ms=0) for key, member in theirs.members.items()}
        assert {key: attrs.evolve(member, rebalance_timeout_ms=0) for key, member in ours.members.items()} == members
        assert attrs.evolve(ours, members={}) == attrs.evolve(theirs, members={})
        assert ours.kind is kinds[name]


@pytest.mark.slow
def test_groups_are_polled_where_their_records_may_not_be_read(tmp_path: Path) -> None:
    with secured_broker(tmp_path, "watcher") as secured, ExitStack() as running:
        secured.allow("watcher", [Acl("Group", "*", "Describe"), Acl("Topic", "orders", "Describe")])
        asyncio.run(make_topics(secured.inside))
        recording = str(tmp_path / "cluster.db")
        environment = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("watcher").items()}

        def run(*arguments: str, connect: bool = True) -> Result:
            """`connect`: as the watcher."""
            place = () if any(each.startswith("kafka://") for each in arguments) or not connect else (f"kafka://{secured.bootstrap}",)
            return CliRunner().invoke(main, [arguments[0], *place, *arguments[1:]], env=environment if connect else {})

        def consumer(name: str, protocol: str) -> None:
            client = GroupClient(
                confluent_kafka_command(),
                "orders",
                bootstrap_servers=secured.inside,
                group_id=f"billing-{protocol}",
                client_id=name,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                auto_commit_interval_ms="200",
            )
            running.callback(client.close)

        def states() -> list[ObservedState]:
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
        running.enter_context(
            StreamsApplication(secured.inside, "billing-app", "i1", tmp_path, input="orders", output="counts", settings={"group.protocol": "streams"})
        ).until_said("state RUNNING")
        shown = run("record", "--to", recording, "--once")
        assert "group billing-app is not described: it needs DESCRIBE on the group and on its topics" in shown.stderr.replace("\n", " ")
        secured.allow("watcher", [Acl("Topic", "billing-app-", "Describe", is_prefix=True)])
        compare_with_the_coordinators(recording, str(tmp_path / "read.db"), secured.inside, run)
        listed = run("cluster", f"kafka://{secured.bootstrap}", "--json")
        assert listed.exit_code == 0, listed.output
        document = json.loads(listed.stdout)
        assert [each.partition(",")[0] for each in document["unread"]] == ["__consumer_offsets"]
        groups = {each["group"]: each for each in document["groups"]}
        assert {name: (each["kind"], each["state"], each["members"], each["work"]) for name, each in groups.items()} == {
            "billing-classic": ("classic consumer", "stable", 2, PARTITIONS),
            "billing-consumer": ("consumer", "stable", 1, PARTITIONS),
            "billing-app": ("streams", "stable", 1, PARTITIONS),
        }
        assert [groups[name]["lag"] for name in ("billing-classic", "billing-consumer")] == [0, 0]
