"""One incident, as it is shown."""

from __future__ import annotations

import statistics

import attrs

from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.long_restores import Restore
from equipoise.replay.incident.planned_causes import ChangeMeanwhile
from equipoise.replay.incident.rebalance_loops import Loop
from equipoise.replay.incident.unavailable import Gap
from equipoise.replay.known_changes import KnownChange

_FOR_A_MEDIAN = 3
_LEAST_USUAL_MS = 1_000


@attrs.frozen(kw_only=True)
class Incident:
    """`chain`: its rebalances, the one that it began with first; () where work stood still without
    one. `unavailable_ms`: summed over partitions. `is_rolling`: one of several members stopped
    after the other, and came back: a deployment. `before`: what earlier incidents of the same
    cause had cost (ms), to see what is unusual. `is_static`: those who stopped have instance ids.
    `restores`: tasks that took long from their assignment to their first commit. `loop`: its
    rebalances came again and again from one cause. `whose`: members that had the partitions which
    stood still without a rebalance. `changes`: what equipoise's log says was changed meanwhile.
    """

    begin_ms: int
    end_ms: int
    cause: Cause
    members: tuple[str, ...]
    chain: tuple[Rebalance, ...]
    gaps: tuple[Gap, ...]
    is_rolling: bool = False
    is_static: bool = False
    before: tuple[int, ...] = ()
    restores: tuple[Restore, ...] = ()
    advice: tuple[str, ...] = ()
    loop: Loop | None = None
    whose: tuple[str, ...] = ()
    changes: tuple[ChangeMeanwhile, ...] = attrs.field(default=(), eq=False)

    @property
    def planned(self) -> KnownChange | None:
        """Returns the planned change that it is; None: it is none."""
        return next((each.change for each in self.changes if each.is_cause), None)

    @property
    def rebalancing_ms(self) -> int:
        """Returns how long its rebalances took, together."""
        return sum(each.took_ms for each in self.chain)

    @property
    def places(self) -> tuple[str, ...]:
        """The lines that its cause rests on."""
        return next((each.places for each in self.chain if each.cause is self.cause and each.places), self.chain[0].places if self.chain else ())

    @property
    def unavailable_ms(self) -> int:
        return sum(gap.unavailable_ms for gap in self.gaps)

    @property
    def is_unusual(self) -> bool:
        """Returns whether it cost more than twice the median of those before, of which there are
        three or more.
        """
        return len(self.before) >= _FOR_A_MEDIAN and self.unavailable_ms > 2 * max(_LEAST_USUAL_MS, statistics.median(self.before))

    @property
    def moves(self) -> int:
        """Changes of owner, of all rebalances. What is given up and comes back to its owner has not
        moved.
        """
        return sum(len(each.changed) for each in self.chain)
