"""`equipoise worker`: leads the groups of a log in Kafka."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.cli.settings import settings_options
from equipoise.cli.visible import VisibleFormatter
from equipoise.events.errors import InputError
from equipoise.events.log.kafka.connection import MISSING
from equipoise.worker.settings import WorkerSettings


@command("worker", json=False, short_help="Lead the groups of a log in Kafka until stopped.")
@settings_options(WorkerSettings, table="worker")
def worker(screen: Screen, settings: WorkerSettings) -> None:
    """Lead every group in the log's partitions that are assigned to this process: read facts,
    decide, and write the decisions. Several workers share the partitions; when one ends, the others
    take over its partitions and continue with the same decisions.

    Missing topics are created. Topics with settings that the log cannot work with are refused.
    SIGTERM and SIGINT end the worker within 5 seconds. It logs to stderr and serves HTTP: /health
    /ready /metrics /groups /groups/NAME.

    \b
    Examples:
      equipoise worker --bootstrap 127.0.0.1:9092
      equipoise worker --settings worker.toml --http-port 0
      EQUIPOISE_SECURITY_PROTOCOL=SASL_SSL EQUIPOISE_SASL_USERNAME=u EQUIPOISE_SASL_PASSWORD=p \\
        equipoise worker
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("equipoise").setLevel(settings.log_level)
    for noisy in ("faust", "mode", "aiokafka"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger("equipoise").level))
    asyncio.run(_lead(screen, settings))


async def _lead(screen: Screen, settings: WorkerSettings) -> None:
    try:
        from equipoise.worker.app import Worker  # loads Faust
    except ModuleNotFoundError:
        raise InputError(MISSING) from None

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop.set)
    async with Worker(settings) as running:
        screen.remark(f"leading log {running.log_id}; http://{settings.http_host}:{running.http_port}")
        await stop.wait()
        screen.remark("stopping")
