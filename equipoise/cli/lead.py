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

from equipoise.changed_settings import scalar, setting_value
from equipoise.cli.command import command
from equipoise.cli.params import Number, check_live_settings
from equipoise.cli.screen import Screen
from equipoise.cli.settings_options import settings_options
from equipoise.cli.visible import VisibleFormatter
from equipoise.events.errors import FieldError, InputError
from equipoise.json_logging import JsonFormatter
from equipoise.kafka.connection import MISSING, Connection

if TYPE_CHECKING:
    from equipoise.events.facts import GroupConfigured
    from equipoise.seat.generation import SeatSettings

REVOCATION_TIMEOUT_MS = 86_400_000
"""The broker removes a member that does not rejoin, after its max.poll.interval.ms."""
MAX_STEP_MS = 60_000
BROKERS_WITHIN_S = 120.0
"""So long brokers may be away when the command starts."""


@command("lead", json=False, short_help="Lead a consumer group of any clients of Kafka.")
@click.option("--group", required=True, metavar="GROUP", help="Consumer group (classic or KIP-848), or one of Kafka Streams (KIP-1071).")
@click.option("--to", "place", type=click.Path(path_type=Path), metavar="LOG", help="Log of the group to write, or to continue.")
@click.option(
    "--hold", "hold_s", type=Number(0, 240), default=0.0, metavar="S", help="How many seconds partitions of a gone member wait for it."
)  # fmt: skip
@click.option("--capacity", "capacities", multiple=True, metavar="CLIENT_ID=N", help="Clients with this id (with * and ?) get N times as much.")
@click.option("--evict", is_flag=True, help="Take the present leader out of the group once, so that equipoise leads now.")
@click.option("--convert", is_flag=True, help="Lead a classic group from inside the brokers, which take it over to KIP-848 meanwhile.")
@click.option("--dry-run", is_flag=True, help="Change nothing: say how the group would be led, and what would move first.")
@click.option("--set", "settings_given", multiple=True, metavar="NAME=VALUE", help="A setting of the group, as assignor=lag_aware.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="What it logs: text, or a JSON document a line.")
@settings_options(Connection)
def lead(
    screen: Screen,
    settings: Connection,
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

    \b
    Examples:
      equipoise lead --bootstrap broker1:9092 --group orders --to orders.db
      equipoise lead --group orders --to o.db --set assignor=lag_aware --capacity 'big-*=2'
    """
    try:
        from equipoise.seat.generation import SeatSettings
    except ImportError:
        raise InputError(MISSING) from None
    if place is None and not dry_run:
        raise click.UsageError("Missing option '--to'.")
    if place is not None and place.suffix not in (".db", ".jsonl"):
        raise InputError(f"--to {place}: name a file that ends in .db (SQLite) or .jsonl (JSON Lines)")
    chosen = SeatSettings(hold_ms=int(hold_s * 1_000), capacities=dict(map(_capacity, capacities)))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else VisibleFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    config = configuration(settings_given)
    if dry_run:
        asyncio.run(_say(screen, settings, group, chosen, config, convert=convert))
    elif place is not None:
        asyncio.run(_lead(settings, group, place, chosen, config, evict=evict, convert=convert))


async def _say(screen: Screen, connection: Connection, group: str, settings: SeatSettings, config: GroupConfigured, *, convert: bool) -> None:
    """Says how the group would be led. Raises InputError where it cannot be."""
    from aiokafka import errors

    from equipoise.broker_seat.ways import check_way, first_moves, way_of
    from equipoise.seat.group_seat import Seat
    from equipoise.seat.seat_log import SeatLog

    try:
        way = await way_of(connection, group, convert=convert)
        moves = await first_moves(connection, group, way, settings, config)
    except (errors.KafkaError, OSError) as error:
        raise InputError(f"group {group}: cannot be looked at: {type(error).__name__} {error}") from None
    check_way(way, group)
    if way.name == "seat":
        with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as book:
            await Seat(connection, group, book, settings).examine()
    screen.line(way.said(group))
    screen.line("nothing would move first" if not moves else "would move first:")
    for line in moves:
        screen.line(f"  {line}")


async def _lead(
    connection: Connection, group: str, log_file: Path, settings: SeatSettings, config: GroupConfigured, *, evict: bool, convert: bool
) -> None:
    from equipoise.broker_seat.broker_seat import BrokerSeat
    from equipoise.broker_seat.streams_seat import StreamsSeat, streams_configuration
    from equipoise.broker_seat.ways import check_way, way_of
    from equipoise.kafka.consumer_groups import repeated
    from equipoise.seat.group_seat import Seat
    from equipoise.seat.seat_log import SeatLog

    with SeatLog(log_file, group) as book:
        way = await repeated(lambda: way_of(connection, group, convert=convert), BROKERS_WITHIN_S)
        check_way(way, group)
        if evict and way.name != "seat":
            raise InputError("--evict: the broker assigns this group, so it has no leader to take out")
        if way.name == "streams" and (settings.hold_ms or settings.capacities):
            raise InputError("--hold, --capacity: Kafka Streams' processes are as large as they have threads, and their copies are kept")
        book.configure(streams_configuration(config) if way.name == "streams" else config)
        logging.getLogger(__name__).info("group %s: its log is %s", group, log_file)
        logging.getLogger(__name__).info("%s", way.said(group))
        seat: Seat | BrokerSeat | StreamsSeat
        if way.name == "streams":
            seat = StreamsSeat(connection, group, book)
        elif way.name == "brokers":
            seat = BrokerSeat(connection, group, book, settings, together=way.together)
        else:
            seat = Seat(connection, group, book, settings, evict=evict)
        for which in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(which, seat.stop)
        await seat.run()
        logging.getLogger(__name__).info("group %s: not led here any more", group)


def configuration(given: tuple[str, ...]) -> GroupConfigured:
    """The group's configuration. An option of the assignor is written ``options.name=value`` or
    ``name=value``. Raises InputError for a setting that there is not, or that is refused.
    """
    import attrs

    from equipoise.assignors import check_settings, registry
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
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=knobs)


def _capacity(text: str) -> tuple[str, int]:
    pattern, _, number = text.rpartition("=")
    if not pattern or not number.isdecimal() or int(number) < 1:
        raise InputError(f"--capacity {text}: write it as CLIENT_ID=N, with N of 1 or more")
    return pattern, int(number)
