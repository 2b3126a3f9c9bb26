"""`equipoise witness`: proves the end of members and workers, and of any Kafka consumers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.ended_member import remove_ended
from equipoise.cli.screen import Screen
from equipoise.cli.settings_options import settings_options
from equipoise.events.errors import InputError
from equipoise.kafka.connection import MISSING, Connection

if TYPE_CHECKING:
    from equipoise.witness.member_watch import MemberWatch


@command("witness", short_help="Prove the end of processes here when they are killed.")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGUMENT]...]", type=click.UNPROCESSED)
@click.option("--socket", "path", type=click.Path(path_type=Path), metavar="PATH", help="Instead of COMMAND: Unix socket to make and listen on.")
@click.option("--group", metavar="GROUP", help="Kafka consumer group of COMMAND, which may be any client: its member is removed at its end.")
@click.option("--instance-id", metavar="ID", help="With --group: group.instance.id of COMMAND, which no other process has; 'i1-*' for several.")
@click.option("--client-id", metavar="ID", help="With --group: client.id of COMMAND, which no other process of this host has; 'i1-*' for several.")
@click.option("--ended", is_flag=True, help="With --group, instead of COMMAND: take a member out whose process has ended, as you have seen.")
@click.option("--host", metavar="ADDRESS", help="With --ended and --client-id: the client's address as the broker sees it.")
@click.option("--member-id", metavar="ID", help="With --ended: the member with this id; it lists them when it refuses.")
@click.option("--yes", is_flag=True, help="With --ended: do not ask; the process has ended.")
@settings_options(Connection, only_with="group")
def witness(
    screen: Screen,
    words: tuple[str, ...],
    settings: Connection | None,
    path: Path | None,
    group: str | None,
    instance_id: str | None,
    client_id: str | None,
    ended: bool,
    host: str | None,
    member_id: str | None,
    yes: bool,
) -> int:
    """Run COMMAND. When a member or a worker in it is killed or crashes, prove that to the leader:
    nobody waits for its session timeout. That is for members with Member(witness=True), and
    `equipoise worker --witness true`. With --socket instead of COMMAND, do the same for all
    processes of this user that have the socket's path in EQUIPOISE_WITNESS.

    With --group, COMMAND may be any Kafka client, unmodified, in a group of the classic protocol or
    of KIP-848. When it has ended, with every process that it started, its member is taken out of
    the group. That is the only one that joined while COMMAND ran and has its instance id, or its
    client id and this host. With neither id, COMMAND must be the only client of this machine. If
    there are two, or none, nothing is removed, and stderr says so. COMMAND must be the client, or
    start it as its child; `docker run` and `ssh` do not.

    With --ended, you are the witness. No broker knows a dead member from a living one between two
    heartbeats, so it shows the member and asks, or takes --yes for it. It refuses (exit code 1)
    unless exactly one member matches, and lists those that do; without an id, all of them. A living
    member that was taken out joins again; meanwhile two members read its partitions.

    It may be the first process of a container: it passes signals on and waits for orphaned
    processes. It exits with the status of COMMAND (128 and the signal's number after a signal).

    \b
    Examples:
      equipoise witness -- python orders.py
      equipoise witness --socket /run/equipoise/witness
      EQUIPOISE_WITNESS=/run/equipoise/witness python orders.py
      equipoise witness --group orders --bootstrap broker1:9092 -- java -jar orders.jar
      equipoise witness --group orders --instance-id orders-1 -- python consume.py
      equipoise witness --ended --group orders --client-id orders-1 --host 10.0.0.5
    """
    if ended:
        if words or path is not None or group is None or settings is None:
            raise click.UsageError("--ended: name the --group of the member, and no command or --socket")
        return remove_ended(screen, settings, group, instance_id=instance_id, client_id=client_id, host=host, member_id=member_id, yes=yes)
    for given, name in ((host, "--host"), (member_id, "--member-id"), (yes, "--yes"), (screen.json, "--json")):
        if given:
            raise click.UsageError(f"{name}: needs --ended")
    if bool(words) == (path is not None):
        raise click.UsageError("name a command to run, as -- python orders.py, or a --socket")
    if instance_id is not None and client_id is not None:
        raise click.UsageError("--instance-id and --client-id: name one of them; an instance id is enough")
    if group is None and (instance_id or client_id) is not None:
        raise click.UsageError(f"--{'instance-id' if client_id is None else 'client-id'}: needs --group")
    if path is not None:
        if group is not None:
            raise click.UsageError("--group: needs a command to run; members that connect to a socket say what they are")
        if path.exists() and not path.is_socket():
            raise InputError(f"{path}: is no socket; name another path")
        asyncio.run(_serve(screen, path))
        return 0
    from equipoise.witness.supervisor import supervise

    return asyncio.run(supervise(words, watch=_watch(settings, group, instance_id, client_id)))


def _watch(settings: Connection | None, group: str | None, instance_id: str | None, client_id: str | None) -> MemberWatch | None:
    if settings is None or group is None:
        return None
    try:
        from equipoise.kafka.consumer_groups import MemberKey
        from equipoise.witness.member_watch import MemberWatch
    except ImportError:
        raise InputError(MISSING) from None
    return MemberWatch(connection=settings, group=group, key=MemberKey(instance_id=instance_id, client_id=client_id))


async def _serve(screen: Screen, path: Path) -> None:
    from equipoise.witness.server import WitnessServer

    stop = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    async with WitnessServer(path):
        screen.remark(f"watching the processes that connect to {path}")
        await stop.wait()
