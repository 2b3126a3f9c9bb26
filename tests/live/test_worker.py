"""The deployed worker on a real broker: killed under load, different decisions, a stalled reader,
failing sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from equipoise.events.decisions import AssignmentIssued, EventRejected, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import Fact, MemberLeft
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.checkpoints import checkpoint_records
from equipoise.folding.log_reading import FactReader
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.log.kafka.envelope import decision_record, group_key, pack_decision, pack_fact, pack_payload, partition_of, stored_decision
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.replay.group_view import show as show_log
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.worker.app import Worker
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured, joined
from tests.live.swarm import Swarm, checksum_of, everything, topology
from tests.support.lone_hosts import LoneHost

MOST_S = 120.0
CONFIG = configured(initial_delay_ms=200, acceptable_recovery_lag=100, checkpoint_every_records=20)


async def until(condition: Any, what: str, timeout_s: float = MOST_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


async def all_decisions(settings: WorkerSettings, partition: int = 0) -> list[bytes]:
    return [record.value for record in await everything(settings, settings.topics.decisions, partition)]


def verified(settings: WorkerSettings) -> Any:
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        return verify(log.read())


@pytest.fixture
def settings(bootstrap: str, prefix: str) -> WorkerSettings:
    return WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, worker_session_timeout_ms=6_000, observe_interval_ms=1_000)


# ------------------------------------------------------------------------------------- as a process


class DeployedWorker:
    """`equipoise worker`, as it is deployed."""

    def __init__(self, settings: WorkerSettings, log: Path) -> None:
        arguments = ["--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--http-port", "0", "--worker-session-timeout-ms", "6000"]
        arguments += ["--partitions", str(settings.partitions), "--checkpoint-facts", "1000"]
        self._log = log.open("ab")
        self.process = subprocess.Popen([sys.executable, "-m", "equipoise", "worker", *arguments], stderr=self._log)

    def end(self, how: signal.Signals) -> float:
        """Ends the process with the signal `how`. Returns how long that took, in seconds."""
        began_s = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(60)
        self._log.close()
        return time.monotonic() - began_s


@pytest.fixture
def workers() -> Iterator[list[DeployedWorker]]:
    started: list[DeployedWorker] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


@pytest.mark.slow
async def test_worker_killed_under_load_loses_nothing_and_repeats_decisions_to_the_byte(
    bootstrap: str, prefix: str, tmp_path: Path, workers: list[DeployedWorker]
) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=2)
    await ensure_topics(settings, settings.topics, partitions=2)
    logs = tmp_path / "workers.log"
    workers += [DeployedWorker(settings, logs), DeployedWorker(settings, logs)]
    groups = [f"g{number}" for number in range(6)]
    async with Swarm(settings, settings.topics) as swarm:
        for number, group in enumerate(groups):  # half of the groups have only the worker's checkpoints of all groups
            config = CONFIG if number % 2 else configured(initial_delay_ms=200, acceptable_recovery_lag=100, checkpoint_every_records=0)
            await swarm.configure(group, config, topology(6))
            swarm.add(group, ["m1", "m2"], heartbeat_interval_ms=100)
        swarm.start()
        for group in groups:
            await swarm.until_all_run(group, 6, ["m1", "m2"], timeout_s=MOST_S)
        present = ["m1", "m2"]
        for number in range(3, 6):
            workers[-2].end(signal.SIGKILL)
            workers.append(DeployedWorker(settings, logs))
            for group in groups:
                swarm.add(group, [f"m{number}"], heartbeat_interval_ms=100)
            present.append(f"m{number}")
            for group in groups:
                await swarm.until_all_run(group, 6, present, timeout_s=MOST_S)
        assert not swarm.overlaps
        sent = swarm.sent
    end = time.monotonic() + MOST_S
    for each in workers[-2:]:
        while any(group.not_yet_written for group in (await asyncio.to_thread(verified, settings)).groups):  # the last worker leads all groups
            assert time.monotonic() < end, logs.read_text()[-2_000:]
            await asyncio.sleep(0.5)
        assert each.end(signal.SIGTERM) < 15.0  # the next worker may have to answer a tick sent at the very end
        assert each.process.returncode == 0, logs.read_text()[-2_000:]
    first: dict[tuple[str, int], bytes] = {}
    copies: Counter[str] = Counter()
    for partition in range(2):
        for record in await everything(settings, settings.topics.decisions, partition):
            name = record.key.decode(), decision_record(stored_decision(record.key, record.value, "here")).number
            copies["again" if name in first else "first"] += 1
            assert first.setdefault(name, record.value) == record.value
    found = verified(settings)
    assert found.verdict is Verdict.IDENTICAL, (found.problems, [group.divergence for group in found.groups if group.divergence])
    assert [group.group for group in found.groups] == groups
    assert sum(group.facts for group in found.groups) >= sent
    confirmed = sum(int(number) for number in re.findall(r"(\d+) published decisions? verified", logs.read_text()))
    assert confirmed > 0, "a takeover compares the published decisions"
    print(f"{sent} facts sent, {copies['first']} decisions, {copies['again']} written again, {confirmed} recomputed, all alike")


@pytest.mark.slow
async def test_worker_that_comes_or_goes_moves_its_partitions_alone(
    bootstrap: str, prefix: str, tmp_path: Path, workers: list[DeployedWorker]
) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=6)
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    groups = [f"g{number}" for number in range(12)]
    assert {partition_of(group, 6) for group in groups} == {*range(6)}

    def led(number: int) -> list[int]:
        """The partitions that a worker has taken over, in order."""
        return [int(partition) for partition in re.findall(r"partition (\d+) taken over", logs[number].read_text())]

    async def all_decide(swarm: Swarm, members: list[str]) -> None:
        for group in groups:
            swarm.add(group, members[-1:])
        for group in groups:
            await swarm.until_all_run(group, 4, members)

    workers.append(DeployedWorker(settings, logs[0]))
    await until(lambda: len(led(0)) == 6, "the first one leads all")
    async with Swarm(settings, settings.topics) as swarm:
        for group in groups:
            await swarm.configure(group, CONFIG, topology(4))
        swarm.start()
        await all_decide(swarm, ["m1"])
        workers.append(DeployedWorker(settings, logs[1]))
        await until(lambda: len(led(1)) == 3, "it shares them with the second one")
        await all_decide(swarm, ["m1", "m2"])
        workers.append(DeployedWorker(settings, logs[2]))
        await until(lambda: len(led(2)) == 2, "and the third one")
        await all_decide(swarm, ["m1", "m2", "m3"])
        assert (len(led(0)), len(led(1))) == (6, 3), "who keeps a partition does not take it over"
        workers[1].end(signal.SIGKILL)
        left = {*range(6)} - {*led(2)}
        await until(lambda: len(led(0)) + len(led(2)) > 9, "its two are taken over")
        await all_decide(swarm, ["m1", "m2", "m3", "m4"])
        assert len(led(0)) + len(led(2)) == 10
        assert {*led(0)[6:], *led(2)[2:]} <= left
        assert not swarm.overlaps
    found = await asyncio.to_thread(verified, settings)
    assert found.verdict is Verdict.IDENTICAL, found.problems


@pytest.mark.slow
def test_worker_with_wrong_settings_ends_with_one_line_that_names_them(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text("[worker]\nhttp_prot = 1\n")
    for arguments, says in (
        (["--settings", str(file)], f"{file}: [worker] http_prot: no such setting; did you mean http_port?"),
        (["--http-port", "many"], "--http-port: 'many' is not a whole number"),
        (["--bootstrap", "127.0.0.1:1"], "bootstrap: no broker answers at 127.0.0.1:1"),
    ):
        done = subprocess.run([sys.executable, "-m", "equipoise", "worker", *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert says in done.stderr.splitlines()[-1]


# ---------------------------------------------------------------------------------- in this process


@contextlib.asynccontextmanager
async def hosting(settings: WorkerSettings) -> AsyncIterator[PartitionHost]:
    """Leads partition 0 without Faust."""
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    host = LoneHost(settings, opened, 0, WorkerMetrics())
    host.start()
    try:
        await until(lambda: host.leading, "the partition is taken over")
        yield host
    finally:
        await host.stop()


async def test_stalled_reader_is_replaced(settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting(settings) as host, Swarm(settings, settings.topics) as swarm:
        stuck: list[FactReader] = []
        real = FactReader.batch

        async def batch(reader: FactReader) -> Any:
            stuck[:] = stuck or [reader]
            if reader is stuck[0]:
                await asyncio.sleep(MOST_S)
            return await real(reader)

        monkeypatch.setattr(FactReader, "batch", batch)
        monkeypatch.setattr("equipoise.worker.reader_watch._LOOK_AFTER_S", 0.5)
        await until(lambda: stuck, "it reads no more")
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        assert host._metrics.takeovers_failed._value.get() == 1
    assert verified(settings).verdict is Verdict.IDENTICAL


async def test_failed_send_ends_the_takeover_session_and_the_next_sends_the_missing(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(settings) as host, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        assert host._sender is not None
        producer = host._sender.producer
        real = producer.send

        async def failing(topic: str, value: bytes, **more: Any) -> Any:
            if topic == settings.topics.decisions:
                future = asyncio.get_running_loop().create_future()
                future.set_exception(OSError("the broker did not answer"))
                return future
            return await real(topic, value, **more)

        monkeypatch.setattr(producer, "send", failing)
        offsets = [(await (await swarm.send("g", MemberLeft(member_id="nobody", incarnation=number)))).offset for number in range(4)]
        await until(lambda: host._metrics.takeovers_failed._value.get() == 1, "the session ends")
        await until(lambda: host.leading and host.lead.position > offsets[-1], "the next session reads on")
    assert len(await all_decisions(settings)) == 4
    found = verified(settings)
    assert (found.verdict, found.groups[0].not_yet_written, found.groups[0].repeated) == (Verdict.IDENTICAL, 0, 0)


async def test_published_decision_that_differs_halts_only_its_group(settings: WorkerSettings) -> None:
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    async with Swarm(settings, settings.topics) as swarm:
        for group in ("bad", "good"):
            await swarm.configure(group, CONFIG, topology(4))
        left = MemberLeft(member_id="nobody", incarnation=1)
        sent = await (await swarm.send("bad", left))
        lie = DecisionRecord(opened.log_id, "bad", 1, sent.offset, 0, checksum_of("bad", left, sent), EventRejected(kind=11, code="unknown_member"))
        async with writer(settings) as producer:
            await producer.send_and_wait(settings.topics.decisions, pack_decision(lie), key=group_key("bad"), partition=0)
        async with Worker(settings) as worker:
            await until(lambda: not worker.unready(), "it has taken over")
            halted = {lead.name: (lead.halted.code, lead.halted.offset) for _, lead in worker.groups() if lead.halted is not None}
            assert halted == {"bad": ("published_differs", sent.offset)}
            swarm.last_number["bad"] = 1
            swarm.add("good", ["m1"])
            swarm.start()
            await swarm.until_all_run("good", 4, ["m1"])
    found = {group.group: group for group in verified(settings).groups}
    assert (found["bad"].verdict, found["good"].verdict) == (Verdict.DIVERGENCE, Verdict.IDENTICAL)


async def test_unknown_event_halts_only_its_group(settings: WorkerSettings) -> None:
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        for group in ("new", "old"):
            await swarm.configure(group, CONFIG, topology(4))
        async with writer(settings) as producer:
            await producer.send_and_wait(settings.topics.facts, pack_payload(77, 1, b"\x90"), key=group_key("new"), partition=0)
        swarm.add("old", ["m1"])
        swarm.start()
        await swarm.until_all_run("old", 4, ["m1"])
        halted = {lead.name: lead.halted.code for _, lead in worker.groups() if lead.halted is not None}
        assert halted == {"new": "event_unknown"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{worker.http_port}") as http:
            metrics = await (await http.get("/metrics")).text()
            assert 'equipoise_group_halted{group="new"} 1\n' in metrics
            assert 'equipoise_tasks{group="old",state="owned"} 4\n' in metrics
            assert (await http.get("/ready")).status == 200


@pytest.mark.smoke
async def test_takeover_without_checkpoints_gives_the_same_state(settings: WorkerSettings) -> None:
    """A worker that reads checkpoints, one that finds them damaged and one that finds none reach
    the same state.
    """
    async with hosting(settings) as host, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        for number in range(60):
            sent = await (await swarm.send("g", MemberLeft(member_id="nobody", incarnation=number)))
        await until(lambda: host.lead.position == sent.offset + 1, "all is folded")
        whole = host.lead.groups["g"].machine.snapshot()
        await host.stop(checkpoint=True)
    kept = await everything(settings, settings.topics.checkpoints)
    assert len(kept) >= 4
    async with hosting(settings) as host:
        assert host.lead.groups["g"].checkpoint_offset == sent.offset
        assert host.lead.groups["g"].machine.snapshot() == whole
        assert host._metrics.fold_seconds._sum_s == 0  # nothing was folded
    log_id = verified(settings).log_id
    damaged = StoredCheckpoint(group="g", offset=sent.offset, number=70, state=b"of another build")
    for records in (list(checkpoint_records(log_id, damaged, 0)), [(record.key, None) for record in kept]):
        async with writer(settings) as producer:
            for key, value in records:
                await producer.send_and_wait(settings.topics.checkpoints, value, key=key, partition=0)
        async with hosting(settings) as host:
            lead = host.lead.groups["g"]
            assert lead.machine.snapshot() == whole
            assert lead.confirmed == lead.machine.state.number > 60
    assert verified(settings).verdict is Verdict.IDENTICAL


async def test_worker_names_a_port_in_use_and_a_topic_of_others(settings: WorkerSettings) -> None:
    import attrs

    async with Worker(settings) as worker:
        with pytest.raises(InputError, match="http_port: cannot listen"):
            await Worker(attrs.evolve(settings, http_port=worker.http_port)).start()
    other = attrs.evolve(settings, prefix=f"{settings.prefix}o")
    await ensure_topics(other, other.topics)
    async with writer(settings) as producer:
        await producer.send_and_wait(other.topics.facts, b"of somebody else", partition=0)
    with pytest.raises(InputError, match="does not begin with LogOpened"):
        await Worker(other).start()


@pytest.mark.smoke
async def test_worker_appends_end_offsets_as_facts(settings: WorkerSettings) -> None:
    from aiokafka.admin import NewTopic

    from equipoise.kafka.started_clients import admin_client

    async with admin_client(settings) as admin:
        await admin.create_topics([NewTopic(f"{settings.prefix}log", 2, 1)])
    async with writer(settings) as producer:
        for _ in range(3):
            await producer.send_and_wait(f"{settings.prefix}log", b"x", partition=1)
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(2, prefix=settings.prefix))
        swarm.add("g", ["m1"])
        swarm.start()

        def observed() -> dict[str, dict[int, int]]:
            return next((lead.machine.state.end_offsets for _, lead in worker.groups()), {})

        await until(lambda: observed() == {f"{settings.prefix}log": {0: 0, 1: 3}}, "end offsets are facts")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{worker.http_port}") as http:
            shown = json.loads(await (await http.get("/groups/g")).text())
            assert {task["task"]: task["end_offset"] for task in shown["state"]["tasks"]} == {"0_0": 0, "0_1": 3}
            assert (await http.get("/groups/none")).status == 404


async def test_ticks_alone_end_the_initial_delay_begin_probing_rounds_and_end_sessions(settings: WorkerSettings) -> None:
    """Two members join and fall silent: from then on the log holds only the worker's ticks. See
    docs/protocol.md#l3.
    """
    config = configured("load_balanced", initial_delay_ms=1_000, probing_interval_ms=1_000)
    said: list[Fact] = [config, topology(2), *(joined(name, session_timeout_ms=8_000, lease_margin_ms=2_000) for name in ("m1", "m2"))]
    async with hosting(settings) as host:
        async with writer(settings) as producer:
            for fact in said:
                await producer.send_and_wait(settings.topics.facts, pack_fact(fact), key=group_key("g"), partition=0)
        await until(lambda: "g" in host.lead.groups and len(host.lead.groups["g"].machine.state.members) == 2, "they have joined")
        state = host.lead.groups["g"].machine.state
        deadlines: set[int | None] = set()

        def is_out() -> bool:
            deadlines.add(state.probing_deadline_ms)
            return not state.members

        await until(is_out, "their sessions are over")
        assert len(deadlines - {None}) >= 3, "one probing round after the other"
        assert host.lead.groups["g"].machine.next_deadline_ms is None, "an empty group waits for nothing"
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        records = list(log.read())
    facts = [type(each.event).__name__ for each in records if isinstance(each, FactRecord)]
    assert facts[:5] == ["LogOpened", "GroupConfigured", "TopologyDeclared", "MemberJoined", "MemberJoined"]
    assert set(facts[5:]) == {"ProbingTick"}
    decided = [each.decision for each in records if isinstance(each, DecisionRecord)]
    assert next(each.cause for each in decided if isinstance(each, AssignmentIssued)) == "start"
    expired = {(each.member_id, each.cause) for each in decided if isinstance(each, MemberExpired)}
    assert expired == {("m1", "session_timeout"), ("m2", "session_timeout")}


async def test_replaced_worker_publishes_the_same_as_its_successor(settings: WorkerSettings) -> None:
    """Both fold every fact and publish; readers take each decision once."""
    async with hosting(settings) as zombie, hosting(settings) as successor, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(6))
        swarm.add("g", ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run("g", 6, ["m1", "m2"])
        swarm.add("g", ["m3"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3"])
        assert not swarm.overlaps
        position = (await (await swarm.send("g", MemberLeft(member_id="nobody", incarnation=1)))).offset
        for host in (zombie, successor):
            await until(lambda host=host: host.lead.position > position, "both read on")
    (group,) = verified(settings).groups
    assert group.verdict is Verdict.IDENTICAL
    assert group.repeated > 0
    async with hosting(settings) as third:
        assert third.lead.groups["g"].halted is None
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        view = show_log(log.read())
    assert (view.first_divergence, len(view.members)) == (None, 3)
