"""The options of `load_balanced`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.load_balanced.weights import DEFAULT_WEIGHTS, FAIR_SHARE
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings

ASSIGNOR = "load_balanced"
DEFAULT_PERCENTS: Mapping[str, int] = {"load_high_percent": 20, "load_low_percent": 5}


@attrs.frozen(kw_only=True)
class Thresholds:
    """Least gain of a move, in millionths of a fair share, for a rebalancing to begin (`high`) and
    to go on (`low`).
    """

    high: int
    low: int

    @classmethod
    def of(cls, settings: GroupSettings, others: tuple[str, ...] = ()) -> Thresholds:
        """Reads the options. `others`: known ones that are read elsewhere. Raises FieldError for
        one that is out of bounds or unknown.
        """
        options.known_only(settings, ASSIGNOR, (*DEFAULT_PERCENTS, *DEFAULT_WEIGHTS, *others))
        high, low = (options.whole(settings, name, default) for name, default in DEFAULT_PERCENTS.items())
        if not 1 <= low <= high:
            raise FieldError("config.options.load_low_percent", f"{low} is not from 1 to load_high_percent = {high}")
        return cls(high=high * FAIR_SHARE // 100, low=low * FAIR_SHARE // 100)
