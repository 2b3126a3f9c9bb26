"""The worker when its only broker is killed, and with TLS and SASL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import attrs
import pytest

from equipoise.events.errors import InputError
from equipoise.log import open_log
from equipoise.replay.timelines import build_timeline
from equipoise.replay.verification import Verdict
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.secured import certificate, with_tls
from tests.live.swarm import Swarm, topology
from tests.live.test_worker import CONFIG, MOST_S, until, verified
from tools.brokers import Brokers


@pytest.mark.slow
async def test_worker_leads_on_after_a_broker_restart() -> None:
    with Brokers() as brokers:
        settings = WorkerSettings(bootstrap=brokers.bootstrap, http_port=0, worker_session_timeout_ms=6_000)
        async with Worker(settings) as worker:
            async with Swarm(settings, settings.topics) as swarm:
                await swarm.configure("g", CONFIG, topology(4))
                swarm.add("g", ["m1"])
                swarm.start()
                await swarm.until_all_run("g", 4, ["m1"], timeout_s=MOST_S)
            brokers.kill(0)
            brokers.start(0)
            async with Swarm(settings, settings.topics) as swarm:
                swarm.add("g", ["m2"], session_timeout_ms=30_000)
                swarm.start()
                await swarm.until_all_run("g", 4, ["m2"], timeout_s=2 * MOST_S)
            await until(lambda: not worker.unready(), "it is ready again")
        found = verified(settings)
        assert found.verdict is Verdict.IDENTICAL, found.problems


@pytest.mark.slow
async def test_metric_and_timeline_agree_on_tasks_unavailable_during_a_broker_outage() -> None:
    """The worker's takeover session ends too: it counts the silence during its next takeover."""
    with Brokers() as brokers:
        settings = WorkerSettings(bootstrap=brokers.bootstrap, http_port=0, worker_session_timeout_ms=6_000)
        async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(4))
            swarm.add("g", ["m1"], session_timeout_ms=8_000, lease_margin_ms=2_000)
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1"], timeout_s=MOST_S)
            await asyncio.sleep(2)  # heartbeats
            before_s = unavailable_s(worker)
            brokers.kill(0)
            killed_ms = int(time.time() * 1_000)
            await asyncio.sleep(15)
            await asyncio.to_thread(brokers.start, 0)
            await swarm.until_all_run("g", 4, ["m1"], timeout_s=2 * MOST_S)
            await until(lambda: not worker.unready(), "it is ready again")
            await asyncio.sleep(2)
            counted_s = unavailable_s(worker) - before_s
        with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
            timeline = await asyncio.to_thread(lambda: build_timeline(log.read(group="g")))
        stopped = timeline.stopped(killed_ms - 5_000, timeline.to_ms + 1)
        told_s = sum(to_ms - from_ms for stretches in stopped.values() for from_ms, to_ms in stretches) / 1_000
        assert told_s > 4 * 15
        # The timeline counts until a report shows that a task runs; the metric, until it has an
        # owner.
        assert counted_s == pytest.approx(told_s, abs=4 * 3)


def unavailable_s(worker: Worker) -> float:
    return worker.metrics.unavailable_s.get("g", 0.0)


@pytest.mark.smoke
async def test_worker_connects_with_tls_and_a_password(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="b" user_broker="b" user_lead="secret";'
    secured = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": jaas,
        **with_tls(chain, key),
    }
    with Brokers(1, **secured) as brokers:
        settings = WorkerSettings(
            bootstrap=brokers.bootstrap,
            http_port=0,
            security_protocol="SASL_SSL",
            sasl_username="lead",
            sasl_password="secret",
            ssl_ca_file=str(chain),
        )
        async with Worker(settings), Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(4))
            swarm.add("g", ["m1"])
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1"], timeout_s=MOST_S)
        with pytest.raises(InputError, match=r"the brokers at .* refuse them"):
            await Worker(attrs.evolve(settings, sasl_password="wrong")).start()
