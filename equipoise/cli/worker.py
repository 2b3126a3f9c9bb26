"""`equipoise worker`: leads the groups of a log in Kafka."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.cli.settings_options import settings_options
from equipoise.cli.visible import VisibleFormatter
from equipoise.events.errors import InputError
from equipoise.hosting.json_logging import JsonFormatter
from equipoise.hosting.runtime import collect_seldom
from equipoise.kafka.connection import MISSING
from equipoise.worker.settings import RELOADED, WorkerSettings

if TYPE_CHECKING:
    from equipoise.worker.app import Worker

_LOG = logging.getLogger(__name__)


@command("worker", json=False, short_help="Lead the groups of a log in Kafka until stopped.")
@settings_options(WorkerSettings, table="worker", again=True)
def worker(screen: Screen, settings: WorkerSettings, read_again: Callable[[], WorkerSettings]) -> None:
    """Lead every group in the log's partitions that are assigned to this process. Several workers
    share the partitions; when one ends, the others take over its partitions.

    Missing topics are created; topics with settings that the log cannot work with are refused.
    SIGTERM and SIGINT end the worker within 5 seconds; SIGHUP reads the settings again. It logs
    each decision to stderr, and serves HTTP: /health /ready /metrics /groups /groups/NAME.

    \b
    Examples:
      equipoise worker --bootstrap 127.0.0.1:9092
      equipoise worker --settings worker.toml --http-port 0
      equipoise worker --log-format json 2>&1 | jq 'select(.decided) | .message'
    """
    handler = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    _set_up(handler, settings)
    asyncio.run(_lead(screen, settings, read_again, handler))


def _set_up(handler: logging.Handler, settings: WorkerSettings) -> None:
    is_json = settings.log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else VisibleFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.getLogger("equipoise").setLevel(settings.log_level)
    for noisy in ("faust", "mode", "aiokafka"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger("equipoise").level))


async def _lead(screen: Screen, settings: WorkerSettings, read_again: Callable[[], WorkerSettings], handler: logging.Handler) -> None:
    try:
        from equipoise.worker.app import Worker  # loads Faust
    except ModuleNotFoundError:
        raise InputError(MISSING) from None

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = Worker(settings)

    def reload() -> None:
        try:
            new = read_again()
        except (InputError, OSError) as error:
            _LOG.error("SIGHUP: the settings stay as they are: %s", error)
            return
        late = running.reload(new)
        _set_up(handler, running.settings)
        waits = f"; {', '.join(late)} changed too, which a restart reads" if late else ""
        _LOG.info("SIGHUP: %s%s", ", ".join(f"{name}={getattr(new, name)}" for name in RELOADED), waits)

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    is_text = settings.log_format == "text"
    async with running:
        collect_seldom()
        if is_text and not _LOG.isEnabledFor(logging.INFO):  # else the log says it
            screen.remark(f"leading log {running.log_id}; {running.url}")
        await (_lead_beside(running, stop) if settings.lead_groups else stop.wait())
        if is_text:
            screen.remark("stopping")


async def _lead_beside(running: Worker, stop: asyncio.Event) -> None:
    from equipoise.cli.lead import configuration, lead_watched
    from equipoise.lead.broker_seat.led_groups import HowToLead, LedGroups
    from equipoise.lead.metrics import LeadCollector
    from equipoise.lead.seat.generation import SeatSettings

    settings = running.settings
    chosen = SeatSettings(hold_ms=settings.lead_hold_ms, capacities=settings.lead_capacities)
    how = HowToLead(connection=settings, settings=chosen, config=configuration(()), streams_config=configuration((), streams=True))
    patterns = [each.strip() for each in settings.lead_groups.split(",")]
    led = LedGroups(how, [each for each in patterns if each], Path(settings.lead_folder))
    running.metrics.registry.register(LeadCollector(led.statuses))
    running.unready_beside = led.unready
    await lead_watched(led, settings, stop)
