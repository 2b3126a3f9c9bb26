"""`equipoise lead`: leads a group of any clients, from its leader's seat or inside the brokers."""

from __future__ import annotations

import asyncio
import difflib
import logging
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.params import Number, check_live_settings
from equipoise.cli.screen import Screen
from equipoise.cli.settings_options import settings_options
from equipoise.cli.visible import VisibleFormatter
from equipoise.events.errors import FieldError, InputError
from equipoise.hosting.changed_settings import capacity_of, scalar, setting_value
from equipoise.hosting.json_logging import JsonFormatter
from equipoise.kafka.connection import MISSING
from equipoise.kafka.started_clients import admin_client, reaching
from equipoise.lead.settings import LeadSettings

if TYPE_CHECKING:
    from equipoise.events.facts import GroupConfigured
    from equipoise.kafka.connection import Connection
    from equipoise.lead.broker_seat.led_groups import HowToLead, LedGroup, LedGroups

_LOG = logging.getLogger(__name__)
REVOCATION_TIMEOUT_MS = 86_400_000
"""The broker removes a member that does not rejoin, after its max.poll.interval.ms."""
MAX_STEP_MS = 60_000
CAUGHT_UP = 1_000
"""Records that a copy of Kafka Streams may lack when its task moves: copies are kept up until tasks
are handed over, so near ones are worth the wait.
"""


@command("lead", json=False, short_help="Lead a consumer group of any clients of Kafka.")
@click.option(
    "--group",
    required=True,
    metavar="GROUP",
    help="Consumer group (classic or KIP-848), or one of Kafka Streams (KIP-1071). With * or ?: each that fits and has members.",
)
@click.option(
    "--to", "place", type=click.Path(path_type=Path), metavar="LOG", help="Log of the group to write, or to continue; of several: their folder."
)
@click.option("--hold", "hold_s", type=Number(0, 240), default=0.0, metavar="S", help="How many seconds partitions of a gone member wait for it.")
@click.option("--capacity", "capacities", multiple=True, metavar="CLIENT_ID=N", help="Clients with this id (with * and ?) get N times as much.")
@click.option("--evict", is_flag=True, help="Take the present leader out of the group once, so that equipoise leads now.")
@click.option("--convert", is_flag=True, help="Lead a classic group from inside the brokers, which take it over to KIP-848 meanwhile.")
@click.option("--dry-run", is_flag=True, help="Change nothing: say how the group would be led, and what would move first.")
@click.option("--set", "settings_given", multiple=True, metavar="NAME=VALUE", help="A setting of the group, as assignor=lag_aware.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="What it logs: text, or a JSON document a line.")
@settings_options(LeadSettings, table="lead")
def lead(
    screen: Screen,
    settings: LeadSettings,
    group: str,
    place: Path | None,
    hold_s: float,
    capacities: tuple[str, ...],
    evict: bool,
    convert: bool,
    dry_run: bool,
    settings_given: tuple[str, ...],
    log_format: str,
) -> None:
    """Join a consumer group, be its leader, and assign its partitions to the other members, which
    may be any clients of Kafka, unmodified. The command reads no partition itself. When it is
    interrupted it leaves the group, which is led as before.

    A classic group's assignment protocol must be range, roundrobin, sticky or cooperative-sticky.
    Groups of KIP-848 and KIP-1071 are led from inside the brokers, which need equipoise's assignor
    (docs/seat.md). Connect and classic groups of Kafka Streams are refused.

    In a running classic group the seat joins (one rebalance) and leads when the present leader is
    gone; --evict does not wait. Run it twice, with two log files: the second one stands by.
    Decisions and their reasons are in the log: `equipoise explain`, `verify`, `timeline` and
    `what-if` read it.

    With a pattern the command leads each group that fits it in its own way, also groups that come
    later. A worker does so, too (its settings lead_groups and lead_folder).

    It serves HTTP: /health /ready /metrics. Where no broker answers it says so and ends, with exit
    code 2.

    \b
    Examples:
      equipoise lead --bootstrap broker1:9092 --group orders --to orders.db
      equipoise lead --group orders --to o.db --set assignor=lag_aware --capacity 'big-*=2'
      equipoise lead --group 'orders-*' --to logs
    """
    try:
        from equipoise.lead.seat.generation import SeatSettings
    except ImportError:
        raise InputError(MISSING) from None
    if place is None and not dry_run:
        raise click.UsageError("Missing option '--to'.")
    several = any(each in group for each in "*?")
    if several and evict:
        raise InputError("--evict: takes the leader out of one group; name it with --group")
    if several and place is not None and (place.suffix in (".db", ".jsonl") or place.is_file()):
        raise InputError(f"--to {place}: --group {group} may be several groups; name a folder for their logs")
    if not several and place is not None and place.suffix not in (".db", ".jsonl"):
        raise InputError(f"--to {place}: name a file that ends in .db (SQLite) or .jsonl (JSON Lines)")
    try:
        chosen = SeatSettings(hold_ms=int(hold_s * 1_000), capacities=dict(map(capacity_of, capacities)))
    except InputError as error:
        raise InputError(f"--capacity {error}") from None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else VisibleFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    config, streams_config = (configuration(settings_given, streams=streams) for streams in (False, True))
    from equipoise.lead.broker_seat.led_groups import HowToLead

    how = HowToLead(connection=settings, settings=chosen, config=config, streams_config=streams_config, evict=evict, convert=convert)
    if dry_run:
        asyncio.run(_say_each(screen, how, group) if several else _say(screen, how, group))
    elif place is not None:
        asyncio.run(_lead(how, settings, group, place, several=several))


async def _say_each(screen: Screen, how: HowToLead, pattern: str) -> None:
    from equipoise.kafka.consumer_groups import listed_groups
    from equipoise.lead.broker_seat.led_groups import leads

    with reaching(how.connection):
        found = [each.name for each in await listed_groups(how.connection) if leads(each, (pattern,))]
    if not found:
        raise InputError(f"--group {pattern}: no group with members fits; `equipoise cluster` lists all of them")
    for group in found:
        try:
            await _say(screen, how, group)
        except InputError as error:
            screen.line(f"group {group}: it would not be led: {error}")


async def _say(screen: Screen, how: HowToLead, group: str) -> None:
    """Says how the group would be led. Raises InputError where it cannot be."""
    from equipoise.lead.broker_seat.first_plan import first_plan
    from equipoise.lead.broker_seat.ways import check_way, way_of
    from equipoise.lead.seat.log import SeatLog
    from equipoise.lead.seat.seat import Seat
    from equipoise.replay.wording import costs_text

    with reaching(how.connection):
        way = await way_of(how.connection, group, convert=how.convert)
        first = await first_plan(how.connection, group, way, how.settings, how.streams_config if way.name == "streams" else how.config)
    check_way(way, group)
    if way.name == "seat":
        with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as book:
            await Seat(how.connection, group, book, how.settings).examine()
    screen.line(way.said(group))
    moves = [] if first is None else first.lines()
    screen.line("nothing would move first" if not moves else "would move first:")
    for line in moves:
        screen.line(f"  {line}")
    expected = () if first is None or first.is_led else first.expected(way, evicts=how.evict)
    if expected:
        screen.line(f"expected: {costs_text(expected)}")
    for line in [] if first is None or first.is_led else first.warnings(way, evicts=how.evict):
        screen.line(line)


async def _lead(how: HowToLead, settings: LeadSettings, group: str, place: Path, *, several: bool) -> None:
    from equipoise.lead.broker_seat.led_groups import LedGroup, LedGroups
    from equipoise.lead.metrics import lead_server

    async with admin_client(how.connection):  # later it waits for brokers that are away
        pass
    stopped = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stopped.set)
    led = LedGroups(how, (group,), place) if several else LedGroup(how, group, place)
    server = lead_server(group, led.statuses, led.unready, settings.http_host, settings.http_port)
    port = await server.start()
    _LOG.info("health and metrics: http://%s:%d", settings.http_host, port)
    try:
        await lead_watched(led, settings, stopped)
    finally:
        await server.stop()


async def lead_watched(led: LedGroup | LedGroups, connection: Connection, stopped: asyncio.Event) -> None:
    """Leads until `stopped` is set, and keeps the lags of the groups known. Raises as `led.run`."""
    from equipoise.kafka.client import ENDS_S, call_off
    from equipoise.lead.lag_watch import LagWatch

    lags = asyncio.create_task(LagWatch(connection, led.statuses).run())
    try:
        await led.run(stopped)
    finally:
        await call_off(lags, again_s=ENDS_S)


def configuration(given: tuple[str, ...], *, streams: bool = False) -> GroupConfigured:
    """The group's configuration. An option of the assignor is written ``options.name=value`` or
    ``name=value``. `streams`: of a group of Kafka Streams that the brokers assign, which has other
    defaults. Raises InputError for a setting that there is not, or that is refused.
    """
    import attrs

    from equipoise.assignors import check_settings, registry
    from equipoise.bridge.mapping import ALL_AT_ONCE
    from equipoise.events.facts import GroupConfigured
    from equipoise.events.settings import GroupSettings

    fields = {field.name for field in attrs.fields(GroupSettings)} - {"options"}
    named, known, options = "high_availability", {}, {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write it as name=value")
        if name == "assignor":
            named = text
        elif name in fields:
            known[name] = setting_value(name, text)
        else:
            options[name.removeprefix("options.")] = scalar(text)
    assignor = registry.latest(named)
    defaults = {"max_step_ms": MAX_STEP_MS, "revocation_timeout_ms": REVOCATION_TIMEOUT_MS, "rack_aware_strategy": "min_cost"}
    if streams:
        defaults |= {"acceptable_recovery_lag": CAUGHT_UP, "max_warmups": ALL_AT_ONCE, "max_warmups_per_member": ALL_AT_ONCE}
    try:
        knobs = GroupSettings(**{**defaults, **known, "options": options})
    except FieldError as error:
        raise InputError(f"--set {error.field.rpartition('.')[2]}: {error.problem}") from None
    check_live_settings(knobs)
    try:
        check_settings(assignor, knobs)
    except InputError as error:
        near = [(name, found[0]) for name in options if (found := difflib.get_close_matches(name, fields, n=1))]
        raise InputError(f"--set {near[0][0]}: no such setting; did you mean {near[0][1]}?" if near else f"--set: {error}") from None
    led_by = "external" if streams else "equipoise"
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=knobs, led_by=led_by)
