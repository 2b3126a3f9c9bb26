"""The lag of a source partition (KIP-169 "Lag"), and the option that it depends on."""

from __future__ import annotations

from equipoise.assignors.common import options
from equipoise.events.settings import GroupSettings

AUTO_OFFSET_RESET = "auto_offset_reset"
OFFSET_RESETS = ("earliest", "latest")


def partition_lag(*, beginning: int | None, end: int | None, committed: int | None, auto_offset_reset: str = "latest") -> int:
    """Records of a partition that the group has still to read (KIP-169 "Lag", its sign put right),
    never below 0.

    All offsets are of next records. `committed` None: nothing was committed yet, so the group
    begins where `auto.offset.reset` says: at the end for "latest" (in any case of letters), else at
    the beginning. The others None: not known, counts 0.
    """
    after = end or 0
    following = committed
    if following is None:
        following = after if auto_offset_reset.lower() == "latest" else beginning or 0
    return max(after - following, 0)


def auto_offset_reset(settings: GroupSettings) -> str:
    """Where the members of a group begin that has committed nothing, as its option says; whichever
    assignor it has.
    """
    return options.one_of(settings, AUTO_OFFSET_RESET, OFFSET_RESETS)
