"""The options of `cooperative`."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from equipoise.assignors.common import options
from equipoise.events.settings import GroupSettings

ASSIGNOR = "cooperative"
BACKOFF_FACTOR = 40
"""Growth of successive back-offs, as in Kafka Connect, whose first one is 40 ms too."""
MOST_IN_SUCCESSION = 8
"""After so many a back-off no longer grows: by then it is at its cap, `scheduled_delay_ms`,
whatever it began with.
"""


@attrs.frozen(kw_only=True)
class CooperativeOptions:
    """The options of `cooperative`. Times are group time (ms).

    `scheduled_delay_ms`: how long a lost task waits for its owner; 0: not at all. Connect:
    scheduled.rebalance.max.delay.ms. `revocation_backoff_ms`: the first back-off; 0: none. None is
    longer than `scheduled_delay_ms`. `revocations_per_round`: tasks that may move for balance at a
    time; 0: all.
    """

    scheduled_delay_ms: int = 300_000
    revocation_backoff_ms: int = 40
    revocations_per_round: int = 0

    @classmethod
    def of(cls, settings: GroupSettings, known: Collection[str]) -> CooperativeOptions:
        """Reads the options. Raises FieldError for one that is not a whole number >= 0, and for one
        that is not `known`.
        """
        fields = {field.name: field.default for field in attrs.fields(cls) if field.name in known}
        options.known_only(settings, ASSIGNOR, fields)
        return cls(**{name: options.whole(settings, name, default) for name, default in fields.items()})

    def backoff_ms(self, times: int) -> int:
        """Returns how long the next round that revokes for balance waits after the `times`-th in
        succession; 0: there is no succession.
        """
        grown_ms: int = self.revocation_backoff_ms * BACKOFF_FACTOR ** min(max(times - 1, 0), MOST_IN_SUCCESSION)
        return min(self.scheduled_delay_ms, grown_ms)
