"""`equipoise shadow kafka://...`: compares what the leader of a running Kafka Streams group does
with what equipoise would do.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.import_ import given_settings
from equipoise.cli.params import brokers_argument
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.errors import InputError
from equipoise.events.tasks import tasks_text
from equipoise.replay.wording import cause_text, counted, day_text

if TYPE_CHECKING:
    from equipoise.replay.importers.kafka_streams.shadow import ShadowMove, ShadowRound

_ROUND_S = 1.0
_MOST_NAMED = 6


@command("shadow", short_help="Show what equipoise would do beside Kafka Streams' leader.")
@brokers_argument("location", "kafka://HOST:PORT")
@click.option("--group", required=True, metavar="APP", help="Application id.")
@click.option("--once", is_flag=True, help="Show the generations recorded so far and exit. Default: continue until interrupted.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting that Kafka does not record, as acceptable_recovery_lag=1000.")
def shadow(screen: Screen, location: str, group: str, once: bool, settings: tuple[str, ...]) -> None:
    """Read the group's generations from `__consumer_offsets` and end offsets from the brokers;
    join, commit and write nothing. For each generation show which tasks the group's own leader
    moved or left without an owner, and which tasks equipoise would have moved from the same owners,
    copies and lags, and which of them it would copy first. A proposal is never applied: each
    generation starts from what the group really had.

    It reads Kafka Streams groups with the classic protocol (group.protocol=classic).

    --json prints one document with --once, else one for each generation, a line each.

    \b
    Examples:
      equipoise shadow kafka://127.0.0.1:9092 --group orders
      equipoise shadow kafka://127.0.0.1:9092 --group orders --once --set assignor=learner
    """
    given: dict[str, Any] = {**given_settings(settings), "group": group}
    asyncio.run(_shadow(screen, location, given, once=once))


async def _shadow(screen: Screen, location: str, given: dict[str, Any], *, once: bool) -> None:
    from equipoise.replay.importers.kafka_streams import options_of
    from equipoise.replay.importers.kafka_streams.broker_reading import StreamsGroup
    from equipoise.replay.importers.kafka_streams.shadow import shadow

    async with StreamsGroup(location, given["group"]) as read:
        options = options_of(read.source, given)
        shown = waiting = 0
        while True:
            if await read.catch_up():
                rounds = shadow(read.source, options)
                if once:
                    screen.answer({"group": read.group, "rounds": [each.document() for each in rounds]}, *_parts(read.group, rounds))
                    return
                for each in rounds[shown:]:
                    _say(screen, each)
                shown = len(rounds)
            elif once:
                raise InputError(f"--group: {location} has no generation of a group {read.group!r}")
            elif not shown and not waiting:
                waiting = 1
                screen.remark(f"{location} has no generation of a group {read.group!r} yet; waiting for one (check the name if it should be there)")
            await asyncio.sleep(_ROUND_S)


def _parts(group: str, rounds: list[ShadowRound]) -> list[Part]:
    columns = ("generation", "when", "because", "members", "leader moved", "to nobody", "equipoise would move", "copying first")
    rows = [
        (
            each.generation,
            day_text(each.at_ms),
            cause_text(each.cause),
            len(each.members),
            len(each.moved),
            len(each.unassigned),
            len(each.target),
            len(each.warming),
        )
        for each in rounds
    ]
    moved, ours = sum(len(each.moved) for each in rounds), sum(len(each.target) for each in rounds)
    head = Line(bold(group), f"  {counted(len(rounds), 'generation')}: its leader moved {counted(moved, 'task')}, equipoise would {ours}")
    return [head, "", Table(columns=columns, rows=rows)]


def _say(screen: Screen, each: ShadowRound) -> None:
    if screen.json:
        screen.json_line(json.dumps(each.document()))
        return
    nobody = f"; nobody has {tasks_text(each.unassigned)}" if each.unassigned else ""
    copied = f"; it would copy {tasks_text(each.warming)} first" if each.warming else ""
    screen.line(f"{day_text(each.at_ms)} generation {each.generation}: {cause_text(each.cause)}; {', '.join(each.members) or 'nobody'}")
    screen.line(f"  its leader: {_steps(each.moved)}{nobody}")
    screen.line(f"  equipoise:  {_steps(each.target)}{copied}")


def _steps(steps: tuple[ShadowMove, ...]) -> str:
    if not steps:
        return "nothing moves"
    named = ", ".join(each.text() for each in steps[:_MOST_NAMED])
    return named if len(steps) <= _MOST_NAMED else f"{named} and {len(steps) - _MOST_NAMED} more"
