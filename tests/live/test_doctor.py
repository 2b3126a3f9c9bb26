"""`equipoise doctor` on a real broker with TLS, SCRAM-SHA-512 and ACLs. Worker, member and reader
work with the ACLs of docs/deploy.md, and the doctor names each one that is taken away.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from equipoise import Connection, Member, Record, TaskContext
from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.started_clients import reader, writer
from equipoise.log.kafka.log_topics import Topics
from equipoise.operations.doctor import examination
from equipoise.operations.doctor.access import Acl, Application, Need, needs
from equipoise.operations.doctor.examination import Examined, examine
from equipoise.operations.doctor.finding import CHECKS, Finding
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.secured import SecuredBroker, secured_broker
from tests.live.test_restorer import until

GROUP = "orders"
APPLICATION = Application(group=GROUP, sources=("orders.in",), changelogs=("orders.counts",), outputs=("orders.totals",))
CONFIG = configured(initial_delay_ms=200, acceptable_recovery_lag=100)
MOST_S = 10.0
UNSEEN = {"worker": {"disk"}, "member": set(), "reader": {"changelogs", "disk"}}
"""Role -> checks of which there is nothing to say."""


def needed(role: str) -> list[Need]:
    return list(needs(role, Topics(), APPLICATION))


def needed_now(role: str) -> list[Need]:
    """When the group's topics are there: nobody has to make them."""
    return [need for need in needed(role) if need.acl.operation != "Create" or need.acl.is_prefix]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("tls"), "worker", "member", "reader", "archiver", "nobody") as secured:
        for role in ("worker", "member", "reader"):
            secured.allow(role, [need.acl for need in needed(role)])
        secured.allow("archiver", [*(need.acl for need in needed("reader")), Acl("Topic", "equipoise.bases", "Write")])
        yield secured


def examined(broker: SecuredBroker, role: str, **changed: Any) -> Examined:
    """With the names that the log does not have."""
    settings = WorkerSettings(**broker.settings(role))  # type: ignore[arg-type]
    outputs = APPLICATION.outputs if role == "member" else ()
    return attrs.evolve(Examined(settings=settings, role=role, group=GROUP, outputs=outputs), **changed)


async def ran(broker: SecuredBroker, user: str, *arguments: str) -> Result:
    environment = {f"EQUIPOISE_{name.upper()}": value for name, value in broker.settings(user).items()}
    return await asyncio.to_thread(lambda: CliRunner().invoke(main, list(arguments), env=environment))


async def count(record: Record, context: TaskContext) -> None:
    total = int(context.state.get(record.key) or b"0") + 1
    context.state.put(record.key, b"%d" % total)
    context.send("orders.totals", b"%d" % total, key=record.key)


async def committed(broker: SecuredBroker) -> bytes | None:
    """The first output."""
    places = [TopicPartition("orders.totals", partition) for partition in range(2)]
    async with reader(Connection(bootstrap=broker.inside), read_committed=True, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        async with asyncio.timeout(MOST_S):
            while not (found := await consumer.getmany(timeout_ms=500)):
                pass
    return next(iter(found.values()))[0].value


def of(findings: list[Finding], check: str, status: str) -> list[Finding]:
    return [each for each in findings if (each.check, each.status) == (check, status)]


@asynccontextmanager
async def application(broker: SecuredBroker, folder: Path) -> AsyncIterator[Worker]:
    """A worker, and a member that runs all tasks."""
    connection = Connection(**broker.settings("member"))  # type: ignore[arg-type]
    member = Member(
        GROUP,
        count,
        sources="orders.in",
        state="orders.counts",
        outputs="orders.totals",
        create_topics=True,
        partitions=2,
        member_id="m1",
        connection=connection,
        guarantee="exactly_once",
        state_directory=folder,
        group_config=CONFIG,
        heartbeat_interval_ms=200,
    )
    settings = WorkerSettings(**broker.settings("worker"), http_port=0, observe_interval_ms=500, retention_ms=3_600_000)  # type: ignore[arg-type]
    async with Worker(settings) as worker, member:
        await until(lambda: len(member.running) == 2)
        yield worker


@pytest.mark.smoke
@pytest.mark.new_kafka  # Kafka 3.3 has no SCRAM with KRaft
async def test_users_work_with_the_listed_acls_and_the_doctor_finds_everything_fine(broker: SecuredBroker, tmp_path: Path) -> None:
    async with application(broker, tmp_path) as worker:
        async with writer(Connection(bootstrap=broker.inside)) as producer:
            await producer.send("orders.in", b"1", key=b"k")
        assert await committed(broker) == b"1"
        lead = {lead.name: lead for _, lead in worker.groups()}[GROUP]
        await until(lambda: "orders.in" in lead.observed_ends)
        kafka = f"kafka://{broker.bootstrap}"
        for command in (["status"], ["status", "--group", GROUP], ["tail", kafka], ["verify", kafka]):
            result = await ran(broker, "reader", *command)
            assert result.exit_code == 0, (command, result.output)
            assert GROUP in result.stdout
        with broker.without("reader", Acl("Topic", "equipoise.facts", "Read")):
            async with asyncio.timeout(MOST_S):
                while (result := await ran(broker, "reader", "status")).exit_code == 0:  # noqa: ASYNC110  # brokers forget a right after a while
                    await asyncio.sleep(0.2)
            assert "topic equipoise.facts: this user may not see it" in result.output, "and not that there is no log"
        shown = await ran(broker, "reader", "configure", "--group", GROUP)
        assert shown.exit_code == 0, shown.output  # a look needs no right to write
        changed = await ran(broker, "reader", "configure", "--group", GROUP, "--set", "max_warmups=4")
        assert changed.exit_code == 2
        assert "topic equipoise.facts: this user may not write to it; give it Write on Topic equipoise.facts" in changed.stderr
        declared = await ran(broker, "archiver", "archive", kafka, "--to", str(tmp_path / "archive.db"), "--declare", "nightly")
        assert declared.exit_code == 0, declared.output
        refused = await ran(broker, "nobody", "status")
        assert refused.exit_code == 2

        options = {"member": ["--output", "orders.totals", "--state-directory", str(tmp_path)], "worker": [], "reader": []}
        for role, more in options.items():
            result = await ran(broker, role, "doctor", "--as", role, "--group", GROUP, *more, "--json")
            assert result.exit_code == 0, result.output
            document = json.loads(result.stdout)
            findings = [Finding(**each) for each in document["findings"]]
            assert (document["role"], document["problems"]) == (role, 0)
            assert {each.check for each in findings} == set(CHECKS) - UNSEEN[role]
            rights = f"{role} has what it needs: {len(needed_now(role))} ACLs, or it is a super user"
            assert [each.text for each in findings if each.check == "rights"] == [rights]
            assert of(findings, "clock", "fine"), findings
            assert len(of(findings, "times", "fine")) == (2 if role == "member" else 1)
            assert of(findings, "versions", "fine")
            assert [each.text for each in findings if each.status == "warning"] == [
                f"1 broker ({broker.bootstrap}): when one is away, nobody stands in for it"
            ]
            (timeouts,) = of(findings, "timeouts", "fine")
            assert timeouts.text.startswith("group orders: the shortest lease is 42000 ms (m1), and brokers fail over within 12000 ms")
            if role != "reader":
                assert of(findings, "changelogs", "fine" if role == "member" else "unknown")
            assert bool(of(findings, "topics", "fine")) is (role == "worker")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "member", "reader"])
async def test_doctor_names_each_acl_that_is_taken_away(broker: SecuredBroker, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with application(broker, tmp_path):
        pass  # it has made the topics, and ends before its users lose their rights
    monkeypatch.setattr(examination, "CLOCK_S", 0.0)
    given = {"sources": APPLICATION.sources, "changelogs": APPLICATION.changelogs} if role != "reader" else {}
    for need in needed_now(role):
        with broker.without(role, need.acl):
            findings = await missing(examined(broker, role, **given), need)
        (named,) = findings
        assert named.text == f"{need.acl} is missing; without it: {need.without}"
        assert named.status == ("warning" if need.is_optional else "problem")
        assert named.fix == need.acl.command(broker.bootstrap, role)


async def missing(what: Examined, need: Need) -> list[Finding]:
    """What the doctor finds once the broker has forgotten the ACL."""
    by_s = time.monotonic() + MOST_S
    while True:
        found = [each for each in await examine(what) if each.check == "rights" and each.status in ("problem", "warning")]
        if found:
            return found
        assert time.monotonic() < by_s, need


@pytest.mark.slow
async def test_missing_right_is_said_by_the_process_in_a_few_lines(broker: SecuredBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "equipoise")
    async with application(broker, tmp_path):
        pass  # it has made the topics
    caplog.clear()
    with broker.without("worker", Acl("Topic", "orders.in", "Describe")):
        async with application(broker, tmp_path) as worker:
            await until(lambda: any("end offsets and racks of orders.in are not observed" in line for line in caplog.messages))
            assert not worker.unready()
    with broker.without("member", Acl("Topic", "orders.in", "Read")), pytest.raises(InputError, match=r"topic orders\.in: this user may not see it"):
        async with application(broker, tmp_path):
            pass
    caplog.clear()
    with broker.without("member", Acl("Topic", "equipoise.decisions", "Read")):
        starting = asyncio.create_task(application(broker, tmp_path).__aenter__())
        await until(lambda: any("Topic equipoise.decisions is not authorized" in line for line in caplog.messages))
        await asyncio.sleep(4)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert sum("Topic equipoise.decisions is not authorized" in line for line in caplog.messages) <= 2


@pytest.mark.slow
async def test_doctor_says_why_no_connection_is_made(broker: SecuredBroker) -> None:
    right = examined(broker, "reader")
    (host, port), inside = broker.bootstrap.split(":"), broker.inside
    for changed, text, fix in (
        ({"sasl_password": "wrong"}, "SaslAuthenticationFailed", "correct sasl_username and EQUIPOISE_SASL_PASSWORD"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "UnsupportedSaslMechanism", "sasl.enabled.mechanisms"),
        ({"ssl_ca_file": None}, "its certificate is not accepted: self-signed certificate", "set ssl_ca_file"),
        ({"bootstrap": f"localhost:{port}"}, "Hostname mismatch", "subjectAltName"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "closed", "SASL_SSL"),
        ({"security_protocol": "SSL"}, "the connection is closed at the first request", "SASL_SSL"),
        ({"bootstrap": inside}, "", "it may be without TLS"),
        ({"bootstrap": f"{host}:1"}, "ConnectionRefused", "start the broker"),
    ):
        settings = attrs.evolve(right.settings, **changed)
        (finding,) = await examine(attrs.evolve(right, settings=settings))
        assert (finding.check, finding.status) == ("brokers", "problem")
        assert text in finding.text
        assert fix in (finding.fix or ""), finding
