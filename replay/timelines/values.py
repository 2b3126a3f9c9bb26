"""The history of one group as values: what `equipoise.replay.timelines.build` builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from equipoise.events.tasks import TaskId
from equipoise.replay.history import MoveStory
from equipoise.replay.inputs_reader import sum_windows
from equipoise.replay.numbers import MEASURED, UNAVAILABLE, WITHOUT_OWNER, WITHOUT_RUNNER, Unavailable, is_move, sum_gaps
from equipoise.replay.owners import Interval, joined_stretches
from equipoise.replay.recorded_inputs import Window


@attrs.frozen(kw_only=True)
class Lifeline:
    """One incarnation of a member. `ended_ms` None: it lives at the end. `silent_ms`: when it was
    last heard, if it ended without MemberLeft; else None.
    """

    member_id: str
    incarnation: int
    capacity: int
    rack: str | None
    joined_ms: int
    ended_ms: int | None
    silent_ms: int | None
    how: str
    """left, or the cause of MemberExpired, or the end that a recorded group observed; "" while it
    lives.
    """


@attrs.frozen(kw_only=True)
class CopyInterval:
    """A copy of a task that a member was assigned. `kind`: warmup or standby. `ready_ms`: when a
    warm-up was caught up; None: not.
    """

    task: TaskId
    member_id: str
    kind: str
    from_ms: int
    to_ms: int
    ready_ms: int | None


@attrs.frozen(kw_only=True)
class Round:
    """One generation."""

    append_ms: int
    offset: int
    generation: int
    cause: str
    moves: int
    """Movements it began, advanced, ended or cancelled; in a recorded group: tasks that got another
    owner.
    """
    members: int


@attrs.frozen(kw_only=True)
class Totals:
    """Costs of a stretch of time."""

    label: str
    from_ms: int
    to_ms: int
    moves: int
    """Changes of owner, intermediate ones included; a task may count several times. First
    placements do not count.
    """
    rounds: int
    stopped_ms: int
    """Task-milliseconds without a running owner, summed over tasks."""
    tasks_stopped: int
    longest_ms: int
    """Longest time that one task was without a running owner."""

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Timeline:
    """The history of one group. Times are wall time of the log, in ms."""

    group: str
    log_id: str
    led_by: str
    assignor: str
    from_ms: int
    to_ms: int
    facts: int
    tasks: Mapping[TaskId, bool]
    """Every task -> stateful."""
    lifelines: tuple[Lifeline, ...]
    numbers: Mapping[str, int] = attrs.field(factory=dict)
    """Member -> the number of its colour (`equipoise.replay.drawing.colours.colour_numbers`)."""
    intervals: tuple[Interval, ...]
    copies: tuple[CopyInterval, ...]
    moves: tuple[MoveStory, ...]
    rounds: tuple[Round, ...]
    lags: Mapping[tuple[TaskId, str], tuple[tuple[int, int], ...]]
    """(task, member) -> (append_ms, lag in records), of copies that the member was assigned."""
    imbalance: tuple[tuple[int, int], ...]
    """(append_ms, tasks outside their members' shares)."""
    verdicts: tuple[tuple[int, str], ...]
    rejections: int
    windows: tuple[Window, ...]
    first_divergence: int | None

    @property
    def length_ms(self) -> int:
        """Returns the length of the run: to the last fact, or to the end of the last marked window,
        which a recording goes on to without a fact.
        """
        return max([self.to_ms, *(window.end_ms for window in self.windows)]) - self.from_ms

    @property
    def leader(self) -> str:
        """Returns who leads, for people."""
        if self.led_by != "external":
            return f"led by {self.led_by or 'nobody'}"
        return "equipoise decides, and the group carries it out" if self.verdicts else "led by its own leader"

    @property
    def without(self) -> str:
        """Returns what the time is called that the log shows without a running owner."""
        return WITHOUT_OWNER if self.led_by == "external" else WITHOUT_RUNNER

    @property
    def caption(self) -> str:
        """Returns where that time comes from, and what it is not."""
        if self.led_by == "external":
            return f"{self.without}: from the log, which shows no restores; {UNAVAILABLE}, as measured at the records, is longer"
        return (
            f"{self.without}: from the log, from the last report of a running owner to the first that shows the next one running; "
            f"{UNAVAILABLE}, as measured at the records or simulated, is shorter"
        )

    @property
    def measured(self) -> Unavailable | None:
        """Returns what was measured in the marked windows together; None: not in each of them."""
        totals = [each.measured["totals"] for each in self.windows if each.measured is not None]
        if not totals or len(totals) < len(self.windows):
            return None
        whole = sum_windows(totals)
        return Unavailable(task_s=round(whole["unavailable_task_seconds"], 1), longest_ms=whole["longest_silence_ms"], source=MEASURED)

    def totals(self, label: str = "all", from_ms: int | None = None, to_ms: int | None = None) -> Totals:
        """Returns the costs of [from_ms, to_ms). None: the log's own ends, the last moment
        included.
        """
        start_ms = self.from_ms if from_ms is None else from_ms
        end_ms = self.to_ms + 1 if to_ms is None else to_ms
        sums = sum_gaps(self.stopped(start_ms, end_ms))
        moved = [move for move in self.moves if changes_owner(move) and start_ms <= (move.ended_ms or 0) < end_ms]
        return Totals(
            label=label,
            from_ms=start_ms,
            to_ms=self.to_ms if to_ms is None else to_ms,
            moves=len(moved),
            rounds=sum(start_ms <= each.append_ms < end_ms for each in self.rounds),
            stopped_ms=sums.total_ms,
            tasks_stopped=sums.tasks,
            longest_ms=sums.longest_ms,
        )

    def stopped(self, from_ms: int, to_ms: int) -> dict[TaskId, list[tuple[int, int]]]:
        """Returns the `joined_stretches` whose middle is in [from_ms, to_ms), each in full."""
        found = joined_stretches(self.intervals)
        inside = {task: [(since, to) for since, to in of_task if from_ms <= (since + to) // 2 < to_ms] for task, of_task in found.items()}
        return {task: of_task for task, of_task in inside.items() if of_task}

    def window_totals(self) -> list[Totals]:
        """Returns the costs of each marked window, or of the whole log when none is marked."""
        marked = [self.totals(window.label, window.start_ms, window.end_ms) for window in self.windows]
        return marked or [self.totals()]


def changes_owner(move: MoveStory) -> bool:
    """Returns whether the movement gave the task to another member than its last owner. A first
    placement does not.
    """
    return move.outcome == "granted" and is_move(move.source, move.destination)
