"""The application on `equipoise.Member`, with RocksDB. SIGTERM: it leaves in order, its tasks
first. SIGUSR1: it stops, and will be back.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

import attrs

from bench.peers.apps.given import KEYS, WINDOW_MS, Given, answer_to, counted, given
from equipoise import Member, Record, TaskContext
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.kafka.connection import Connection
from equipoise.streams import aggregates, tumbling

_LOG = logging.getLogger(__name__)
PROBING_INTERVAL_MS = 60_000
BACK_WITHIN_S = 30.0


async def run(given: Given) -> None:
    """Until it was released."""

    async def count(record: Record, context: TaskContext) -> None:
        if given.handler_ms:
            await asyncio.sleep(given.handler_ms / 1_000)
        value, number = counted(context.state.get(record.key))
        context.state.put(record.key, value)
        context.send(given.output, answer_to(record.partition, record.offset, given.instance, number), partition=record.partition)

    async def count_all(records: Sequence[Record], context: TaskContext) -> None:
        keys = list({record.key for record in records})
        counts = dict(zip(keys, context.state.get_many(keys), strict=True))
        answers = []
        for record in records:
            counts[record.key], number = counted(counts[record.key])
            answers.append((None, answer_to(record.partition, record.offset, given.instance, number)))
        context.state.put_many(counts)
        context.send_many(given.output, answers, partition=context.task.partition)

    windows = tumbling("counts", aggregates.count(), size_ms=WINDOW_MS)

    def count_in_windows(record: Record, context: TaskContext) -> None:
        for each in windows.add(context, record.key, None, record.offset):
            number = each.start_ms // KEYS + each.value
            context.send(given.output, answer_to(record.partition, record.offset, given.instance, number), partition=record.partition)

    name, version, solver = given.assignor
    knobs = GroupSettings(probing_interval_ms=PROBING_INTERVAL_MS, num_standbys=given.standbys)
    if given.initial_delay_ms is not None:
        knobs = attrs.evolve(knobs, initial_delay_ms=given.initial_delay_ms)
    config = GroupConfigured(assignor=name, behaviour_version=version, solver=solver, knobs=knobs)
    one_by_one = count_in_windows if given.in_windows else count
    member = Member(
        given.name,
        None if given.in_batches else one_by_one,
        batch_handler=count_all if given.in_batches else None,
        sources=given.input,
        state=given.changelog,
        member_id=given.instance,
        connection=Connection(bootstrap=given.bootstrap),
        prefix=given.name,
        group_config=config,
        guarantee="exactly_once" if given.exactly_once else "at_least_once",
        state_directory=given.state,
        session_timeout_ms=given.session_timeout_ms,
        heartbeat_interval_ms=given.heartbeat_interval_ms,
        on_assigned=lambda context: _LOG.info("runs %s", context.task),
        on_revoked=lambda context: _LOG.info("has stopped %s", context.task),
        on_standby=lambda task: _LOG.info("keeps a copy of %s", task),
        witness=given.witness,
    )
    leaving: list[asyncio.Future[None]] = []

    def restart() -> None:
        leaving.append(asyncio.ensure_future(member.leave(back_within_s=BACK_WITHIN_S)))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, restart)
    await member.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    asyncio.run(run(given()))
