"""`equipoise status`: the groups of a log, or one of them, now or at an earlier fact. It folds the
log itself, so it works without a worker.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.group_tables import differs_line, view_parts
from equipoise.cli.outage import outages
from equipoise.cli.params import AT_HELP, OFFSET, SCHEME, Moment, groups_of, offset_of, read
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.settings_options import settings_options
from equipoise.cli.visible import shortened
from equipoise.events.errors import GroupHalted, InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.log import Log, open_log
from equipoise.replay.all_clear import FromWhom, Grounds, HowComplete, Undecided, all_troubles, grounds_of
from equipoise.replay.wording import groups_text, under_way_text

if TYPE_CHECKING:
    from equipoise.cli.live_status import LiveView
    from equipoise.kafka.broker_watch import BrokerWatch
    from equipoise.operations.follower import Follower
    from equipoise.replay.group_view import GroupView
    from equipoise.statemachine.group_lead import GroupLead

EXIT_HALTED = 1
_ROUND_S = 0.5
_WORKERS_S = 5.0
"""Between two looks at the group of workers."""


@command("status", short_help="Show the groups of a log, or one of them; --watch follows it.")
@click.argument("location", metavar="[LOG]", required=False)
@click.option("--group", metavar="GROUP", help="Show this group. Default: list all; the only group of a log is shown.")
@click.option("--at", "at_offset", type=OFFSET, metavar="OFFSET|TIME", help=f"State after this fact, {AT_HELP}")
@click.option("--watch", is_flag=True, help="Follow a group in Kafka until interrupted; on a terminal with progress bars.")
@click.option("--all", "everything", is_flag=True, help="Show every column: incarnations, epochs, tokens, holds.")
@settings_options(LiveSettings)
def status(
    screen: Screen, settings: LiveSettings, location: str | None, group: str | None, at_offset: int | Moment | None, watch: bool, everything: bool
) -> int:
    """List the groups of LOG, those in trouble first: halted, tasks that stand still, silent
    members, then work that moves and how long that takes. Of one group show what is wrong, then
    restores and warm-ups with their expected times, then members and tasks. What nobody has decided
    yet is not shown: the first line says since when.

    Of a LOG with one group people see that group. With --json, --group alone decides which document
    it is: one group, or the list, whatever the LOG holds. Exit code 1: a group is halted. --watch
    waits for brokers that are away.

    \b
    Examples:
      equipoise status
      equipoise status kafka://127.0.0.1:9092 --group orders --watch
      equipoise status group.db --at 2026-11-23T09:30
      equipoise status group.db --group orders --json | jq '.state.tasks[] | select(.owner == null)'
    """
    from equipoise.log.kafka.log import KafkaLog, Place

    place = None if location is None or not location.startswith(SCHEME) else Place.parse(location)
    if place is not None:
        settings = attrs.evolve(settings, bootstrap=place.connection.bootstrap, prefix=place.topics.prefix)
    is_live = (location is None or place is not None) and at_offset is None and (place is None or place.partition is None)
    if watch and (screen.json or not is_live):
        raise InputError("--watch: follows a group in Kafka and shows tables; leave out " + ("--json" if screen.json else "LOG or --at"))
    if is_live:
        return _live(screen, settings, group, watch=watch, everything=everything)
    if location is None or place is not None:
        shown = location or f"{SCHEME}{settings.bootstrap}/{settings.prefix}"
        log: Log = KafkaLog(shown, Place(settings, settings.topics, None if place is None else place.partition))
    else:
        log = open_log(location, "r")
    with log:
        names = [group] if group is not None else groups_of(log)
        if at_offset is not None and len(names) > 1:
            raise InputError(f"--at: name the group with --group; {groups_text(names)}")
        views = []
        found: list[tuple[int | None, GroupLead, Grounds]] = []
        for name in names:
            lead, view, undecided = _folded(screen, log, name, at_offset, alone=len(names) == 1)
            views.append(view)
            found.append((None, lead, grounds_of(lead.machine.state, undecided=undecided)))
    if group is None and (screen.json or len(found) > 1):
        return _answer_list(screen, found)
    return _answer_one(screen, *found[0], views[0], everything=everything)


def _folded(screen: Screen, log: Log, name: str, at_offset: int | Moment | None, *, alone: bool) -> tuple[GroupLead, GroupView, Undecided | None]:
    """The group's state at the last fact that is decided on, and what is not. A group that halts is
    shown among others; if it is the only one, its error is raised.
    """
    from equipoise.replay.group_view import view
    from equipoise.replay.replayer import Replayer
    from equipoise.statemachine.group_lead import GroupLead

    until, undecided = offset_of(log, at_offset, name), None
    while True:
        replayer = Replayer(name)
        entries = read(screen, log, "folding", name) if alone else log.read(group=name)
        lead = GroupLead(name, replayer.machine)
        try:
            for _ in replayer.follow(entries, until_offset=until):
                pass
        except GroupHalted as halted:
            if alone:
                raise
            lead.halted = halted
        if until is not None or replayer.undecided is None or lead.halted is not None:
            break
        undecided, until = replayer.undecided, replayer.undecided.offset - 1
    lead.machine = replayer.machine
    return lead, view(replayer), undecided


def _live(screen: Screen, settings: LiveSettings, group: str | None, *, watch: bool, everything: bool) -> int:
    if not watch:
        return asyncio.run(_status(screen, settings, group, None, everything=everything))
    who = "the log" if group is None else f"group {group}"
    if not sys.stdout.isatty():
        with outages(screen, who) as brokers:
            return asyncio.run(_status(screen, settings, group, brokers, everything=everything))
    from equipoise.cli.live_status import LiveView

    with LiveView() as live, outages(screen, who, say=live.remark) as brokers:
        return asyncio.run(_status(screen, settings, group, brokers, live))


async def _status(
    screen: Screen, settings: LiveSettings, group: str | None, watch: BrokerWatch | None, live: LiveView | None = None, *, everything: bool = False
) -> int:
    """`watch`: shows the group until interrupted, also when the brokers are away meanwhile. `live`:
    where it is drawn; None: it is printed.
    """
    from equipoise.operations.follower import WRITTEN_S
    from equipoise.operations.worker_builds import ask_workers
    from equipoise.replay.group_view import view_of

    follower = _follower(settings, group)
    shown: tuple[int, FromWhom, HowComplete] | None = None
    asked, asked_at_s = None, -_WORKERS_S
    while True:
        asked_s = time.monotonic()
        try:
            await follower.catch_up()
        except Exception as error:
            if watch is None or shown is None or not watch.noted("cannot read the log", error):
                raise
            await asyncio.sleep(_ROUND_S)
            continue
        if watch is not None:
            watch.answered(asked_s)
            if live is not None and not watch.is_away:
                live.remark("")
        if asked is None or asked_s - asked_at_s >= _WORKERS_S:
            asked, asked_at_s = await ask_workers(settings, settings.topics), asked_s
        asked = attrs.evolve(asked, now_ms=time.time_ns() // 1_000_000)
        known = await (follower.known(asked) if watch is None else follower.known(asked, 0, least_age_ms=int(1_000 * WRITTEN_S)))
        found = [(each.partition, each.lead, each.grounds) for each in known]
        if group is None:
            if watch is None and (screen.json or len(found) != 1):
                return _answer_list(screen, found)
            if len(found) != 1:
                raise InputError(f"--watch: name the group with --group; {groups_text({each.name for _, each, _ in found})}")
        elif not found:
            everybody = _follower(settings)
            await everybody.catch_up()
            raise InputError(f"--group: the log holds no fact of group {group!r}; {groups_text({each.name for _, each in everybody.groups()})}")
        partition, lead, grounds = found[0]
        code = EXIT_HALTED if lead.halted is not None else 0
        now = lead.machine.state.last_offset, grounds.from_whom, grounds.complete
        if now != shown:
            shown = now
            try:
                view = view_of(lead.machine)
            except Exception:
                if lead.halted is not None:  # by a defect, in the middle of a step: there is no state to show
                    raise lead.halted from None
                raise
            if live is not None:
                live.see(lead, view, grounds)
            else:
                code = _answer_one(screen, partition, lead, grounds, view, everything=everything)
        if watch is None:
            return code
        await asyncio.sleep(_ROUND_S)


def _answer_one(screen: Screen, partition: int | None, lead: GroupLead, grounds: Grounds, view: GroupView, *, everything: bool) -> int:
    from equipoise.cli.live_status import parts_of, seen
    from equipoise.replay.trouble import Severity

    halted = None if lead.halted is None else str(lead.halted)
    group = seen(lead, view, grounds)
    found = [each.text for each in group.troubles if each.severity < Severity.MOVES]
    parts: list[Part] = [*view_parts(view), *found] if everything else parts_of(group)
    if not everything and view.first_divergence is not None:
        parts.append(differs_line(view.first_divergence))
    screen.answer({"partition": partition, "halted": halted, "trouble": found, "grounds": grounds.document(), "state": view.document()}, *parts)
    return 0 if halted is None else EXIT_HALTED


def _answer_list(screen: Screen, found: Sequence[tuple[int | None, GroupLead, Grounds]]) -> int:
    rows = [row for _, row in sorted((_ranked(*each) for each in found), key=lambda pair: pair[0])]
    halted = [shortened(str(row["halted"])) for row in rows if row["halted"]]
    screen.answer({"groups": rows}, groups_table(rows) if rows else "no group yet", *halted)
    return EXIT_HALTED if halted else 0


def groups_table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table; `state` is what is under way in a group that is led, else its phase."""
    columns = ("group", "trouble", "state", "members", "tasks", "owned", "moving", "partition", "offset")
    states = [{**row, "state": row["verdict"] if row["phase"] == "leading" and under_way_text(row["verdict"]) else row["phase"]} for row in rows]
    return Table(columns=columns, rows=[[row[column] for column in columns] for row in states])


def _ranked(partition: int | None, lead: GroupLead, grounds: Grounds) -> tuple[tuple[int, int, str], dict[str, Any]]:
    """The key by which groups are sorted, and the row of one."""
    from equipoise.replay.trouble import Severity

    found = all_troubles(lead, grounds)
    worst = min((each.severity for each in found), default=Severity.NONE)
    tasks = sum(each.tasks for each in found if each.severity is worst)
    return (worst, -tasks, lead.name), {**_row(partition, lead, "; ".join(each.text for each in found) or None), "grounds": grounds.document()}


def _row(partition: int | None, lead: GroupLead, trouble: str | None) -> dict[str, Any]:
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


def _follower(settings: LiveSettings, group: str | None = None) -> Follower:
    from equipoise.operations.follower import Follower

    return Follower(settings, settings.topics, group)
