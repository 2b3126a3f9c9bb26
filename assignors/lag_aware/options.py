"""The options of `lag_aware`."""

from __future__ import annotations

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.source_lag import AUTO_OFFSET_RESET, OFFSET_RESETS, auto_offset_reset
from equipoise.events.settings import GroupSettings

ASSIGNOR = "lag_aware"
CROSS_TOPIC = "cross_topic"
RACK_LAG_TOLERANCE = "rack_lag_tolerance"


@attrs.frozen(kw_only=True)
class LagAwareOptions:
    """The options of `lag_aware`.

    `cross_topic`: deal all topics together. `rack_lag_tolerance`: where racks make a difference,
    partitions of a topic whose lags differ by at most so many records are interchangeable.
    `auto_offset_reset`: where members begin to read a partition without a committed offset; it
    matters to whoever observes the lags.
    """

    cross_topic: bool = False
    rack_lag_tolerance: int = 0
    auto_offset_reset: str = OFFSET_RESETS[0]

    @classmethod
    def of(cls, settings: GroupSettings) -> LagAwareOptions:
        """Reads the options. Raises FieldError for one that is unsound or unknown."""
        options.known_only(settings, ASSIGNOR, (AUTO_OFFSET_RESET, CROSS_TOPIC, RACK_LAG_TOLERANCE))
        return cls(
            cross_topic=options.flag(settings, CROSS_TOPIC),
            rack_lag_tolerance=options.whole(settings, RACK_LAG_TOLERANCE, 0),
            auto_offset_reset=auto_offset_reset(settings),
        )
