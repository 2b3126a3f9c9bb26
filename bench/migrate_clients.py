"""``python -m bench.migrate_clients``: what `equipoise migrate` says of groups of clients in Go and
Node, and what a broker does, for each strategy that they have. Needs Java, Maven, Go and npm; the
clients are built once, into ``.venv/other_clients``.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aiokafka.admin import NewTopic

from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client
from equipoise.lead.migrating.asking_groups import GroupsAsking, JudgedGroup
from equipoise.lead.migrating.taking_over import TakingOver
from tests.live.group_clients import ROOT
from tools.brokers import Brokers

SOURCES = Path(__file__).with_name("other_clients")
BUILT = ROOT / ".venv" / "other_clients"
KAFKA, KAFKAJS = "4.4.0", "kafkajs@2.2.4"
STRATEGIES = {
    "franz-go": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "sarama": ("range", "roundrobin", "sticky"),
    "kafka-go": ("range", "roundrobin"),
    "KafkaJS": ("roundrobin",),
}
PARTITIONS, WAIT_S, REST_S = 6, 60.0, 30.0


def build() -> None:
    """Builds the clients that are not there. Raises CalledProcessError."""
    if not (BUILT / "member").exists():
        shutil.copytree(SOURCES, BUILT, dirs_exist_ok=True)
        subprocess.run(["go", "build", "-o", "member", "."], cwd=BUILT, check=True)
    if not (BUILT / "node_modules").exists():
        subprocess.run(["npm", "install", "--silent", KAFKAJS], cwd=BUILT, check=True)


def command(library: str, strategy: str, *where: str) -> list[str]:
    """Starts one client. `where`: broker, group and topic."""
    return ["node", str(BUILT / "consumer.js"), *where] if library == "KafkaJS" else [str(BUILT / "member"), library, strategy, *where]


async def judged(connection: Connection, group: str, members: int) -> JudgedGroup | None:
    """The group, once it is at rest with so many clients that have everything; None: it is not."""
    for _ in range(int(WAIT_S / 0.5)):
        async with GroupsAsking(connection) as asking:
            found = await asking.judged([group])
        if found and len(found[0].group.clients) == members and sum(len(each.held) for each in found[0].group.clients) == PARTITIONS:
            return found[0]
        await asyncio.sleep(0.5)
    return None


async def row(connection: Connection, library: str, strategy: str) -> Sequence[str]:
    """Library, strategy, verdict, what the broker did, and bytes of user data given."""
    group = f"{library}-{strategy}"
    async with admin_client(connection) as admin:
        await admin.create_topics([NewTopic(group, PARTITIONS, 1)])
    clients: list[asyncio.subprocess.Process] = []
    try:
        found: JudgedGroup | None = None
        for number in range(2):
            clients.append(await asyncio.create_subprocess_exec(*command(library, strategy, connection.bootstrap, group, group)))
            found = await judged(connection, group, number + 1)
        if found is None:
            return library, strategy, "not at rest", "", ""
        given = str(max(each.given for each in found.group.clients))
        async with TakingOver(connection, found.group) as taking:
            done = await taking.take_over(REST_S)
        return library, strategy, found.verdict.takes, "taken over" if done.is_done else done.problem, given
    finally:
        for each in clients:
            if each.returncode is None:
                each.kill()
            await each.wait()


async def main() -> int:
    build()
    with Brokers(version=KAFKA) as brokers:
        connection = Connection(bootstrap=brokers.bootstrap)
        print("client      strategy             verdict  the broker")
        wrong = 0
        for library, strategies in STRATEGIES.items():
            for strategy in strategies:
                _, _, takes, did, given = await row(connection, library, strategy)
                wrong += (takes == "yes") is not (did == "taken over")
                print(f"{library:11} {strategy:20} {takes:8} {did}; {given} bytes of user data given", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
