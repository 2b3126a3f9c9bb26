"""Changes the configuration of a live group: what `equipoise configure` does.

A configuration is a fact (docs/protocol.md#d8). It is appended here, and a worker answers it: it is in force, or it is rejected and the one before
stays in force.
"""

from __future__ import annotations

from equipoise.live import LiveSettings
from equipoise.live_group import LiveGroup
from events import codec
from events.decisions import EventRejected
from events.errors import InputError
from events.facts import GroupConfigured, ProbingTick
from events.records import DecisionRecord, Record
from statemachine.machine import GroupMachine
from statemachine.rejections import rejection_text


class Configuring(LiveGroup):
    """Appends one configuration and finds the answer to it."""

    def __init__(self, settings: LiveSettings, group: str) -> None:
        super().__init__(settings, group, folded=self._note)
        self.offset: int | None = None
        """Of the configuration that was appended; None: none was."""
        self._is_folded = self._is_led = False
        self._rejected: EventRejected | None = None

    def _note(self, record: Record, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        if self.offset is None or record.group != self.group or record.offset < self.offset:
            return
        if record.offset == self.offset:
            self._is_folded = True
            self._rejected = next((each.decision for each in decisions if isinstance(each.decision, EventRejected)), None)
        self._is_led = self._is_led or isinstance(record.event, ProbingTick) or (bool(decisions) and record.offset == self.offset)

    async def configuration(self) -> GroupConfigured:
        """The configuration in force. Raises InputError when the group has none."""
        config = (await self.state()).config
        if config is None:
            raise InputError(f"--group: group {self.group!r} has no configuration yet; its first member brings one")
        return config

    async def configure(self, config: GroupConfigured) -> None:
        """Appends the configuration. Raises InputError for one that is too large."""
        codec.encode(config)
        self.offset = await self.append(config)

    async def look(self) -> bool:
        """Whether a worker has answered. A group without members needs none: whoever leads it next finds the fact."""
        state = await self.state()
        if not self._is_folded or not await self.is_answered():
            return False
        state = await self.state()  # once more: the answer was read, and it may be another than this build gives
        return self._is_led or not state.members

    def rejection(self, config: GroupConfigured) -> str | None:
        """Why the configuration was rejected, when `look` has found an answer; None: it is in force."""
        return None if self._rejected is None else rejection_text(self._rejected, config)
