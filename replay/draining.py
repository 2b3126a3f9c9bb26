"""How long members that are leaving still need, as the group is now."""

from __future__ import annotations

import attrs

from equipoise.assignors.common.restore_rate import Pace
from equipoise.events.tasks import TaskId
from equipoise.replay.wording import span_text
from equipoise.statemachine.state import GroupState, known_lag


@attrs.frozen(kw_only=True)
class Drain:
    """`expected_ms`: until all that the member runs is restored elsewhere, at the speeds that were
    measured; None: not known.

    `left_ms`: until what it still runs goes all the same (`drain_timeout_ms`).
    """

    expected_ms: int | None
    left_ms: int

    def text(self) -> str:
        """``about 40.0 s to go, 10 min 00 s at most``."""
        about = "time to go not known" if self.expected_ms is None else f"about {span_text(self.expected_ms)} to go"
        late = self.expected_ms is not None and self.expected_ms > self.left_ms
        return f"{about}, {span_text(self.left_ms)} at most{': the rest will stand still while it is restored' if late else ''}"


def drains(state: GroupState) -> dict[str, Drain]:
    """Those of all members that are leaving and still run something.

    What a member restores for one of them it restores beside all its other copies: at the speed of
    the member, all of it together.
    """
    leaving = {name: member for name, member in state.members.items() if member.leaving and member.drain_deadline_ms is not None}
    going: dict[str, dict[str, list[TaskId]]] = {}
    work: dict[str, int] = {}
    for name, member in sorted(leaving.items()):
        for task in sorted({*member.active, *member.revoking}):
            movement = state.in_flight.get(task)
            destination = state.queued.get(task) if movement is None else movement.destination
            if destination is not None and task not in member.revoking:
                going.setdefault(name, {}).setdefault(destination, []).append(task)
                work[destination] = work.get(destination, 0) + _missing(state, destination, task)
    pace = Pace({name: member.restore_records_per_s for name, member in state.members.items()})
    found: dict[str, Drain] = {}
    for name, member in leaving.items():
        if member.active or member.revoking:
            expected_ms = pace.longest_ms({destination: work[destination] for destination in going.get(name, ())})
            found[name] = Drain(expected_ms=expected_ms, left_ms=max(0, (member.drain_deadline_ms or 0) - state.now_ms))
    return found


def _missing(state: GroupState, name: str, task: TaskId) -> int:
    member = state.members[name]
    lag = known_lag(member.lags.get(task))
    records = state.records(task) if lag is None else lag
    return 0 if member.is_caught_up(task, state.acceptable_lag(member)) else records
