"""A real Prometheus scrapes a worker, members and the exporter of the verification on Spark, on a
real broker: what dashboard and alerts name is there, everything that is there is on the dashboard,
and alerts fire when processes are killed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from equipoise.cli.exporter import MetricsExporter
from equipoise.cli.spark.stream import _metrics as stream_metrics
from equipoise.cli.watched_metrics import WatchedCollector
from equipoise.events.facts import Fact
from equipoise.kafka.connection import Connection
from equipoise.lead.metrics import LeadCollector
from equipoise.lead.seat_status import SeatState, SeatStatus
from equipoise.log.kafka.envelope import group_key, pack_fact
from equipoise.log.kafka.log_topics import Topics
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.incident.watched_groups import WatchedGroups
from examples.orders.produce import make_topics, produce
from tests.groups import configured
from tests.live.builds import started
from tests.live.kafka import writer
from tests.prometheus import Prometheus, dashboard, metrics_in, promtool, queries, rules
from tools.brokers import free_ports

MOST_S = 90.0
EXPECTED = {"EquipoiseMemberDown", "EquipoiseWorkerDown", "EquipoiseNoWorker"}
QUIET = {"EquipoiseMemberExpired", "EquipoisePartitionNotLed"}
"""One kill is what the group is for, and without a worker nobody says who leads."""


def others_metrics(port: int, recorded: Path) -> MetricsExporter:
    """Those of `equipoise lead` that leads a group, and of `equipoise record` after a rebalance;
    tests/live/test_lead_watched.py has the commands.
    """
    status = SeatStatus(group="others", monotonic_s=time.monotonic)
    status.sees(3, 1)
    status.become(SeatState.LEADS)
    status.decided(0)
    status.answered_s, status.lag_records, status.uncommitted = time.monotonic(), 10, 0
    with open_recording(str(recorded), write=True) as recording:
        watched = WatchedGroups(recording, time.time_ns() // 1_000_000)
    watched.rebalances["others", "joined"] += 1
    watched.unavailable_s["others", "joined"] += 2
    registry = CollectorRegistry()
    registry.register(LeadCollector(lambda: [status]))
    registry.register(WatchedCollector(watched))
    return MetricsExporter("equipoise lead", registry, port)


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def reached(port: int, path: str) -> bool:
    try:
        return bool(page(port, path))
    except OSError:
        return False


def until(condition: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    end_s = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < end_s, told()
        time.sleep(0.2)


def end(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.kill()
        process.wait()


async def say(connection: Connection, prefix: str, group: str, fact: Fact) -> None:
    async with writer(connection) as producer:
        await (await producer.send(Topics(prefix).facts, pack_fact(fact), key=group_key(group), partition=0))


@pytest.mark.smoke
def test_prometheus_finds_every_metric_of_the_dashboard_and_alerts_fire_after_kills(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    connection = Connection(bootstrap=bootstrap)
    port_of_worker, port_of_stream, port_of_others, *ports_of_members = free_ports(5)
    asyncio.run(make_topics(connection, prefix, 4))
    worker = [
        "equipoise",
        "worker",
        "--bootstrap",
        bootstrap,
        "--prefix",
        prefix,
        "--http-port",
        str(port_of_worker),
        "--observe-interval-ms",
        "500",
        "--retention-ms",
        "3600000",
        "--base-interval-ms",
        "1000",
    ]
    processes: dict[str, subprocess.Popen[bytes]] = {"worker": started(worker, tmp_path / "worker.out")}
    with ExitStack() as stack:
        stack.callback(end, processes)
        stack.enter_context(stream_metrics(port_of_stream, {"records": 0, "facts": 0, "decisions": 0, "alerts": 0}))
        stack.enter_context(others_metrics(port_of_others, tmp_path / "cluster.db"))
        until(lambda: reached(port_of_worker, "/ready"), (tmp_path / "worker.out").read_text)
        config = configured("load_balanced", num_standbys=1, initial_delay_ms=200, probing_interval_ms=1_000)
        asyncio.run(say(connection, prefix, prefix, config))
        for number, port in enumerate(ports_of_members, 1):
            member = [
                "examples.orders",
                "--bootstrap",
                bootstrap,
                "--topic",
                prefix,
                "count",
                "--member",
                f"m{number}",
                "--group",
                prefix,
                "--prefix",
                prefix,
                "--http-port",
                str(port),
                "--session-timeout-ms",
                "6000",
                "--lease-margin-ms",
                "1000",
                "--heartbeat-interval-ms",
                "500",
                "--log-format",
                "json",
            ]
            processes[f"m{number}"] = started(member, tmp_path / f"m{number}.out")
        asyncio.run(produce(connection, prefix, orders=200, per_second=400.0, customers=10, seed=1))
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(
                urllib.request.Request(
                    f"http://127.0.0.1:{port_of_worker}/v1/groups/{prefix}/rounds", b"no question", {"Content-Type": "application/json"}
                ),
                timeout=10,
            )
        targets = {
            "equipoise-worker": [f"127.0.0.1:{port_of_worker}"],
            "equipoise-member": [f"127.0.0.1:{port}" for port in ports_of_members],
            "equipoise-stream": [f"127.0.0.1:{port_of_stream}"],
            "equipoise-lead": [f"127.0.0.1:{port_of_others}"],
        }
        prometheus = stack.enter_context(Prometheus(tmp_path, targets))

        shown, alerted = metrics_in(queries(dashboard())), metrics_in(rule["expr"] for rule in rules())
        until(lambda: prometheus.metrics() >= shown | alerted, lambda: (shown | alerted) - prometheus.metrics())
        assert prometheus.metrics() == shown
        without: list[str] = []

        def all_answered() -> bool:
            without[:] = [text for text in queries(dashboard()) if not prometheus.query(text)]
            return not without

        until(all_answered, lambda: without)
        for port in (port_of_worker, *ports_of_members, port_of_stream, port_of_others):
            promtool("check", "metrics", stdin=page(port, "/metrics"))
        until(lambda: not prometheus.firing() & (EXPECTED | QUIET), prometheus.firing)

        told = [json.loads(line) for line in (tmp_path / "m1.out").read_text().splitlines()]
        assert any("runs 0_" in line["message"] for line in told), "--log-format json"

        processes["m2"].kill()
        until(lambda: prometheus.firing() >= {"EquipoiseMemberDown"}, prometheus.firing)
        assert not prometheus.firing() & {"EquipoiseWorkerDown", "EquipoiseNoWorker", *QUIET}
        processes["worker"].kill()
        until(lambda: prometheus.firing() >= EXPECTED, prometheus.firing)
        assert not prometheus.firing() & QUIET
