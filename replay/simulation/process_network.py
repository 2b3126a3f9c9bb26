"""The network between processes and the broker, and the processes as the network sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.replay.simulation.engine import Engine


@attrs.frozen(kw_only=True)
class NetworkSettings:
    """Delays and losses of messages. Each direction of a request is drawn separately."""

    least_delay_ms: int = attrs.field(default=1, validator=fields.integer())
    most_delay_ms: int = attrs.field(default=4, validator=fields.integer())
    loss_per_million: int = attrs.field(default=0, validator=fields.integer(0, 1_000_000))
    """Messages that never arrive. Requests are sent again after `resend_after_ms`."""
    report_loss_per_million: int = attrs.field(default=0, validator=fields.integer(0, 1_000_000))
    """Heartbeats that their producer drops: they are never appended, later facts are."""
    resend_after_ms: int = attrs.field(default=500, validator=fields.integer(1))


class SimulatedNetwork:
    """Delays messages, loses them, and cuts endpoints off."""

    def __init__(self, engine: Engine, settings: NetworkSettings) -> None:
        self.engine = engine
        self.settings = settings
        self._cut: dict[str, int] = {}
        """Endpoint -> time until which no message passes in either direction."""
        self._slow: dict[str, tuple[int, int]] = {}
        """Endpoint -> (until when, largest extra delay in ms)."""

    def cut(self, endpoint: str, duration_ms: int) -> None:
        self._cut[endpoint] = max(self._cut.get(endpoint, 0), self.engine.now_ms + duration_ms)

    def slow(self, endpoint: str, duration_ms: int, most_extra_ms: int) -> None:
        self._slow[endpoint] = (self.engine.now_ms + duration_ms, most_extra_ms)

    def heal(self) -> None:
        """Ends losses and cuts. Messages under way keep their delay."""
        self.settings = attrs.evolve(self.settings, loss_per_million=0, report_loss_per_million=0)
        self._cut.clear()
        self._slow.clear()

    def send(self, endpoint: str, deliver: Callable[..., object], *arguments: Any) -> None:
        """Sends one message between `endpoint` and the broker, in either direction. The message may
        be lost.
        """
        engine, settings = self.engine, self.settings
        if engine.chance(settings.loss_per_million):
            return
        delay_ms = engine.between(settings.least_delay_ms, settings.most_delay_ms)
        if endpoint in self._cut:
            if engine.now_ms < self._cut[endpoint]:
                return
            del self._cut[endpoint]
        if endpoint in self._slow:
            until_ms, most_extra_ms = self._slow[endpoint]
            if engine.now_ms < until_ms:
                delay_ms += engine.between(0, most_extra_ms)
            else:
                del self._slow[endpoint]
        engine.after(delay_ms, deliver, *arguments)


class NetworkEnd:
    """An operating-system process that can be killed, or stopped (SIGSTOP) while its clock and the
    world go on.
    """

    def __init__(self, name: str, engine: Engine, network: SimulatedNetwork) -> None:
        self.name = name
        self.engine = engine
        self.network = network
        self.alive = True
        self.paused = False
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def run(self, action: Callable[..., object], *arguments: Any) -> None:
        """Runs `action` in this process: not at all when it is dead, later when it is stopped."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((action, arguments))
        else:
            action(*arguments)

    def after(self, delay_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Starts a timer of this process."""
        self.engine.after(delay_ms, self.run, action, *arguments)

    def kill(self) -> None:
        self.alive = False
        self._backlog.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Continues a stopped process. Messages and timers that waited run in random order."""
        if not self.alive or not self.paused:
            return
        self.paused = False
        backlog, self._backlog = self._backlog, []
        self.engine.random.shuffle(backlog)
        for action, arguments in backlog:
            self.run(action, *arguments)
