"""Changes the configuration of a live group: what `equipoise configure` does.

A configuration is a fact (docs/protocol.md#d8). It is appended here, and a worker answers it: it is
in force, or it is rejected and the one before stays in force.
"""

from __future__ import annotations

from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.live_group import AnsweredFact


class Configuring(AnsweredFact):
    """Appends one configuration and finds the answer to it."""

    async def configuration(self) -> GroupConfigured:
        """The configuration in force. Raises InputError when the group has none."""
        config = (await self.state()).config
        if config is None:
            raise InputError(f"--group: group {self.group!r} has no configuration yet; its first member brings one")
        return config
