"""The policy of an autoscaler (`equipoise.replay.sizing.autoscaling`), and its last answer."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError

BUCKET_MS = 15_000
"""Over how long arrivals are added up for an autoscaler."""
LONGEST_S = 7_200
"""For so long at most fewer members must have been enough."""


@attrs.frozen(kw_only=True)
class FollowingPolicy:
    """The policy of an autoscaler. `lag_s`: longest time that a record may wait. `least`, `most`:
    members. `low_for_s`: for so long fewer members must have been enough before one leaves.
    `member_records_per_s`: what a member can do; None: as the log shows.
    """

    lag_s: float = attrs.field(default=30.0, validator=fields.number(0.001))
    least: int = attrs.field(default=1, validator=fields.integer(1, 10_000))
    most: int = attrs.field(default=10_000, validator=fields.integer(1, 10_000))
    low_for_s: int = attrs.field(default=1_800, validator=fields.integer(60, LONGEST_S))
    member_records_per_s: float | None = attrs.field(default=None, validator=attrs.validators.optional(fields.number(0.001)))

    def __attrs_post_init__(self) -> None:
        if self.most < self.least:
            raise FieldError("FollowingPolicy.most", f"{self.most} is below least, {self.least}")


@attrs.frozen(kw_only=True)
class LastAnswer:
    """The last answer that asked for another number of members, at this append time (ms)."""

    members: int
    at_ms: int


def policy_of(values: Mapping[str, str]) -> FollowingPolicy:
    """Returns the policy of these values, as a query or an autoscaler's settings have them. Raises
    InputError, which names the value and what it may be.
    """
    known = {field.name: field.default for field in attrs.fields(FollowingPolicy)}
    found: dict[str, float] = {}
    for name, text in values.items():
        if name not in known:
            raise InputError(f"{name}: there is no such value; there are {', '.join(known)}")
        try:
            found[name] = int(text) if isinstance(known[name], int) else float(text)
        except ValueError:
            raise InputError(f"{name}: {text!r:.80} is no {'whole ' if isinstance(known[name], int) else ''}number") from None
    return FollowingPolicy(**found)  # type: ignore[arg-type]  # its validators check them
