"""What a plan can count on where something else than equipoise's own members carries it out."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class Carrier:
    """How the moves of a plan reach the members.

    All times in ms. A carrier that works in rounds hands over all tasks of a round together, and
    stops more than the tasks that move: so a plan for it begins every copy at once, and waits until
    copies that will be ready soon are ready, too.
    """

    name: str
    round_ms: int
    """What a round takes in which tasks change owners: from the question until all of them run."""
    look_ms: int
    """When copies are looked at again whose restore rate nobody has measured yet."""
    patience_ms: int
    """How long ready copies wait for others, so that one round hands all of them over."""
    reports_ready: bool = False
    """Its members ask for a round themselves when all their copies are caught up, so nobody looks
    at copies before that.
    """
    absence_ms: int = 0
    """How long a member that is gone is expected back: until then no copy is begun that it makes
    superfluous. 0: nobody is expected.
    """


KAFKA_STREAMS = Carrier(name="kafka_streams", round_ms=3_000, look_ms=5_000, patience_ms=30_000)
"""A hand-over is a round and its follow-up: its owner stops, and the next one begins when every
member has noticed the follow-up, a heartbeat (`heartbeat.interval.ms`, 3 s) later. A thread that
gives up one task stops all its tasks until then (measured: docs/benchmarks.md).
"""

FAUST = Carrier(name="faust", round_ms=1_000, look_ms=30_000, patience_ms=30_000, reports_ready=True, absence_ms=60_000)
"""Faust's protocol is eager: every round stops every task of every member for about a second, and
hands over within itself (docs/faust.md).
"""

CARRIERS: Mapping[str, Carrier] = {each.name: each for each in (KAFKA_STREAMS, FAUST)}
