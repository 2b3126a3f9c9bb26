"""The options of `lag_aware`."""

from __future__ import annotations

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.source_lag import AUTO_OFFSET_RESET, OFFSET_RESETS, auto_offset_reset
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings

ASSIGNOR = "lag_aware"
CROSS_TOPIC = "cross_topic"
DEAL_AFTER_MS = "deal_after_ms"
DEAL_GAIN_RECORDS = "deal_gain_records"
RACK_LAG_TOLERANCE = "rack_lag_tolerance"
DEFAULT_GAIN_RECORDS = 10_000


@attrs.frozen(kw_only=True)
class LagAwareOptions:
    """The options of `lag_aware`.

    `cross_topic`: deal all topics together. `rack_lag_tolerance`: where racks make a difference,
    partitions of a topic whose lags differ by at most so many records are interchangeable.
    `auto_offset_reset`: where members begin to read a partition without a committed offset; it
    matters to whoever observes the lags. `deal_after_ms`: for how long lags must have been uneven
    before the group deals by itself, in group time; 0: it does not. `deal_gain_records`: by how
    much each partition that moves must lower the lag of the one further behind of its two members.
    """

    cross_topic: bool = False
    rack_lag_tolerance: int = 0
    auto_offset_reset: str = OFFSET_RESETS[0]
    deal_after_ms: int = 0
    deal_gain_records: int = DEFAULT_GAIN_RECORDS

    @classmethod
    def of(cls, settings: GroupSettings, *, deals_by_itself: bool = True) -> LagAwareOptions:
        """Reads the options. `deals_by_itself` False: those for that are unknown. Raises FieldError
        for one that is unsound or unknown.
        """
        itself = (DEAL_AFTER_MS, DEAL_GAIN_RECORDS) if deals_by_itself else ()
        options.known_only(settings, ASSIGNOR, (AUTO_OFFSET_RESET, CROSS_TOPIC, RACK_LAG_TOLERANCE, *itself))
        chosen = cls(
            cross_topic=options.flag(settings, CROSS_TOPIC),
            rack_lag_tolerance=options.whole(settings, RACK_LAG_TOLERANCE, 0),
            auto_offset_reset=auto_offset_reset(settings),
            deal_after_ms=options.whole(settings, DEAL_AFTER_MS, 0),
            deal_gain_records=options.whole(settings, DEAL_GAIN_RECORDS, DEFAULT_GAIN_RECORDS),
        )
        least = max(1, chosen.rack_lag_tolerance + 1 if chosen.deal_after_ms else 1)
        if chosen.deal_gain_records < least:
            why = "" if least == 1 else f": racks exchange partitions whose lags differ by {RACK_LAG_TOLERANCE} = {chosen.rack_lag_tolerance}"
            raise FieldError(f"config.options.{DEAL_GAIN_RECORDS}", f"{chosen.deal_gain_records} is not at least {least}{why}")
        return chosen
