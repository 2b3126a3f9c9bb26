"""`equipoise lead` of a Kafka Streams application that the broker assigns (KIP-1071), with the
assignor inside a real broker: state first, work second.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from equipoise.kafka.connection import Connection
from equipoise.kafka.group_requests import own_group_settings, set_group_settings
from equipoise.kafka.started_clients import writer
from equipoise.lead.broker_seat.extra_member import CLIENT_ID
from equipoise.lead.broker_seat.seat_queue import PREFIX
from equipoise.lead.broker_seat.streams_seat import NAME, TAGS
from equipoise.lead.broker_seat.ways import STREAMS_CLASS, STREAMS_SETTING
from equipoise.operations.doctor.access import Acl
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.kafka import admin_client, delete_topics
from tests.live.seat_process import SeatProcess
from tests.live.secured import secured_broker
from tests.live.streams import StreamsApplication, described_streams
from tests.live.test_broker_seat import answered
from tests.live.test_restorer import until
from tools.brokers import Brokers

TASKS, RECORDS = 4, 4_000
SESSION_S = 6
VERSION = "4.4.0"
SETTINGS = {
    STREAMS_SETTING: f"sticky,{STREAMS_CLASS}",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.streams.min.task.offset.interval.ms": "1000",
    "group.streams.task.offset.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Brokers]:
    with Brokers(version=VERSION, classpath=str(assignor_jar_classes()), **SETTINGS) as brokers:
        yield brokers


async def own_settings(broker: Brokers, group: str, changed: dict[str, str | None] | None = None) -> dict[str, str]:
    """The group's own settings. `changed`: are set first."""
    async with admin_client(Connection(bootstrap=broker.bootstrap)) as admin:
        if changed:
            await set_group_settings(admin, group, changed)
        return await own_group_settings(admin, group)


async def running(broker: Brokers, group: str) -> dict[str, set[int]]:
    """Process -> its tasks, once every member has what it is to have; {}: they have not yet."""
    found = await described_streams(broker.bootstrap, group)
    settled = found.assignment_epoch >= found.group_epoch and all(
        each.member_epoch >= found.group_epoch and each.assignment == each.target_assignment for each in found.members
    )
    tasks: dict[str, set[int]] = {}
    for each in found.members if settled else ():
        tasks.setdefault(each.process_id, set()).update(number for part in each.assignment.active_tasks for number in part.partitions)
    return tasks


async def led_by(broker: Brokers, group: str) -> tuple[str, int, list[str]]:
    """What `equipoise cluster` says of the group: its leader, seats, and how it could be led. The
    group in which the seats are is not listed.
    """
    said = await asyncio.to_thread(answered, "cluster", f"kafka://{broker.bootstrap}", "--json")
    found = {each["group"]: each for each in json.loads(said)["groups"]}
    assert f"{PREFIX}{group}" not in found
    return found[group]["led_by"], found[group]["seats"], found[group]["could_be_led"]


async def until_running(broker: Brokers, group: str, processes: int, seat: SeatProcess | None = None) -> dict[str, set[int]]:
    for _ in range(600):
        found = await running(broker, group)
        if len(found) == processes and sorted(number for of in found.values() for number in of) == list(range(TASKS)):
            shares = sorted(len(of) for of in found.values())
            if shares[-1] - shares[0] <= 1:
                return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await described_streams(broker.bootstrap, group)}\n{'' if seat is None else seat.said}")


async def until_copied(broker: Brokers, group: str) -> bool:
    """Returns whether a member has a copy soon, and all run what they ran."""
    for _ in range(300):
        found = await described_streams(broker.bootstrap, group)
        if any(each.assignment.standby_tasks for each in found.members):
            return True
        await asyncio.sleep(0.05)
    return False


async def assigned(broker: Brokers, group: str) -> dict[int, str]:
    """Task with state -> the process that is to run it."""
    found = await described_streams(broker.bootstrap, group)
    tasks = ((each, part) for each in found.members for part in each.target_assignment.active_tasks if part.subtopology_id == "0")
    return {number: each.process_id for each, part in tasks for number in part.partitions}


async def until_assigned(broker: Brokers, group: str, tasks: int) -> None:
    for _ in range(600):
        if len(await assigned(broker, group)) == tasks:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(await described_streams(broker.bootstrap, group))


async def prepared(broker: Brokers | Connection, group: str, folder: Path, **more: str) -> Callable[[str], StreamsApplication]:
    """Makes the topics, with records, and returns what starts an instance, with `more` settings."""
    connection = Connection(bootstrap=broker.bootstrap)
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(f"{group}-in", TASKS, 1), NewTopic(f"{group}-out", TASKS, 1)])
    async with writer(connection) as producer:
        for number in range(RECORDS):
            await producer.send(f"{group}-in", b"v", key=b"%d" % number, partition=number % TASKS)

    def application(instance: str) -> StreamsApplication:
        settings = {"group.protocol": "streams", "commit.interval.ms": "200", **more}
        names = {"input": f"{group}-in", "output": f"{group}-out"}
        return StreamsApplication(broker.bootstrap, group, instance, folder, settings=settings, version=VERSION, **names)

    return application


@pytest.mark.smoke
@pytest.mark.new_kafka
async def test_streams_group_is_led_state_first_and_given_back(broker: Brokers, prefix: str, tmp_path: Path) -> None:
    application = await prepared(broker, prefix, tmp_path)
    with application("i1") as first, application("i2") as second:
        for each in (first, second):
            await asyncio.to_thread(each.until_said, "state RUNNING")
        await own_settings(broker, prefix, {TAGS: "zone"})
        before = await until_running(broker, prefix, 2)
        said = await asyncio.to_thread(answered, "lead", "--bootstrap", broker.bootstrap, "--group", prefix, "--dry-run")
        assert "led from inside the brokers (KIP-1071)" in said
        assert "nothing would move first" in said
        seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "seat.db")
        try:
            await until(lambda: "0 tasks to move, 0 copies to begin" in seat.said)
            own = await own_settings(broker, prefix)
            assert (own[NAME], own[TAGS].split(",")[0]) == ("equipoise", "zone"), "what the group had is kept"
            assert await until_running(broker, prefix, 2) == before, "nothing moves because equipoise leads"
            assert (seat.metric("equipoise_lead_seat", state="leads"), seat.metric("equipoise_lead_members")) == (1, 2)
            assert await led_by(broker, prefix) == ("equipoise, in the broker", 1, [])
            assert [(each.kind, each.verdict) for each in seat.changes()] == [("lead", "under way")]
            with application("i3") as third:
                await until(lambda: "1 copy to begin" in seat.said)
                assert await until_copied(broker, prefix), seat.said
                joined = await until_running(broker, prefix, 3, seat)
                assert "1 task to move" in seat.said
                moved = sum(len(tasks - joined[process]) for process, tasks in before.items())
                assert moved == 1, (before, joined)
                third.end("leave")
                await asyncio.to_thread(third.process.wait, 60)
            after = await until_running(broker, prefix, 2, seat)
            assert sum(len(joined[process] - after[process]) for process in before) == 0, "those that stay keep what they have"
            own = await own_settings(broker, prefix)
            await own_settings(broker, prefix, {TAGS: f"{own[TAGS]},cluster"})
            assert seat.end() == 0, seat.said
            assert "left; nothing of equipoise is in it any more" in seat.said
            assert seat.verified()
            shown = await asyncio.to_thread(answered, "status", str(seat.log))
            assert "equipoise decides, and the group carries it out; 4 of 4 tasks have an owner by the last round" in shown
        finally:
            seat.end(signal.SIGKILL)
        assert await led_by(broker, prefix) == ("the broker", 0, ["brokers"])
        assert await own_settings(broker, prefix) == {TAGS: "zone,cluster"}, "what others have set meanwhile is kept"
        assert await until_running(broker, prefix, 2) == after


@pytest.mark.slow
async def test_tasks_that_nobody_was_to_run_go_back_to_their_state(broker: Brokers, prefix: str, tmp_path: Path) -> None:
    application = await prepared(broker, prefix, tmp_path, beside=f"{prefix}-beside")
    async with admin_client(Connection(bootstrap=broker.bootstrap)) as admin:
        await admin.create_topics([NewTopic(f"{prefix}-beside", 1, 1)])
        with application("i1") as first, application("i2") as second:
            for each in (first, second):
                await asyncio.to_thread(each.until_said, "state RUNNING")
            seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "seat.db")
            try:
                await until(lambda: "0 tasks to move, 0 copies to begin" in seat.said)
                await asyncio.sleep(2)  # what is on the disks has been told
                before = await assigned(broker, prefix)
                assert (len(before), len(set(before.values()))) == (TASKS, 2)
                await delete_topics(admin, [f"{prefix}-beside"])
                await until_assigned(broker, prefix, 0)
                await until(lambda: "it is left as it is" in seat.said)
                await asyncio.sleep(1)
                await admin.create_topics([NewTopic(f"{prefix}-beside", 1, 1)])
                await until_assigned(broker, prefix, TASKS)
                assert await assigned(broker, prefix) == before, seat.said
                assert seat.said.count("it is left as it is") == 1, "once, and not at each look"
                assert seat.end() == 0, seat.said
                assert not re.search(r"[1-9]\d* cop(?:y|ies) to begin", seat.said)
                assert seat.verified()
            finally:
                seat.end(signal.SIGKILL)


@pytest.mark.slow
async def test_process_that_is_killed_and_back_before_its_session_ends_keeps_its_tasks(broker: Brokers, prefix: str, tmp_path: Path) -> None:
    application = await prepared(broker, prefix, tmp_path)
    with application("i1") as first, application("i2") as second:
        for each in (first, second):
            await asyncio.to_thread(each.until_said, "state RUNNING")
        before = await until_running(broker, prefix, 2)
        seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "seat.db")
        try:
            await until(lambda: "0 tasks to move, 0 copies to begin" in seat.said)
            said = len(seat.said)
            second.kill()
            with application("i2") as again:
                await asyncio.to_thread(again.until_said, "state RUNNING")
                await until(lambda: f" {TASKS // 2} tasks to move" in seat.said[said:])
                await asyncio.sleep(SESSION_S + 2)
                assert await until_running(broker, prefix, 2, seat) == before, seat.said
                assert not re.search(r"[1-9]\d* cop(?:y|ies) to begin", seat.said[said:]), "nothing is copied to a member that is gone"
                assert seat.end() == 0, seat.said
                assert seat.verified()
        finally:
            seat.end(signal.SIGKILL)


@pytest.mark.slow
async def test_group_goes_on_without_its_seat_and_the_next_one_leads(broker: Brokers, prefix: str, tmp_path: Path) -> None:
    application = await prepared(broker, prefix, tmp_path)
    with application("i1") as first, application("i2") as second:
        for each in (first, second):
            await asyncio.to_thread(each.until_said, "state RUNNING")
        await until_running(broker, prefix, 2)
        seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "first.db")
        later: SeatProcess | None = None
        try:
            await until(lambda: "lead-2 is over" in seat.said)
            (known,) = seat.changes()
            assert known.judged is not None
            assert (known.judged.outcome, known.judged.moves, known.judged.unavailable_task_ms) == ("at_rest", 0, 0)
            rounds = seat.said.count(", assigned in ")
            await asyncio.sleep(8)
            assert seat.said.count(", assigned in ") == rounds, "a round in which nothing happens is not logged"
            seat.end(signal.SIGKILL)
            second.end("leave")
            alone = await until_running(broker, prefix, 1)
            assert [sorted(of) for of in alone.values()] == [list(range(TASKS))], "the jar alone gives away what nobody runs"
            for _ in range(8 * SESSION_S):  # the broker ends the session of the process that was killed
                said = await led_by(broker, prefix)
                if not said[1]:
                    break
                await asyncio.sleep(0.5)
            assert said[0] == "the broker, by equipoise's assignor; no process of equipoise lead is there: nobody balances it"
            seat = SeatProcess(broker.bootstrap, prefix, tmp_path / "first.db")
            await until(lambda: "1 process," in seat.said)
            later = SeatProcess(broker.bootstrap, prefix, tmp_path / "second.db")
            await until(lambda: later is not None and "another process leads it: standing by" in later.said)
            seat.end(signal.SIGKILL)
            with application("i3"):
                await until_running(broker, prefix, 2, later)
                assert "2 processes" in later.said
                third = SeatProcess(broker.bootstrap, prefix, tmp_path / "third.db")
                try:
                    await until(lambda: "standing by" in third.said)
                    assert later.end() == 0, later.said
                    await until(lambda: "2 processes" in third.said)
                    assert third.end() == 0, third.said
                finally:
                    third.end(signal.SIGKILL)
                assert later.verified()
                assert third.verified()
            assert await own_settings(broker, prefix) == {}
        finally:
            seat.end(signal.SIGKILL)
            if later is not None:
                later.end(signal.SIGKILL)


@pytest.mark.slow
async def test_seat_leads_with_password_and_the_rights_of_its_page(tmp_path: Path) -> None:
    group = "orders"
    rights = [
        *(Acl("Group", group, operation) for operation in ("Describe", "DescribeConfigs", "AlterConfigs")),
        Acl("Topic", group, "Describe", is_prefix=True),
        Acl("Group", f"{PREFIX}{group}", "Describe"),
        Acl("Topic", CLIENT_ID, "Describe", is_prefix=True),
    ]
    queue = Acl("Group", f"{PREFIX}{group}", "Read")
    with secured_broker(tmp_path, "seat", version=VERSION, classpath=str(assignor_jar_classes()), **SETTINGS) as secured:
        secured.allow("seat", rights)
        environment = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("seat").items()}
        application = await prepared(Connection(bootstrap=secured.inside), group, tmp_path)
        with application("i1") as first:
            await asyncio.to_thread(first.until_said, "state RUNNING")
            refused = SeatProcess(secured.bootstrap, group, tmp_path / "refused.db", **environment)
            assert await asyncio.to_thread(refused.process.wait, 90) == 2, refused.said
            assert f"READ on the group {PREFIX}{group}" in refused.said
            secured.allow("seat", [queue])
            seat = SeatProcess(secured.bootstrap, group, tmp_path / "seat.db", **environment)
            try:
                await until(lambda: "0 tasks to move" in seat.said)
                assert seat.end() == 0, seat.said
                assert "left; nothing of equipoise is in it any more" in seat.said
                assert seat.verified()
            finally:
                seat.end(signal.SIGKILL)
