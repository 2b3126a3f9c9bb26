"""`equipoise run` and `equipoise witness`: prove the end of members and workers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError


@command("run", json=False, short_help="Run a command, and prove the end of its members when they are killed.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND [ARGUMENT]...", type=click.UNPROCESSED)
def run(screen: Screen, words: tuple[str, ...]) -> int:
    """Run COMMAND. When a member or a worker in it is killed or crashes, prove that to the leader,
    so that nobody waits for its session timeout: members with Member(witness=True), and
    `equipoise worker --witness true`.

    It may be the first process of a container: it passes signals on, waits for orphaned processes,
    and exits with the status of COMMAND (128 and the signal's number after a signal).

    \b
    Examples:
      equipoise run -- python orders.py
      equipoise run -- sh -c 'exec python orders.py --member $HOSTNAME'
    """
    from equipoise.witness.supervisor import supervise

    return asyncio.run(supervise(words))


@command("witness", json=False, short_help="Prove the end of members of this machine when they are killed.")
@click.option("--socket", "path", type=click.Path(path_type=Path), required=True, metavar="PATH", help="Unix socket to make and listen on.")
def witness(screen: Screen, path: Path) -> None:
    """Wait for the members and workers that connect to a socket, and prove their end to the leader
    when they are killed or crash. Give them the socket's path in EQUIPOISE_WITNESS, and run this as
    the same user.

    \b
    Examples:
      equipoise witness --socket /run/equipoise/witness
      EQUIPOISE_WITNESS=/run/equipoise/witness python orders.py
    """
    if path.exists() and not path.is_socket():
        raise InputError(f"{path}: is no socket; name another path")
    asyncio.run(_serve(screen, path))


async def _serve(screen: Screen, path: Path) -> None:
    from equipoise.witness.server import WitnessServer

    stop = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    async with WitnessServer(path):
        screen.remark(f"watching the processes that connect to {path}")
        await stop.wait()
