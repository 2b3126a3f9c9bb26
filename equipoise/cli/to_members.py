"""`equipoise migrate --to members`: from a consumer group to members, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.connection import MISSING

EXIT_NOT_DONE = 1


def move(screen: Screen, settings: LiveSettings, group: str, consumers: str, timeout_s: float | None, words: tuple[str, ...], *, back: bool) -> int:
    """Moves the application from CONSUMERS to the members of `group`, or back. `words`: a command
    that stops or starts the consumers; (): the operator is asked to. Raises InputError.
    """
    wanted = f"{'start' if back else 'stop'} the application of the consumers now"
    try:
        from equipoise.operations.adopting import Adopting
    except ImportError:
        raise InputError(MISSING) from None

    async def moved() -> int:
        try:
            async with asyncio.timeout(timeout_s), Adopting(settings, group, consumers, screen.line) as moving:
                act = _act(screen, words, wanted)
                pause_s = await (moving.to_consumers(act) if back else moving.to_members(act))
        except TimeoutError:
            screen.line(f"not done after {timeout_s:g} s; run it again to go on", err=True)
            return EXIT_NOT_DONE
        if pause_s is not None:
            screen.line(f"done: {'consumers' if back else 'members'} read; nobody read for {pause_s:.1f} s")
        return 0

    return asyncio.run(moved())


def _act(screen: Screen, words: tuple[str, ...], wanted: str) -> Callable[[], Awaitable[None]]:
    """Stops or starts the application: by a command, or by whoever reads this."""

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
