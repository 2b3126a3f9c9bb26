"""The options of `cooperative`."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from equipoise.assignors.common import options
from equipoise.events.settings import GroupSettings

ASSIGNOR = "cooperative"
BACKOFF_FACTOR = 40
"""How much longer each back-off in succession is; the factor of Kafka Connect, whose first one is
40 ms too.
"""
MOST_IN_SUCCESSION = 8
"""After so many in succession a back-off grows no more: whatever it began with, it is at its cap of
`scheduled_delay_ms` long before.
"""


@attrs.frozen(kw_only=True)
class CooperativeOptions:
    """The options of `cooperative`, in milliseconds of group time.

    `scheduled_delay_ms`: how long a lost task waits for its owner; Connect's
    scheduled.rebalance.max.delay.ms. 0: not at all. `revocation_backoff_ms`: the first back-off.
    None is longer than `scheduled_delay_ms`. 0: none. `revocations_per_round`: tasks that may be on
    their way for balance at a time. 0: all of them.
    """

    scheduled_delay_ms: int = 300_000
    revocation_backoff_ms: int = 40
    revocations_per_round: int = 0

    @classmethod
    def of(cls, settings: GroupSettings, known: Collection[str]) -> CooperativeOptions:
        """Raises FieldError for one of these that is no whole number >= 0, and for an option that
        is none of `known`.
        """
        fields = {field.name: field.default for field in attrs.fields(cls) if field.name in known}
        options.known_only(settings, ASSIGNOR, fields)
        return cls(**{name: options.whole(settings, name, default) for name, default in fields.items()})

    def backoff_ms(self, times: int) -> int:
        """How long the next round that revokes for balance waits after the `times`-th in
        succession; 0: the last succession is over.
        """
        grown_ms: int = self.revocation_backoff_ms * BACKOFF_FACTOR ** min(max(times - 1, 0), MOST_IN_SUCCESSION)
        return min(self.scheduled_delay_ms, grown_ms)
