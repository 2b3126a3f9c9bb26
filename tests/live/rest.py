"""A deployment that has nothing to do, watched by a real Prometheus: which alerts fire, and when.

::

    python -m tests.live.rest --rest-s 3600    # with the alerts' own times
    python -m tests.live.rest --rest-s 60      # all times of the alerts are divided by 30

Two workers and three members on a broker of its own. Members have state and standbys, and write a
chain of two processors with exactly_once (--guarantee), so that every topic ends in markers of
transactions. At rest no alert may fire. Then a member is killed and comes back, a source gets
partitions that no task reads, and a handler hangs: the alert for each must fire. The exit status is
1 when it is otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from equipoise import Connection, Member, Processor, Record, TaskContext
from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.started_clients import admin_client, reader
from tests.groups import configured
from tests.live import kafka
from tests.live.builds import started
from tests.live.kafka import writer
from tests.prometheus import Prometheus
from tools.brokers import Brokers, free_ports

GROUP = "resting"
PARTITIONS = 4
RECORDS = 400
STICKS = b"stick"
SESSION_MS = 8_000
LOOK_S = 0.5
OWN_TIMES_S = 1_800.0
"""A shorter rest has the alerts' times divided by FASTER."""
FASTER = 30.0
READY_S = 120.0
OF_A_KILL = {"EquipoiseMemberDown"}
OF_UNREAD_PARTITIONS = {"EquipoiseUnreadPartitions"}
OF_A_HANDLER = {"EquipoiseMemberStuck"}
TOPICS = {"begin": "delete", "middle": "delete", "end": "delete", "begin-state": "compact", "middle-state": "compact"}


Handle = Callable[[Record, TaskContext], Coroutine[Any, Any, None]]


def run_member(bootstrap: str, member_id: str, state: str, port: int, guarantee: str) -> int:
    """A member, in a process of its own. Returns its exit status."""

    def to(topic: str) -> Handle:
        async def handle(record: Record, context: TaskContext) -> None:
            if record.value == STICKS:
                await asyncio.Event().wait()
            context.state.put(record.key, record.value)
            context.send(topic, record.value, key=record.key)

        return handle

    processors = [
        Processor(to("middle"), sources="begin", state="begin-state", outputs="middle"),
        Processor(to("end"), sources="middle", state="middle-state", outputs="end"),
    ]
    member = Member(
        GROUP,
        processors=processors,
        member_id=member_id,
        connection=Connection(bootstrap=bootstrap),
        guarantee=guarantee,
        state_directory=state,
        session_timeout_ms=SESSION_MS,
        lease_margin_ms=1_000,
        heartbeat_interval_ms=500,
        http_port=port,
        group_config=configured(num_standbys=1, initial_delay_ms=2_000),
    )
    return asyncio.run(member.run())


async def make_topics(connection: Connection) -> None:
    async with admin_client(connection) as admin:
        made = await admin.create_topics([NewTopic(name, PARTITIONS, 1, {"cleanup.policy": policy}) for name, policy in TOPICS.items()])
    assert not made, made


async def grow(connection: Connection) -> None:
    async with kafka.admin_client(connection) as admin:
        await kafka.create_partitions(admin, {"begin": PARTITIONS + 2})


async def feed(connection: Connection, values: Collection[bytes]) -> None:
    async with writer(connection) as producer:
        for number, value in enumerate(values):
            await producer.send("begin", value, key=b"k%d" % number, partition=number % PARTITIONS)
        await producer.flush()


async def ends(connection: Connection, topic: str) -> int:
    """Offsets in a topic: of its records and of the markers of transactions."""
    async with reader(connection) as consumer:
        return sum((await consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])).values())


class Watch:
    """Prints when alerts begin and end to fire. `since_s`: of the clock that it prints (monotonic)."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._since_s = time.monotonic()
        self._firing: set[str] = set()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._since_s:8.1f} s  {text}", flush=True)

    def look(self) -> set[str]:
        """The names of the alerts that fire now."""
        found = {
            " ".join([each["labels"]["alertname"], *(f"{name}={value}" for name, value in sorted(each["labels"].items()) if name not in IGNORED)])
            for each in self._prometheus.ask("alerts")["alerts"]
            if each["state"] == "firing"
        }
        for text in sorted(found - self._firing):
            self.say(f"fires  {text}")
        for text in sorted(self._firing - found):
            self.say(f"ends   {text}")
        self._firing = found
        return {text.split()[0] for text in found}

    def during(self, seconds: float, *, until: Callable[[set[str]], bool] = lambda fired: False) -> set[str]:
        """The alerts that fire within this time, or `until` those that have fired are enough."""
        fired: set[str] = set()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not until(fired):
            fired |= self.look()
            time.sleep(LOOK_S)
        return fired


IGNORED = {"alertname", "severity", "job"}


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {READY_S:.0f} s: {what}"
        time.sleep(LOOK_S)


def end(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for each in processes.values():
        each.kill()
        each.wait()


def rest(rest_s: float, guarantee: str, folder: Path) -> bool:
    """Plays it. Returns whether exactly the alerts fired that should."""
    faster = 1.0 if rest_s >= OWN_TIMES_S else FASTER
    with ExitStack() as stack:
        brokers = Brokers()
        stack.callback(brokers.close)
        connection = Connection(bootstrap=brokers.bootstrap)
        asyncio.run(make_topics(connection))
        ports = free_ports(5)
        of_member = {f"m{number}": port for number, port in enumerate(ports[2:], 1)}
        processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(end, processes)

        def start(member_id: str) -> None:
            command = ["tests.live.rest", "--member", brokers.bootstrap, member_id, str(folder / member_id), str(of_member[member_id]), guarantee]
            processes[member_id] = started(command, folder / f"{member_id}.out")

        for number, port in enumerate(ports[:2], 1):
            command = ["equipoise", "worker", "--bootstrap", brokers.bootstrap, "--partitions", "2", "--http-port", str(port)]
            processes[f"w{number}"] = started(command, folder / f"w{number}.out")
        until(lambda: all(map(ready, ports[:2])), "workers are ready")
        for member_id in of_member:
            start(member_id)
        until(lambda: all(map(ready, ports)), "members are ready")
        asyncio.run(feed(connection, [b"%d" % number for number in range(RECORDS)]))
        until(lambda: asyncio.run(ends(connection, "end")) >= RECORDS, "records have passed through the chain")
        targets = {"equipoise-worker": [f"127.0.0.1:{port}" for port in ports[:2]], "equipoise-member": [f"127.0.0.1:{port}" for port in ports[2:]]}
        prometheus = stack.enter_context(Prometheus(folder, targets, faster=faster))
        until(lambda: len(prometheus.query("up == 1")) == len(ports) and not prometheus.firing(), "Prometheus has scraped everything")
        watch = Watch(prometheus)
        watch.say(f"{RECORDS} records have passed through two processors; at rest for {rest_s:.0f} s, with the alerts' times divided by {faster:.0f}")
        at_rest = watch.during(rest_s)
        lags = {name: prometheus.query(f"sum({name})") for name in ("equipoise_member_source_lag_records", "equipoise_member_restore_lag_records")}
        watch.say("; ".join(f"{name}: {found[0]['value'][1] if found else 'absent'}" for name, found in lags.items()))

        watch.say("m3 is killed")
        processes["m3"].kill()
        processes["m3"].wait()
        longest_s = 1_800 / faster
        killed = watch.during(SESSION_MS / 1_000 + longest_s, until=lambda fired: fired >= OF_A_KILL)
        watch.say("m3 comes back")
        start("m3")
        until(lambda: ready(of_member["m3"]), "m3 is ready")
        watch.during(longest_s, until=lambda fired: not watch.look())
        watch.say("begin gets two partitions more, and the topology stays as it is")
        asyncio.run(grow(connection))
        unread = watch.during(2 * longest_s, until=lambda fired: fired >= OF_UNREAD_PARTITIONS)
        watch.say("a handler hangs")
        asyncio.run(feed(connection, [STICKS]))
        hung = watch.during(2 * longest_s, until=lambda fired: fired >= OF_A_HANDLER)
        holds = not at_rest and killed >= OF_A_KILL and unread >= OF_UNREAD_PARTITIONS and hung >= OF_A_HANDLER
        watch.say(f"at rest: {shown(at_rest)}; after the kill: {shown(killed)}")
        watch.say(f"with partitions that nobody reads: {shown(unread)}; with a handler that hangs: {shown(hung)}")
        watch.say("as it should be" if holds else "NOT as it should be")
        return holds


def shown(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rest-s", type=float, default=120.0, help="seconds at rest")
    parser.add_argument("--guarantee", choices=["exactly_once", "at_least_once"], default="exactly_once", help="of the members")
    parser.add_argument("--member", nargs=5, metavar=("BOOTSTRAP", "ID", "STATE", "PORT", "GUARANTEE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        bootstrap, member_id, state, port, guarantee = given.member
        return run_member(bootstrap, member_id, state, int(port), guarantee)
    with tempfile.TemporaryDirectory(prefix="equipoise-rest-") as folder:
        return 0 if rest(given.rest_s, given.guarantee, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
