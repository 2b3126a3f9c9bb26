"""`equipoise adopt`: moves an application from a consumer group to members, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import click

from equipoise.cli.command import command
from equipoise.cli.params import Number
from equipoise.cli.screen import Screen
from equipoise.cli.settings_options import settings_options
from equipoise.events.errors import InputError
from equipoise.kafka.connection import MISSING
from equipoise.live_settings import LiveSettings

EXIT_NOT_DONE = 1


@command("adopt", json=False, short_help="Move an application from a consumer group to members.")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGUMENT]...]", type=click.UNPROCESSED)
@click.option("--group", required=True, metavar="GROUP", help="Group of the members.")
@click.option("--consumers", required=True, metavar="CONSUMERS", help="Kafka consumer group that the members adopt, or have adopted.")
@click.option("--back", is_flag=True, help="Move the application back from the members to the consumers.")
@click.option("--timeout", "timeout_s", type=Number(min=0), metavar="SECONDS", help="Stop waiting after this time.")
@settings_options(LiveSettings)
def adopt(
    screen: Screen, words: tuple[str, ...], settings: LiveSettings, group: str, consumers: str, timeout_s: float | None, *, back: bool
) -> int:
    """Start the members first, with Member(adopts=CONSUMERS): they join, get their tasks, and wait.
    This command waits until all tasks are granted, has COMMAND stop the consumers, or asks you to,
    and follows until the members read where the consumers have read to. It prints how long nobody
    read.

    Brokers let consumers and members into the group CONSUMERS only when none of the others is
    there, so the command may be stopped and run again at any time.

    With --back, the members finish the record at hand, commit, and end; make sure that nothing
    restarts them. Then the command commits where they have read to as the offsets of the group
    CONSUMERS, and has COMMAND start the consumers, or asks you to. If it is stopped before it says
    that the group is free, run it again before you start consumers.

    \b
    Examples:
      equipoise adopt --group orders --consumers orders-app
      equipoise adopt --group orders --consumers orders-app -- systemctl stop orders-app
      equipoise adopt --group orders --consumers orders-app --back -- systemctl start orders-app
    """
    wanted = f"{'start' if back else 'stop'} the application of the consumers now"
    return _moved(screen, settings, group, consumers, timeout_s, words, wanted, back=back)


def _moved(
    screen: Screen, settings: LiveSettings, group: str, consumers: str, timeout_s: float | None, words: tuple[str, ...], wanted: str, *, back: bool
) -> int:
    try:
        from equipoise.operations.adopting import Adopting
    except ImportError:
        raise InputError(MISSING) from None

    async def move() -> int:
        try:
            async with asyncio.timeout(timeout_s), Adopting(settings, group, consumers, screen.line) as moving:
                act = _act(screen, words, wanted)
                pause_s = await (moving.release(act) if back else moving.adopt(act))
        except TimeoutError:
            screen.line(f"not done after {timeout_s:g} s; run it again to go on", err=True)
            return EXIT_NOT_DONE
        if pause_s is not None:
            screen.line(f"done: {'consumers' if back else 'members'} read; nobody read for {pause_s:.1f} s")
        return 0

    return asyncio.run(move())


def _act(screen: Screen, words: tuple[str, ...], wanted: str) -> Callable[[], Awaitable[None]]:
    """What stops or starts the application: a command, or whoever reads this."""

    async def act() -> None:
        if not words:
            screen.line(wanted)
            return
        screen.line(f"runs: {' '.join(words)}")
        try:
            process = await asyncio.create_subprocess_exec(*words)
        except OSError as error:
            raise InputError(f"COMMAND: {words[0]}: {error.strerror}") from None
        try:
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if status:
            raise InputError(f"COMMAND: {' '.join(words)} has ended with status {status}")

    return act
