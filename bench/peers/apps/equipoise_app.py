"""The application on `equipoise.Member`, with RocksDB. SIGTERM: it leaves in order, its tasks
first.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any

from bench.peers.apps.given import Given, answer_to, counted, given
from equipoise import Member, TaskContext
from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.settings import GroupSettings

_LOG = logging.getLogger(__name__)
PROBING_INTERVAL_MS = 60_000


async def run(given: Given) -> None:
    """Until it was released."""

    def count(record: Any, context: TaskContext) -> None:
        value, number = counted(context.state.get(record.key))
        context.state.put(record.key, value)
        context.send(given.output, answer_to(record.partition, record.offset, given.instance, number), partition=record.partition)

    part = Subtopology(
        subtopology=0, partitions=given.tasks, stateful=True, source_topics=(given.input,), changelog_topics=(given.changelog,)
    )  # fmt: skip
    assignor = registry.latest("high_availability")
    config = GroupConfigured(
        assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver,
        knobs=GroupSettings(probing_interval_ms=PROBING_INTERVAL_MS, num_standbys=given.standbys),
    )  # fmt: skip
    member = Member(
        given.name, given.instance, count, TopologyDeclared(epoch=0, subtopologies=(part,)), connection=Connection(bootstrap=given.bootstrap),
        prefix=given.name, group_config=config, state_directory=given.state, session_timeout_ms=given.session_timeout_ms,
        heartbeat_interval_ms=given.heartbeat_interval_ms, on_assigned=lambda context: _LOG.info("runs %s", context.task),
        on_revoked=lambda context: _LOG.info("has stopped %s", context.task), on_standby=lambda task: _LOG.info("keeps a copy of %s", task),
    )  # fmt: skip
    async with member:
        leaving: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: leaving.append(asyncio.ensure_future(member.leave())))
        await member.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    asyncio.run(run(given()))
