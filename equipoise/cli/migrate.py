"""`equipoise migrate`: takes groups to the new consumer protocol of Kafka, or to members."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import Number
from equipoise.cli.screen import Line, Part, Screen, Styled, Table, bold
from equipoise.cli.settings_options import settings_options
from equipoise.events.errors import InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.connection import MISSING

if TYPE_CHECKING:
    from equipoise.lead.migrating.asking_groups import JudgedGroup
    from equipoise.lead.migrating.cost import ActionCost
    from equipoise.lead.migrating.taking_over import GivenBack, TakenOver, TakingOver
    from equipoise.lead.seat.log import SeatLog

EXIT_NOT_DONE = 1
LOOK_S = 1.0
_COLOURS = {"yes": "green", "taken over": "green", "new protocol": "green", "no": "red", "unknown": "yellow", "not for it": None}
_TO_APPLY = ("yes", "taken over")


@command("migrate", short_help="Take groups to the new consumer protocol, or to members.")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGUMENT]...]", type=click.UNPROCESSED)
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Consumer group, or a pattern with * and ?; repeatable. Default: all.")
@click.option("--apply", "applies", is_flag=True, help="Have brokers take groups over; stay until clients use the new protocol.")
@click.option("--back", is_flag=True, help="Give the groups back to their clients; with --to members, the application to the consumers.")
@click.option("--to", "to", type=click.Choice(("consumer", "members")), default="consumer", show_default=True, help="KIP-848, or members.")
@click.option("--consumers", metavar="CONSUMERS", help="With --to members: the consumer group that they adopt.")
@click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="With --apply: write what it is expected to cost, and what it has cost, to a log of each group.",
)
@click.option("--timeout", "timeout_s", type=Number(min=0), metavar="SECONDS", help="Stop waiting after this time. Default: 120 with --apply.")
@settings_options(LiveSettings)
def migrate(
    screen: Screen,
    words: tuple[str, ...],
    settings: LiveSettings,
    groups: tuple[str, ...],
    applies: bool,
    back: bool,
    to: Literal["consumer", "members"],
    consumers: str | None,
    logs: Path | None,
    timeout_s: float | None,
) -> int:
    """Say of each consumer group whether its broker takes it over to the new protocol (KIP-848)
    while it runs. Say what its clients are, and what else to do. Brokers need no jar. With --group,
    also simulate what joins, leaves and rolling restarts cost before and after.

    --apply joins each group that can be taken over as one more member, which reads nothing. It
    waits until every client has joined again and has its partitions, and says how it went. Then
    restart clients with group.protocol=consumer, one by one. It stays until all use that or it is
    interrupted: then groups with clients of the old protocol alone are classic ones again. --back
    does the same where no such process runs any more. Exit code 1: not all is done.

    --to members moves an application to members of equipoise (docs/adopt.md): start these first,
    with Member(adopts=CONSUMERS). They wait until COMMAND, or you, have stopped the consumers; with
    --back they end, and COMMAND, or you, start the consumers. It may be run again at any time.

    \b
    Examples:
      equipoise migrate --bootstrap broker1:9092
      equipoise migrate --group 'orders-*' --apply
      equipoise migrate --group orders --back
      equipoise migrate --to members --group orders --consumers app -- systemctl stop app
    """
    if to == "members":
        from equipoise.cli import to_members

        if consumers is None or len(groups) != 1 or applies or logs is not None:
            raise InputError("--to members: name the members' --group, once, and their --consumers; --apply and --logs have no meaning there")
        return to_members.move(screen, settings, groups[0], consumers, timeout_s, words, back=back)
    if consumers is not None or words:
        raise InputError("--consumers and COMMAND: only with --to members")
    if logs is not None and not applies:
        raise InputError("--logs: only with --apply")
    if applies and back:
        raise InputError("--apply and --back: name one of them")
    if back and not groups:
        raise InputError("--back: name the groups with --group")
    try:
        import aiokafka  # noqa: F401
    except ImportError:
        raise InputError(MISSING) from None
    return asyncio.run(_run(screen, settings, groups, applies=applies, back=back, logs=logs, timeout_s=timeout_s))


async def _run(
    screen: Screen, settings: LiveSettings, patterns: Sequence[str], *, applies: bool, back: bool, logs: Path | None, timeout_s: float | None
) -> int:
    from equipoise.kafka.started_clients import reaching
    from equipoise.lead.migrating.asking_groups import GroupsAsking
    from equipoise.lead.migrating.taking_over import REST_S, give_back

    with reaching(settings):
        async with GroupsAsking(settings) as asking:
            found = await asking.judged(patterns)
        if patterns and not found:
            raise InputError(f"--group {patterns[0]}: {settings.bootstrap} has no such group; without --group all are listed")
        within_s = REST_S if timeout_s is None else timeout_s
        if back:
            taken = [each for each in found if each.group_type in ("classic", "consumer")]
            given = [await give_back(settings, each.group.name, within_s) for each in taken]
            return _answer_back(screen, found, given)
    if applies:
        return await _apply(screen, settings, found, within_s, logs)
    _answer(screen, found, named=bool(patterns))
    return 0


async def _apply(screen: Screen, settings: LiveSettings, found: Sequence[JudgedGroup], within_s: float, logs: Path | None) -> int:
    """Takes over what can be, and stays."""
    from equipoise.lead.migrating.taking_over import TakingOver

    stopped = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        wanted = [each for each in found if each.verdict.takes in _TO_APPLY]
        logged = [each.group.name for each in wanted if each.verdict.takes == "yes"] if logs is not None else []
        log = {name: stack.enter_context(_log(logs, name)) for name in logged if logs is not None}
        taking = [await stack.enter_async_context(TakingOver(settings, each.group, log=log.get(each.group.name))) for each in wanted]
        done = await asyncio.gather(*(each.take_over(within_s) for each in taking))
        refused = [each for each in found if each.verdict.takes in ("no", "unknown")]
        lines: list[Part] = [Line(Styled(each.said(), colour="green" if each.is_done else "red")) for each in done]
        lines += [Line(Styled(f"{each.group.name}: not taken over: {each.verdict.why}", colour="red")) for each in refused]
        screen.answer(_document(found, applied=done), *(lines or ["no group is to be taken over"]))
        staying = [each for each, verdict in zip(taking, done, strict=True) if verdict.is_done]
        if staying:
            screen.remark("it stays in the groups until all clients use group.protocol=consumer; interrupted, it gives them back")
        while staying and not stopped.is_set():
            staying = [each for each in staying if not await _is_over(screen, each)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_S)
    for each in taking:
        left = "left; nothing of this process is in it any more" if each.left else "could not leave; the broker ends its session (45 s by default)"
        screen.remark(f"{each.before.name}: {left}")
    return 0 if all(each.is_done for each in done) and not refused else EXIT_NOT_DONE


def _log(folder: Path, group: str) -> SeatLog:
    """The group's log, as `equipoise lead` writes it. Raises InputError when it cannot be."""
    from equipoise.cli.lead import configuration
    from equipoise.lead.broker_seat.led_groups import log_in
    from equipoise.lead.seat.log import SeatLog

    log = SeatLog(log_in(folder, group), group)
    if log.state.config is None:
        log.configure(configuration((), streams=True))
    return log


async def _is_over(screen: Screen, group: TakingOver) -> bool:
    try:
        if await group.classic_clients() != 0:
            return False
    except InputError as error:
        screen.remark(str(error))
        return True
    screen.remark(f"{group.before.name}: every client uses the new protocol")
    return True


def _answer_back(screen: Screen, found: Sequence[JudgedGroup], given: Sequence[GivenBack]) -> int:
    lines = [Line(Styled(each.said(), colour="green" if each.is_classic else "red")) for each in given]
    screen.answer(_document(found, given=given), *lines)
    return 0 if all(each.is_classic for each in given) else EXIT_NOT_DONE


def _answer(screen: Screen, found: Sequence[JudgedGroup], *, named: bool) -> None:
    from equipoise.lead.migrating.cost import costs

    cost = {each.group.name: costs(each.group, broker_heartbeat_ms=each.coordinator.heartbeat_interval_ms) for each in found if named}
    parts: list[Part] = []
    for each in found if named else ():
        parts += [*_details(each, cost[each.group.name]), ""]
    if not named and found:
        parts.append(_table(found))
        parts += [line for each in found if each.verdict.takes in ("no", "unknown") for line in _why(each)]
    screen.answer(_document(found, cost=cost), *(parts or ["no group yet"]))


def _table(found: Sequence[JudgedGroup]) -> Table:
    from equipoise.lead.migrating.clients import libraries_said

    rows = [
        (each.group.name, each.group_type, each.group.state, libraries_said(each.group.clients), each.group.protocol, each.verdict.takes)
        for each in found
    ]
    return Table(columns=("group", "type", "state", "clients", "strategy", "taken over"), rows=rows)


def _why(each: JudgedGroup) -> list[Line]:
    lines = [Line(bold(each.group.name), f": {each.verdict.why}")]
    return [*lines, Line(f"    to do: {each.verdict.to_do}")] if each.verdict.to_do else lines


def _details(each: JudgedGroup, cost: Sequence[ActionCost]) -> list[Part]:
    verdict = Styled(each.verdict.takes, colour=_COLOURS[each.verdict.takes], bold=True)
    parts: list[Part] = [
        Line(bold(each.group.name), f"  {each.group_type}, {each.group.state}, {each.group.protocol or 'no strategy'}; taken over: ", verdict),
        f"    {each.verdict.why}",
    ]
    if each.verdict.to_do:
        parts.append(f"    to do: {each.verdict.to_do}")
    if each.group.clients:
        columns = ("client", "library", "host", "static", "version", "user data", "partitions")
        rows = [
            (one.client_id, one.named, one.host, one.instance_id or "", one.protocol_version, f"{one.sends} sent, {one.given} given", len(one.held))
            for one in each.group.clients
        ]
        parts.append(Table(columns=columns, rows=rows))
    if cost:
        columns = ("simulated", "s without a reader now", "taken over", "new protocol", "moves now", "taken over", "new protocol")
        rows = [(one.action, *(round(of.unavailable_ms / 1_000, 1) for of in _ways(one)), *(of.moves for of in _ways(one))) for one in cost]
        parts.append(Table(columns=columns, rows=rows))
    return parts


def _ways(cost: ActionCost) -> tuple[Any, ...]:
    return cost.now, cost.taken_over, cost.new_protocol


def _document(
    found: Sequence[JudgedGroup],
    *,
    cost: dict[str, list[ActionCost]] | None = None,
    applied: Sequence[TakenOver] | None = None,
    given: Sequence[GivenBack] | None = None,
) -> dict[str, Any]:
    return {
        "groups": [
            {
                "group": each.group.name,
                "type": each.group_type,
                "state": each.group.state,
                "strategy": each.group.protocol,
                "verdict": each.verdict.takes,
                "why": each.verdict.why,
                "to_do": each.verdict.to_do or None,
                "coordinator": attrs.asdict(each.coordinator),
                "clients": [
                    {
                        "client": one.client_id,
                        "member": one.member_id,
                        "host": one.host,
                        "instance_id": one.instance_id,
                        "library": one.library,
                        "library_version": one.version or None,
                        "protocol_version": one.protocol_version,
                        "topics": one.topics,
                        "user_data_sent": one.sends,
                        "user_data_given": one.given,
                        "partitions": len(one.held),
                        "problem": one.problem or None,
                    }
                    for one in each.group.clients
                ],
                "cost": [attrs.asdict(one) for one in (cost or {}).get(each.group.name, [])],
            }
            for each in found
        ],
        "applied": None if applied is None else [{**attrs.asdict(each), "problem": each.problem or None} for each in applied],
        "given_back": None if given is None else [attrs.asdict(each) for each in given],
    }
