"""`equipoise lead` of a group that the broker assigns (KIP-848), on a real broker with the
assignor, with clients that know nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from equipoise.events.facts import JUDGED_METRICS
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat.extra_member import ExtraMember
from equipoise.lead.broker_seat.led_groups import LOOK_S
from equipoise.lead.broker_seat.ways import CLASS, SETTING
from equipoise.log import open_log
from equipoise.operations.doctor.access import Acl
from equipoise.replay.verification import Verdict, verify
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.group_clients import ROOT, GroupClient, aiokafka_command, confluent_kafka_command
from tests.live.kafka import admin_client
from tests.live.seat_process import SeatProcess, answer_of, metric_in
from tests.live.secured import secured_broker
from tests.live.test_restorer import until
from tools.brokers import Brokers

PARTITIONS = 12
ALL = set(range(PARTITIONS))
KAFKA = os.environ.get("KAFKA_VERSION", "4.4.0")
SETTINGS = {
    SETTING: f"uniform,range,{CLASS}",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
}
CLASSIC = {"session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}

Start = Callable[..., GroupClient]


@pytest.fixture(scope="module")
def broker() -> Iterator[Brokers]:
    with Brokers(version=KAFKA, classpath=str(assignor_jar_classes()), **SETTINGS) as brokers:
        yield brokers


@pytest.fixture
async def start(broker: Brokers, prefix: str) -> AsyncIterator[Start]:
    """Starts a client of the group `prefix`, which reads a topic with the same name."""
    started: list[GroupClient] = []

    def start(name: str, command: Callable[[], list[str]] = confluent_kafka_command, topics: str = "", **settings: str) -> GroupClient:
        given = {"group_id": prefix, **(settings or {"group_protocol": "consumer"})}
        started.append(GroupClient(command(), topics or prefix, bootstrap_servers=broker.bootstrap, client_id=name, **given))
        return started[-1]

    async with admin_client(Connection(bootstrap=broker.bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    yield start
    for client in started:
        client.close()


@pytest.fixture
def lead(broker: Brokers, prefix: str, tmp_path: Path) -> Iterator[Callable[..., SeatProcess]]:
    """Starts a seat of the group `prefix`."""
    started: list[SeatProcess] = []

    def lead(*options: str) -> SeatProcess:
        started.append(SeatProcess(broker.bootstrap, prefix, tmp_path / f"seat-{len(started)}.db", *options))
        return started[-1]

    yield lead
    for seat in started:
        seat.end(signal.SIGKILL)


async def until_shared(*clients: GroupClient, seat: SeatProcess | None = None) -> None:
    """Until each partition has one of these clients, and all have equally many."""
    share = PARTITIONS // len(clients)
    try:
        await until(lambda: all(len(each.assigned) == share for each in clients) and set.union(*(each.assigned for each in clients)) == ALL)
    except BaseException as error:
        said = "" if seat is None else seat.said
        raise AssertionError(f"{[sorted(each.assigned) for each in clients]}\n{said}") from error


async def assignor_of(broker: Brokers, group: str) -> str:
    async with ExtraMember(Connection(bootstrap=broker.bootstrap), group, "") as member:
        found = await member.describe()
        return "" if found is None else found.assignor


@pytest.mark.smoke
@pytest.mark.new_kafka
async def test_seat_leads_members_of_the_new_protocol_and_leaves_no_trace(broker: Brokers, start: Start, lead: Any, prefix: str) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    had = [each.assigned for each in clients]
    seat = lead()
    await until(lambda: "0 of 12 partitions move" in seat.said)
    assert [each.assigned for each in clients] == had, f"nothing moves because equipoise leads\n{seat.said}"
    assert await assignor_of(broker, prefix) == "equipoise"
    seen = {name: seat.metric(f"equipoise_lead_{name}") for name in ("members", "seats", "pending_moves")}
    assert (seat.metric("equipoise_lead_seat", state="leads"), seen) == (1, {"members": 3, "seats": 1, "pending_moves": 0})
    assert seat.asked("/ready")[0] == 200
    fourth = start("fourth")
    await until(lambda: "3 of 12 partitions move" in seat.said)
    decided_s = time.monotonic()
    await until_shared(*clients, fourth, seat=seat)
    assert time.monotonic() - decided_s < 5, "a move takes a heartbeat of both members"
    assert sum(len(before - each.assigned) for before, each in zip(had, clients, strict=True)) == 3, "the fewest moves"
    fourth.signal(signal.SIGTERM)
    fourth.ended()
    await until_shared(*clients, seat=seat)
    kept = [each.assigned for each in clients]
    assert seat.end() == 0, seat.said
    assert "left; nothing of equipoise is in it any more" in seat.said
    assert seat.verified()
    assert await assignor_of(broker, prefix) == "uniform"
    await asyncio.sleep(2)
    assert [each.assigned for each in clients] == kept


@pytest.mark.new_kafka
async def test_seat_in_an_empty_group_leads_the_members_of_the_new_protocol_that_come(start: Start, lead: Any) -> None:
    seat = lead()
    await until(lambda: "has no consumer yet" in seat.said)
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients, seat=seat)
    await until(lambda: "led from inside the brokers (KIP-848)" in seat.said)
    await until(lambda: "partitions move" in seat.said)
    assert seat.end() == 0, seat.said
    assert seat.verified()


async def test_group_goes_on_when_the_seat_is_killed_and_the_second_one_leads(start: Start, lead: Any) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    second = lead()
    await until(lambda: "standing by" in second.said)
    had = [each.assigned for each in clients]
    seat.end(signal.SIGKILL)
    clients[2].signal(signal.SIGTERM)
    clients[2].ended()
    await until(lambda: clients[0].assigned | clients[1].assigned == ALL)
    assert all(before <= each.assigned for before, each in zip(had, clients[:2], strict=False)), "the plug-in alone keeps what everybody has"
    await until(lambda: "partitions move" in second.said)
    await until_shared(*clients[:2], seat=second)
    assert second.end() == 0, second.said
    assert second.verified()


@pytest.mark.slow
async def test_seat_that_was_away_stands_by_behind_the_one_that_leads_since(start: Start, lead: Any) -> None:
    """They lead with different settings: the lead that comes back would move partitions twice."""
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    second = lead("--capacity", "third=2")
    await until(lambda: "standing by" in second.said)
    seat.process.send_signal(signal.SIGSTOP)
    await until(lambda: len(clients[2].assigned) == 6)
    seat.process.send_signal(signal.SIGCONT)
    await until(lambda: "standing by" in seat.said)
    await asyncio.sleep(5)
    assert second.said.count("standing by") == 1, second.said
    assert [len(each.assigned) for each in clients] == [3, 3, 6]


async def test_seat_whose_clock_is_behind_stands_by(start: Start, lead: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    clock = tmp_path / "clock"
    clock.write_text("-7200")
    monkeypatch.setenv("STORM_CLOCK", str(clock))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "storm" / "clock"))
    second = lead()
    await until(lambda: "standing by" in second.said)
    await asyncio.sleep(2)
    assert "standing by" not in seat.said, seat.said


async def test_held_partitions_wait_for_a_member_that_comes_back(start: Start, lead: Any) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    had = [each.assigned for each in clients]
    seat = lead("--hold", "40")
    await until(lambda: "partitions move" in seat.said)
    clients[2].signal(signal.SIGTERM)
    clients[2].ended()
    await until(lambda: "waiting for third" in seat.said)
    again = start("third")
    await until(lambda: again.assigned == had[2])
    assert [each.assigned for each in clients[:2]] == had[:2], seat.said
    assert seat.end() == 0
    assert seat.verified()


class WorkerThatLeads:
    """`equipoise worker` with the setting `lead_groups`."""

    def __init__(self, broker: Brokers, prefix: str, pattern: str, folder: Path) -> None:
        self.folder, self._errors = folder, folder.with_suffix(".err")
        command = [sys.executable, "-m", "equipoise", "worker", "--bootstrap", broker.bootstrap, "--prefix", prefix, "--http-port", "0"]
        with open(self._errors, "w") as errors:
            leads = ["--lead-groups", pattern, "--lead-folder", str(folder), "--lead-capacity", "f*=2, alone=3"]
            self.process = subprocess.Popen([*command, *leads], cwd=ROOT, stderr=errors)

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def asked(self, path: str) -> tuple[int, str]:
        """Status and body of a page that it serves; 0: it does not serve yet."""
        found = re.search(r"leading log \S+ of \S+; (http://\S+)", self.said)
        return (0, "") if found is None else answer_of(f"{found[1]}{path}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(90)


@pytest.mark.parametrize("by", ["command", "worker"])
async def test_every_group_that_fits_is_led_in_its_own_way(by: str, broker: Brokers, start: Start, prefix: str, tmp_path: Path) -> None:
    """One that comes later, too; one that does not fit is left alone."""
    new, classic, other = f"{prefix}-new", f"{prefix}-classic", prefix
    clients = [start(name, group_id=new, group_protocol="consumer") for name in ("first", "second")]
    alone = start("alone", group_id=other, group_protocol="consumer")
    await until_shared(*clients)
    folder = tmp_path / "logs"
    leading: Any
    if by == "command":
        leading = SeatProcess(broker.bootstrap, f"{prefix}-*", folder)
    else:
        leading = WorkerThatLeads(broker, prefix, f"x-*, {prefix}-*", folder)
    try:
        await until(lambda: f"group {new}: epoch" in leading.said)
        shares = [8, 4] if by == "worker" else [6, 6]
        await until(lambda: [len(each.assigned) for each in clients] == shares)
        later = start("later", aiokafka_command, group_id=classic, **CLASSIC)
        await until(lambda: f"group {classic}: its log is" in leading.said)
        later.signal(signal.SIGTERM)
        later.ended()
        again = start("again", aiokafka_command, group_id=classic, **CLASSIC)
        await until(lambda: f"group {classic}: generation" in leading.said and again.assigned == ALL)
        assert f"group {other}:" not in leading.said
        for each in (new, classic):
            assert metric_in(leading.asked("/metrics")[1], "equipoise_lead_seat", group=each, state="leads") == 1
        assert metric_in(leading.asked("/metrics")[1], "equipoise_lead_members", group=new) == 2
        assert leading.asked("/ready")[0] == 200, leading.asked("/ready")
        assert alone.assigned == ALL
        assert leading.end() == 0, leading.said
    finally:
        leading.end(signal.SIGKILL)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{each}.db" for each in (new, classic))
    for path in folder.iterdir():
        with open_log(path) as log:
            assert verify(log.read()).verdict is Verdict.IDENTICAL
    assert await assignor_of(broker, new) == "uniform"


@pytest.mark.new_kafka
async def test_group_that_cannot_be_led_is_named_once(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """This broker has no assignor of equipoise. The other group is led."""
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    clients = [
        GroupClient(confluent_kafka_command(), prefix, bootstrap_servers=bootstrap, group_id=f"{prefix}-new", group_protocol="consumer"),
        GroupClient(aiokafka_command(), prefix, bootstrap_servers=bootstrap, group_id=f"{prefix}-classic", **CLASSIC),
    ]
    seat = SeatProcess(bootstrap, f"{prefix}-*", tmp_path / "logs")
    try:
        await until(lambda: all(each.assigned == ALL for each in clients))
        await until(lambda: f"group {prefix}-classic: its log is" in seat.said and "it is not led: " in seat.said)
        await asyncio.sleep(LOOK_S + 1)
        assert seat.said.count("it is not led: ") == 1
        assert f"does not name {CLASS}" in seat.said
        assert seat.end() == 0, seat.said
    finally:
        seat.end(signal.SIGKILL)
        for client in clients:
            client.close()


@pytest.mark.slow
async def test_coordinator_that_starts_again_has_the_plan_and_the_seat_goes_on(broker: Brokers, start: Start, lead: Any) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    broker.kill(0)
    broker.start(0)
    fourth = start("fourth")
    await until_shared(*clients, fourth, seat=seat)
    assert seat.end() == 0, seat.said
    assert seat.verified()


@pytest.mark.slow
async def test_seat_leaves_a_broker_that_comes_back_without_the_assignor(broker: Brokers, start: Start, lead: Any, prefix: str) -> None:
    """Such a broker ends each client that joins a group in which equipoise is."""
    clients = [start(name) for name in ("first", "second")]
    await until_shared(*clients)
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    had = broker.properties_of(0).read_text()
    try:
        broker.properties_of(0).write_text(had.replace(f",{CLASS}", ""))
        broker.kill(0)
        broker.start(0)
        assert await asyncio.to_thread(seat.process.wait, 60) == 2
        assert "left; nothing of equipoise is in it any more" in seat.said
        asked = f"{SETTING} of broker 0 does not name {CLASS}"
        assert asked in seat.said or "a broker does not have the assignor" in seat.said, "it has asked, or had to join again"
        third = start("third")
        await until_shared(*clients, third, seat=seat)
        assert await assignor_of(broker, prefix) == "uniform"
        assert seat.verified()
    finally:
        broker.properties_of(0).write_text(had)
        broker.kill(0)
        broker.start(0)


@pytest.mark.slow
async def test_classic_group_is_taken_over_and_given_back(broker: Brokers, start: Start, lead: Any, prefix: str) -> None:
    clients = [start(name, aiokafka_command, **CLASSIC) for name in ("first", "second", "third")]
    await until_shared(*clients)
    had = [each.assigned for each in clients]
    said = said_dry(broker, prefix, "--convert")
    assert "taken over" in said or "takes it over" in said
    seat = lead("--convert")
    await until(lambda: "0 of 12 partitions move" in seat.said)
    assert [each.assigned for each in clients] == had, seat.said
    fourth = start("fourth", aiokafka_command, **CLASSIC)
    await until_shared(*clients, fourth, seat=seat)
    assert seat.end() == 0, seat.said
    assert seat.verified()
    await until(lambda: "classic" in said_dry(broker, prefix))
    await until_shared(*clients, fourth)


async def test_dry_run_says_the_way_and_the_first_moves(broker: Brokers, start: Start, prefix: str) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    said = said_dry(broker, prefix, "--capacity", "third=2")
    assert "led from inside the brokers (KIP-848)" in said
    assert said.count("-> third") == 2, said
    assert await assignor_of(broker, prefix) == "uniform", "nothing was changed"


@pytest.mark.slow
async def test_that_it_begins_to_lead_is_planned_and_judged(broker: Brokers, start: Start, lead: Any, prefix: str) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    assert "expected: 0.0 task-s" in said_dry(broker, prefix, "--capacity", "third=2")
    seat = lead("--capacity", "third=2")
    await until(lambda: "2 of 12 partitions move" in seat.said)
    second = lead("--capacity", "third=2")
    await until(lambda: "lead-2 is over" in seat.said)
    assert seat.end() == 0, seat.said
    assert seat.verified()
    ((known,), others) = seat.changes(), second.changes()
    assert known.judged is not None
    assert (known.kind, known.judged.outcome, known.judged.moves) == ("lead", "at_rest", 2), seat.said
    assert {each.metric for each in known.planned.expected} == set(JUDGED_METRICS)
    assert "moves" not in (*known.judged.above, *known.judged.below)
    assert others == [], "the second one changes nothing"


@pytest.mark.slow
async def test_doctor_knows_the_assignor_and_the_cluster_who_leads(broker: Brokers, start: Start, lead: Any, prefix: str) -> None:
    clients = [start(name) for name in ("first", "second", "third")]
    await until_shared(*clients)
    place = f"kafka://{broker.bootstrap}"
    said = await asyncio.to_thread(answered, "cluster", place, "--group", prefix)
    assert "led by the broker; equipoise could lead it from inside the brokers" in said
    seat = lead()
    await until(lambda: "partitions move" in seat.said)
    assert "led by equipoise, in the broker" in await asyncio.to_thread(answered, "cluster", place, "--group", prefix)
    said = await asyncio.to_thread(answered, "doctor", "--as", "reader", "--bootstrap", broker.bootstrap, code=1)
    assert "equipoise's assignor is loaded in broker 0; the first one is uniform" in said
    assert "brokers take classic groups over and give them back" in said
    assert seat.end() == 0, seat.said


@pytest.mark.slow
async def test_members_with_a_pattern_of_topics_are_led(start: Start, lead: Any, prefix: str) -> None:
    clients = [start(name, topics=f"^{prefix}.*") for name in ("first", "second", "third")]
    await until_shared(*clients)
    seat = lead("--capacity", "third=2")
    await until(lambda: [len(each.assigned) for each in clients] == [3, 3, 6])
    assert seat.end() == 0, seat.said
    assert seat.verified()


@pytest.mark.slow
async def test_seat_leads_with_password_and_the_rights_of_its_page(tmp_path: Path) -> None:
    rights = [Acl("Group", "orders", "Read"), Acl("Group", "orders", "Describe"), Acl("Topic", "orders", "Describe")]
    own = Acl("Topic", "equipoise-lead", "Describe", is_prefix=True)
    classes = str(assignor_jar_classes())
    with secured_broker(tmp_path, "seat", version=KAFKA, classpath=classes, **SETTINGS) as secured:
        secured.allow("seat", [*rights, own])
        async with admin_client(Connection(bootstrap=secured.inside)) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 1)])
        environment = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("seat").items()}
        given = {"bootstrap_servers": secured.inside, "group_id": "orders", "group_protocol": "consumer"}
        clients = [GroupClient(confluent_kafka_command(), "orders", client_id=name, **given) for name in ("first", "second")]
        try:
            await until_shared(*clients)
            with secured.without("seat", own):
                refused = SeatProcess(secured.bootstrap, "orders", tmp_path / "refused.db", **environment)
                assert await asyncio.to_thread(refused.process.wait, 90) == 2, refused.said
                assert "DESCRIBE on topics with the prefix 'equipoise-lead'" in refused.said
            seat = SeatProcess(secured.bootstrap, "orders", tmp_path / "seat.db", "--capacity", "second=2", **environment)
            try:
                await until(lambda: [len(each.assigned) for each in clients] == [4, 8])
                assert seat.end() == 0, seat.said
                assert "whether brokers have the assignor is not known" in seat.said
            finally:
                seat.end(signal.SIGKILL)
        finally:
            for each in clients:
                each.close()


def said_dry(broker: Brokers, group: str, *options: str) -> str:
    return answered("lead", "--bootstrap", broker.bootstrap, "--group", group, "--dry-run", *options)


def answered(*words: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "equipoise", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
