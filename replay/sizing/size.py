"""`size`: how many members a group needs for a longest lag, what it costs to get there, and how
often it is worth to change.

Two things are not known for sure: what a member can do, and what arrives next. Both are drawn many
times; the recommendation is the fewest members that do in most draws, and its interval holds 95 %
of what the draws need. Who would run which task is taken from the predictions of each change
(`equipoise.replay.prediction`), and dealt by count where nothing is predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from equipoise.assignors.scale_down import Keep, scale_down
from equipoise.events.errors import InputError
from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.habits import Habits, HabitsReader, quantile
from equipoise.replay.prediction.planned_change import Join, Leave, PlannedChange, new_name
from equipoise.replay.prediction.predict import PredictedInterval, Prediction, UnknownSpeedError, predict_in_turn
from equipoise.replay.prediction.present import PresentGroup, present_of
from equipoise.replay.prediction.reading import state_beside
from equipoise.replay.sizing.demand import Demand, DemandReader
from equipoise.replay.sizing.drawn_load import DrawnLoad, count_at, draw_load
from equipoise.replay.sizing.member_queues import dealt
from equipoise.replay.trouble import parked_tasks, parked_text
from equipoise.replay.wording import counted
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupState

RUNS = 20
FEWEST_BUCKETS = 10
"""A log that shows loads for fewer minutes is not enough."""
MOST = 0.5
"""Part of the draws in which the recommended members do at least."""
WORTH = 1_000
"""A change is worth it when the group then rests for so many times the time that a task of it stood
still: it costs a thousandth of the availability at most.
"""


@attrs.frozen(kw_only=True)
class Option:
    """A number of members. `there`, `back`: what it costs to get there from now, and from there
    back; None: it is the number of now, or nothing is predicted.
    """

    members: int
    lag_s: PredictedInterval
    utilisation: float
    """Of the busiest member in its busiest minute; median of the draws."""
    mean_utilisation: float
    met: float
    """Part of the draws in which the longest lag stays within the target."""
    there: Prediction | None
    back: Prediction | None


@attrs.frozen(kw_only=True)
class Sizing:
    """The answer. `recommended` None: no number of members does; see `hot`."""

    group: str
    now: int
    tasks: int
    target_lag_s: float
    recommended: int | None
    low: int
    high: int
    """Between which 95 % of the draws need members; more than `tasks`: none does."""
    per_s: float
    basis: str
    """Where what a member can do comes from."""
    hours: float
    trend: float | None
    options: tuple[Option, ...]
    hot: tuple[TaskId, ...]
    """Tasks that fall behind by more than the target on a member of their own."""
    hold_s: float | None
    """Changes are not worth it more often than this; None: nothing is predicted."""
    parked: tuple[str, ...]
    """Tasks that have failed, each with its record and how far behind it is: no member processes
    them, and what they need is not in these loads.
    """
    unpredicted: str = ""
    """Why it is not known what changes cost; "": it is, or nobody asked."""

    def line(self) -> str:
        """Returns the recommendation as one sentence."""
        if self.parked:
            more = f" (and {counted(len(self.parked) - 1, 'other task')})" if self.parked[1:] else ""
            return f"no number of members is right while a task has failed: {self.parked[0]}{more}; mend that first"
        if self.recommended is None:
            named = ", ".join(str(task) for task in self.hot[:3])
            too_much = f"{named} gets more than one member does; more members cannot help, more partitions can"
            why = too_much if self.hot else "it needs more members than it has tasks"
            return f"no number of members keeps the lag within {self.target_lag_s:g} s: {why}"
        between = f"{self.low} to {min(self.high, self.tasks)}" if self.low != self.high else str(self.low)
        members = counted(self.recommended, "member")
        do = f"keep {members}" if self.recommended == self.now else f"change from {self.now} to {members}"
        return f"{do} for a lag within {self.target_lag_s:g} s (95 % of the draws need {between})"

    def as_json(self) -> dict[str, object]:
        """Returns the answer, JSON-ready."""
        return {
            "group": self.group,
            "now": self.now,
            "tasks": self.tasks,
            "target_lag_s": self.target_lag_s,
            "recommended": self.recommended,
            "low": self.low,
            "high": self.high,
            "records_per_s": round(self.per_s, 1),
            "basis": self.basis,
            "hours": round(self.hours, 2),
            "trend": None if self.trend is None else round(self.trend, 4),
            "hold_s": None if self.hold_s is None else round(self.hold_s, 1),
            "hot": [str(task) for task in self.hot],
            "parked": list(self.parked),
            "line": self.line(),
            "unpredicted": self.unpredicted,
            "options": [
                {
                    "members": each.members,
                    "lag_s": attrs.asdict(each.lag_s),
                    "utilisation": round(each.utilisation, 4),
                    "mean_utilisation": round(each.mean_utilisation, 4),
                    "met": each.met,
                    "there": None if each.there is None else each.there.as_json(),
                    "back": None if each.back is None else each.back.as_json(),
                }
                for each in self.options
            ],
        }


@attrs.frozen(kw_only=True)
class Sizable:
    """All that `size` takes from a log."""

    present: PresentGroup
    habits: Habits
    demand: Demand
    state: GroupState


def read_sizable(
    entries: Iterable[Entry], *, group: str | None = None, restore_records_per_s: int | None = None, state: GroupState | None = None
) -> Sizable:
    """Reads a log once. `restore_records_per_s`: a restore speed that is known otherwise; `state`:
    see `state_beside`. Raises as `present_of` does, and what reading the log raises.
    """
    habits, demands = HabitsReader(group=group), DemandReader(group=group)
    state = state_beside(entries, [habits.take, demands.take], group=group, state=state)
    return Sizable(present=present_of(state), habits=habits.habits(restore_records_per_s), demand=demands.demand(), state=state)


def size(
    found: Sizable,
    *,
    target_lag_s: float,
    member_records_per_s: float | None = None,
    costs: bool = True,
    runs: int = RUNS,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Sizing:
    """Returns how many members the group needs so that no record waits longer than `target_lag_s`.
    `member_records_per_s`: what a member can do, where that is known otherwise. `costs`: whether
    changes are predicted, each with `runs`; they are not where no restore speed is known, which
    the answer says. Deterministic.

    Raises InputError where the log holds too little: no loads for FEWEST_BUCKETS minutes, or
    nothing that shows what a member can do; and as `predict` does.
    """
    demand, present = found.demand, found.present
    if len(demand.buckets) < FEWEST_BUCKETS:
        raise InputError(
            f"group {present.group!r}: its members reported loads for {counted(len(demand.buckets), 'minute')}; {FEWEST_BUCKETS} are needed. "
            "Members of equipoise report them; consumers do not"
        )
    load = draw_load(demand, member_records_per_s)
    tasks = sorted({*load.work, *present.owners})
    now = len(present.members)
    needs = load.needs(tasks, target_lag_s)
    low, high = (count_at(needs, share) for share in (0.025, 0.975))
    middle = min(count_at(needs, MOST), len(tasks))
    rows = sorted({each for each in (1, middle - 2, middle - 1, middle, middle + 1, low, high, now) if 1 <= each <= len(tasks)} | {now})
    unpredicted = ""
    try:
        options = [_option(each, found, load, target_lag_s, asked=None if not costs or each == now else (runs, processes, progress)) for each in rows]
    except UnknownSpeedError as error:
        unpredicted = str(error)
        options = [_option(each, found, load, target_lag_s, asked=None) for each in rows]
    parked = tuple(f"{task}{parked_text(found.state, task)}" for task in parked_tasks(found.state))
    done = [each.members for each in options if each.met >= MOST]
    recommended = None if parked else min(done, default=None)
    there = next((each.there for each in options if each.members == recommended), None) or next((each.there for each in options if each.there), None)
    return Sizing(
        group=present.group,
        now=now,
        tasks=len(tasks),
        target_lag_s=target_lag_s,
        recommended=recommended,
        low=low if recommended is None else min(low, recommended),
        high=high if recommended is None else max(high, recommended),
        per_s=load.per_s,
        basis=load.basis,
        hours=demand.hours,
        trend=demand.trend,
        options=tuple(options),
        hot=load.hot(target_lag_s) if recommended is None else (),
        hold_s=None if there is None else hold_s([there], len(tasks)),
        parked=parked,
        unpredicted=unpredicted,
    )


def hold_s(changes: Sequence[Prediction], tasks: int) -> float:
    """Returns for how long the group has to rest after these changes so that they were worth it."""
    stands_s = sum(each.intervals["unavailable_task_seconds"].median for each in changes) / max(1, tasks)
    return max(WORTH * stands_s, *(each.intervals["rest_s"].high_95 for each in changes))


Asked = tuple[int, int, Callable[[int, int], None] | None]
"""(runs, processes, progress)"""


def _option(members: int, found: Sizable, load: DrawnLoad, target_lag_s: float, *, asked: Asked | None) -> Option:
    there = back = None
    if asked is not None:
        runs, processes, progress = asked
        changes = changes_between(found.state, len(found.present.members), members)
        there, back = predict_in_turn(found.present, found.habits, changes, runs=runs, processes=processes, progress=progress)
    known = () if there is None else there.owners
    owners: Sequence[Mapping[TaskId, str]] = (found.present.owners,) if members == len(found.present.members) else known
    lags = load.lags([shares_of(each, members) for each in owners] or [dealt(load.work, members)])
    ordered = sorted(each.lag_s for each in lags)
    return Option(
        members=members,
        lag_s=PredictedInterval(*(round(quantile(ordered, share), 2) for share in (0.5, 0.25, 0.75, 0.025, 0.975))),
        utilisation=statistics.median(each.utilisation for each in lags),
        mean_utilisation=statistics.median(each.mean_utilisation for each in lags),
        met=sum(each <= target_lag_s for each in ordered) / len(ordered),
        there=there,
        back=back,
    )


def changes_between(state: GroupState, now: int, members: int) -> tuple[PlannedChange, PlannedChange]:
    """Returns the change from `now` to `members`, and back."""
    if members > now:
        return Join(members=members - now), Leave(members=tuple(new_name(number + 1) for number in range(members - now)))
    asked = scale_down(build_problem(state), Keep.parse(str(members))).asked
    return Leave(members=tuple(sorted(each.member for each in asked))), Join(members=len(asked))


def shares_of(owners: Mapping[TaskId, str], members: int) -> list[list[TaskId]]:
    """Returns the tasks of each of so many members."""
    shares: dict[str, list[TaskId]] = {}
    for task, owner in owners.items():
        shares.setdefault(owner, []).append(task)
    return [*shares.values(), *([] for _ in range(members - len(shares)))]
