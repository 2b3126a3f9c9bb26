"""`equipoise groups` and `equipoise status`: the present state of groups of a log in Kafka. Both
fold the log themselves, so they work without a worker.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.outage import outages
from equipoise.cli.screen import Screen, Table
from equipoise.cli.settings import settings_options
from equipoise.cli.show import view_parts
from equipoise.events.errors import InputError
from equipoise.replay.wording import groups_text
from equipoise.worker.settings import LiveSettings

if TYPE_CHECKING:
    from equipoise.broker_watch import BrokerWatch
    from equipoise.operations.follower import Follower
    from equipoise.statemachine.partition import GroupLead

EXIT_HALTED = 1
_ROUND_S = 0.5


@command("groups", short_help="List the groups of a log in Kafka.")
@settings_options(LiveSettings)
def groups(screen: Screen, settings: LiveSettings) -> int:
    """List every group: its members, tasks, verdict, and whether it is halted. Exit code 1: at
    least one group is halted.

    \b
    Examples:
      equipoise groups
      equipoise groups --json | jq '.groups[] | select(.halted)'
    """

    async def look() -> list[dict[str, object]]:
        follower = _follower(settings)
        await follower.catch_up()
        return [_row(partition, lead) for partition, lead in follower.groups()]

    rows = asyncio.run(look())
    columns = ("group", "partition", "phase", "members", "tasks", "owned", "moving", "generation", "verdict", "offset")
    table = Table(columns=columns, rows=[[row[column] for column in columns] for row in rows])  # type: ignore[misc] # texts and numbers
    halted = [str(row["halted"]) for row in rows if row["halted"]]
    screen.answer({"groups": rows}, table if rows else "no group yet", *halted)
    return EXIT_HALTED if halted else 0


def _row(partition: int, lead: GroupLead) -> dict[str, object]:
    state = lead.machine.state
    return {
        "group": lead.name,
        "partition": partition,
        "phase": "halted" if lead.halted is not None else state.phase.value,
        "members": len(state.members),
        "tasks": len(state.tasks()),
        "owned": len(state.owner),
        "moving": len(state.in_flight),
        "generation": state.generation,
        "verdict": None if state.verdict is None else state.verdict[0],
        "offset": state.last_offset,
        "halted": None if lead.halted is None else str(lead.halted),
    }


@command("status", short_help="Show the present state of one group of a log in Kafka; --watch follows it.")
@settings_options(LiveSettings)
@click.option("--group", required=True, metavar="GROUP", help="Group to show.")
@click.option("--watch", is_flag=True, help="Show it again after each change, until interrupted.")
def status(screen: Screen, settings: LiveSettings, group: str, watch: bool) -> int:
    """Show a group's members and tasks: which member runs what, which tasks move where, and what
    they wait for. --watch waits for brokers that are away. Exit code 1: the group is halted.

    \b
    Examples:
      equipoise status --group orders
      equipoise status --group orders --watch
    """
    if watch and screen.json:
        raise InputError("--watch: shows tables; leave out --json, or leave out --watch and run it again")
    if not watch:
        return asyncio.run(_status(screen, settings, group, None))
    with outages(screen, f"group {group}") as brokers:
        return asyncio.run(_status(screen, settings, group, brokers))


async def _status(screen: Screen, settings: LiveSettings, group: str, watch: BrokerWatch | None) -> int:
    """`watch`: shows the group until interrupted, also when the brokers are away meanwhile."""
    from equipoise.replay.group_view import view_of

    follower = _follower(settings, group)
    shown = -1
    while True:
        asked_s = time.monotonic()
        try:
            await follower.catch_up()
        except Exception as error:
            if watch is None or shown < 0 or not watch.noted("cannot read the log", error):
                raise
            await asyncio.sleep(_ROUND_S)
            continue
        if watch is not None:
            watch.answered(asked_s)
        found = next(follower.groups(), None)
        if found is None:
            everybody = _follower(settings)
            await everybody.catch_up()
            raise InputError(f"--group: the log holds no fact of group {group!r}; {groups_text({each.name for _, each in everybody.groups()})}")
        partition, lead = found
        if lead.machine.state.last_offset != shown:
            shown = lead.machine.state.last_offset
            try:
                view = view_of(lead.machine)
            except Exception:
                if lead.halted is not None:  # by a defect, in the middle of a step: there is no state to show
                    raise lead.halted from None
                raise
            halted = None if lead.halted is None else str(lead.halted)
            if watch is not None:
                click.clear()
            screen.answer({"partition": partition, "halted": halted, "state": view.document()}, *view_parts(view), *([halted] if halted else []))
        if watch is None:
            return EXIT_HALTED if lead.halted is not None else 0
        await asyncio.sleep(_ROUND_S)


def _follower(settings: LiveSettings, group: str | None = None) -> Follower:
    from equipoise.operations.follower import Follower

    return Follower(settings, settings.topics, group)
