"""`equipoise groups` and `equipoise status`: the present state of groups of a log in Kafka. Both
fold the log themselves, so they work without a worker.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.outage import outages
from equipoise.cli.screen import Screen, Table
from equipoise.cli.settings import settings_options
from equipoise.cli.show import view_parts
from equipoise.cli.visible import shortened
from equipoise.events.errors import InputError
from equipoise.replay.wording import groups_text
from equipoise.worker.settings import LiveSettings

if TYPE_CHECKING:
    from equipoise.broker_watch import BrokerWatch
    from equipoise.cli.live_status import LiveView
    from equipoise.operations.follower import Follower
    from equipoise.statemachine.partition import GroupLead

EXIT_HALTED = 1
_ROUND_S = 0.5


@command("groups", short_help="List the groups of a log in Kafka.")
@settings_options(LiveSettings)
def groups(screen: Screen, settings: LiveSettings) -> int:
    """List every group, those in trouble first, with what is wrong in words: halted, tasks that
    stand still, members that are silent, work that moves and how long that takes by measured
    restore rates. Exit code 1: at least one group is halted.

    \b
    Examples:
      equipoise groups
      equipoise groups --json | jq '.groups[] | select(.trouble) | [.group, .trouble]'
    """

    async def look() -> list[dict[str, Any]]:
        follower = _follower(settings)
        await follower.catch_up()
        ranked = sorted((_ranked(partition, lead) for partition, lead in follower.groups()), key=lambda pair: pair[0])
        return [row for _, row in ranked]

    rows = asyncio.run(look())
    halted = [shortened(str(row["halted"])) for row in rows if row["halted"]]
    screen.answer({"groups": rows}, groups_table(rows) if rows else "no group yet", *halted)
    return EXIT_HALTED if halted else 0


def groups_table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table; `state` is the verdict of a group that is led, else its phase."""
    columns = ("group", "trouble", "state", "members", "tasks", "owned", "moving", "partition", "offset")
    states = [{**row, "state": row["verdict"] if row["phase"] == "leading" and row["verdict"] else row["phase"]} for row in rows]
    return Table(columns=columns, rows=[[row[column] for column in columns] for row in states])


def _ranked(partition: int, lead: GroupLead) -> tuple[tuple[int, int, str], dict[str, Any]]:
    """The key by which groups are sorted, and the row of one."""
    from equipoise.replay.trouble import Severity, troubles

    halted = None if lead.halted is None else str(lead.halted)
    found = troubles(lead.machine.state, halted)
    worst = min((each.severity for each in found), default=Severity.NONE)
    tasks = sum(each.tasks for each in found if each.severity is worst)
    return (worst, -tasks, lead.name), _row(partition, lead, "; ".join(each.text for each in found) or None)


def _row(partition: int, lead: GroupLead, trouble: str | None) -> dict[str, Any]:
    state = lead.machine.state
    return {
        "group": lead.name,
        "trouble": trouble,
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
@click.option("--watch", is_flag=True, help="Follow it until interrupted; on a terminal with progress bars.")
def status(screen: Screen, settings: LiveSettings, group: str, watch: bool) -> int:
    """Show a group's members and tasks: which member runs what, which tasks move where, and what
    they wait for. Exit code 1: the group is halted.

    With --watch, a terminal shows what is wrong first, then a bar for each restore and warm-up with
    the time at which it is expected to be ready, then members and tasks, those that stand still
    first. Elsewhere the tables are printed again after each change. It waits for brokers that are
    away.

    \b
    Examples:
      equipoise status --group orders
      equipoise status --group orders --watch
    """
    if watch and screen.json:
        raise InputError("--watch: shows tables; leave out --json, or leave out --watch and run it again")
    if not watch:
        return asyncio.run(_status(screen, settings, group, None))
    if not sys.stdout.isatty():
        with outages(screen, f"group {group}") as brokers:
            return asyncio.run(_status(screen, settings, group, brokers))
    from equipoise.cli.live_status import LiveView

    with LiveView() as live, outages(screen, f"group {group}", say=live.remark) as brokers:
        return asyncio.run(_status(screen, settings, group, brokers, live))


async def _status(
    screen: Screen, settings: LiveSettings, group: str, watch: BrokerWatch | None, live: LiveView | None = None
) -> int:
    """`watch`: shows the group until interrupted, also when the brokers are away meanwhile. `live`:
    where it is drawn; None: it is printed.
    """
    from equipoise.replay.group_view import view_of
    from equipoise.replay.trouble import wrong

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
            if live is not None and not watch.is_away:
                live.remark("")
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
            if live is not None:
                live.see(lead, view)
            else:
                found_wrong = wrong(lead.machine.state, halted)
                document = {"partition": partition, "halted": halted, "trouble": found_wrong, "state": view.document()}
                screen.answer(document, *view_parts(view), *found_wrong)
        if watch is None:
            return EXIT_HALTED if lead.halted is not None else 0
        await asyncio.sleep(_ROUND_S)


def _follower(settings: LiveSettings, group: str | None = None) -> Follower:
    from equipoise.operations.follower import Follower

    return Follower(settings, settings.topics, group)
