"""`follow`: the number of members that an autoscaler should run now.

More members as soon as what arrives now, with its trend, is more than they do; fewer once fewer
would have done for a long time: at least for as long as the change there and back has to be worth
its cost. Nothing while a change is under way. All of it follows from the loads in the log, beside
what was answered last (`LastAnswer`), for pods that have not joined yet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.habits import Habits, HabitsReader
from equipoise.replay.prediction.planned_change import Leave
from equipoise.replay.prediction.predict import Prediction, predict_in_turn
from equipoise.replay.prediction.present import present_of
from equipoise.replay.sizing.demand import Demand, DemandReader
from equipoise.replay.sizing.drawn_load import HANDLERS_ALONE, DrawnLoad, count_at, draw_load
from equipoise.replay.sizing.size import changes_between, hold_s, shares_of
from equipoise.replay.trouble import parked_tasks, parked_text
from equipoise.replay.wording import counted, span_text
from equipoise.statemachine.state import GroupState

DRAWS = 40
RUNS = 5
PRESENT_S = 60
"""What arrived in so long arrives now."""
TREND_S = 600
"""From so long a rise of what arrives is taken further, ..."""
HORIZON_S = 300
"""... for so long."""
STEADY = 0.85
"""Part of the variance of what arrived that a straight rise explains at least: a step is none."""
MOST_RISE = 1.5
RECOVER_S = 300
"""What waits now is to be worked off within so long."""
MOST_OF_MEMBER = 0.5
"""What waits of one task takes so much of one member at most: no number of members does it sooner.
"""
SURE_OF_MORE = 0.8
"""Part of the draws in which a larger number of members does. More are asked for when the present
number does in fewer than half of them.
"""
SURE_OF_FEWER = 0.95
PATIENCE_MS = 600_000
"""So long members that were asked for may take to join, or to leave."""


@attrs.frozen(kw_only=True)
class Followable:
    """The input of `follow`: the group's state, and what its log shows of loads and habits."""

    state: GroupState
    habits: Habits
    demand: Demand


@attrs.frozen(kw_only=True)
class Following:
    """The answer. `now`: members that stay. `line`: why, as one sentence. `holds`: another number
    is better, or may be, and is not asked for yet. `change`: what it costs to get there and back;
    empty: none is considered. `hot`: tasks that get more than one member does.
    """

    group: str
    members: int
    now: int
    target_lag_s: float
    line: str
    holds: bool = False
    change: tuple[Prediction, ...] = ()
    leave: tuple[str, ...] = ()
    """The members that cost least to remove, where fewer are to run: as `scale_down` picks them."""
    hot: tuple[TaskId, ...] = ()
    basis: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the answer, JSON-ready."""
        return {
            "group": self.group,
            "members": self.members,
            "now": self.now,
            "target_lag_s": self.target_lag_s,
            "line": self.line,
            "holds": self.holds,
            "change": [each.as_json() for each in self.change],
            "leave": list(self.leave),
            "hot": [str(task) for task in self.hot],
            "basis": self.basis,
        }


def follow(found: Followable, policy: FollowingPolicy, last: LastAnswer | None = None) -> Following:
    """Returns the number of members to run now. Raises InputError where the group is not led by
    equipoise or has no members, and where the log shows no loads, or not what a member can do.
    Deterministic.
    """
    state = found.state
    now_ms = state.last_append_ms or 0
    now = sum(not member.leaving for member in state.members.values())
    if not state.members:
        least = _within(1, policy)
        return Following(group=state.group, members=least, now=0, target_lag_s=policy.lag_s, line="no member runs")
    staying = Following(group=state.group, members=_within(now, policy), now=now, target_lag_s=policy.lag_s, line="", holds=True)
    if parked := parked_tasks(state):
        return attrs.evolve(staying, line=f"a task has failed, and no number of members is right: {parked[0]}{parked_text(state, parked[0])}")
    expected = last is not None and last.members != now and now_ms - last.at_ms < PATIENCE_MS
    asked = last.members if last is not None and expected else now
    moving = under_way(state)
    if moving or asked > now:
        what = moving or f"{counted(asked - now, 'member')} more {'is' if asked - now == 1 else 'are'} expected to join"
        return attrs.evolve(staying, members=_within(asked, policy), line=f"{what}: nothing else is changed until that is over")
    return _Question(found, policy, staying, now_ms).answer()


def under_way(state: GroupState) -> str:
    """Returns which change of the group is under way; "": none is."""
    leaving = sorted(name for name, member in state.members.items() if member.leaving)
    if leaving:
        return f"{', '.join(leaving)} {'leaves' if len(leaving) == 1 else 'leave'}"
    if state.restarts:
        return f"{', '.join(sorted(state.restarts))} {'restarts' if len(state.restarts) == 1 else 'restart'}"
    moving = len(state.in_flight) + state.waiting
    if moving:
        return f"{counted(moving, 'task')} {'moves' if moving == 1 else 'move'}"
    copied = sum(len(member.warmup) + len(member.revoking) for member in state.members.values())
    return f"{counted(copied, 'task')} {'is' if copied == 1 else 'are'} being handed over" if copied else ""


def _within(members: int, policy: FollowingPolicy) -> int:
    return max(policy.least, min(members, policy.most), 1)


class _Question:
    """One question, of a group in which nothing is under way."""

    def __init__(self, found: Followable, policy: FollowingPolicy, staying: Following, now_ms: int) -> None:
        self._found, self._policy, self._now_ms = found, policy, now_ms
        self._present = present_of(found.state)
        self._now = staying.now
        demand = found.demand
        if not demand.between(now_ms - PRESENT_S * 1_000 - demand.bucket_ms, now_ms).buckets:
            raise InputError(f"group {self._present.group!r}: no loads were reported lately; members of equipoise report them, consumers do not")
        drawn = draw_load(demand, policy.member_records_per_s, DRAWS)
        self._draws = drawn
        self._hot = attrs.evolve(drawn, work=self._present_work(waiting=False)).hot(policy.lag_s)
        self._staying = attrs.evolve(staying, hot=self._hot, basis=drawn.basis)
        self._tasks = sorted(task for task in {*demand.arrivals, *self._present.owners})

    def answer(self) -> Following:
        policy, now = self._policy, self._now
        load = self._load(self._present_work())
        needs = load.needs(self._tasks, policy.lag_s)
        lags = load.lags([shares_of(self._present.owners, now)])
        enough = statistics.fmean(each.lag_s <= policy.lag_s for each in lags) >= 0.5
        more = _within(min(count_at(needs, SURE_OF_MORE), len(self._tasks)), policy)
        if not enough and more > now:
            return self._out(more, load)
        if now < policy.least:
            return self._said(policy.least, f"at least {counted(policy.least, 'member')} are wanted")
        if now > policy.most:
            return self._said(policy.most, f"at most {counted(policy.most, 'member')} are wanted")
        return self._in(count_at(needs, SURE_OF_FEWER))

    def _out(self, members: int, load: DrawnLoad) -> Following:
        """More members, where what waits less is worth how long tasks stand still for it."""
        change = self._cost(members)
        shares = [shares_of(each, members) for each in change[0].owners] if change else []
        lag_now = statistics.median(each.lag_s for each in load.lags([shares_of(self._present.owners, self._now)]))
        lag_then = statistics.median(each.lag_s for each in load.lags(shares)) if shares else 0.0
        stands_s = change[0].intervals["unavailable_task_seconds"].median / len(self._tasks) if change else 0.0
        if lag_now - lag_then <= stands_s:
            gain = f"the lag would be {lag_now - lag_then:.0f} s shorter, and each task stands still for {stands_s:.1f} s"
            return attrs.evolve(self._staying, change=change, line=f"no change to {counted(members, 'member')}: {gain}{self._hot_text()}")
        line = f"{counted(self._now, 'member')} would be {lag_now:.0f} s behind within {HORIZON_S} s{self._hot_text()}"
        return attrs.evolve(self._said(members, line), change=change)

    def _in(self, least: int) -> Following:
        """Fewer members, once fewer would have been enough for as long as the change has to be
        worth it. `least`: so many would do now.
        """
        if least >= self._now:
            line = f"{counted(self._now, 'member')} {'is' if self._now == 1 else 'are'} enough and not too many{self._hot_text()}"
            return attrs.evolve(self._said(self._staying.members, line))
        low_for_s = self._policy.low_for_s
        fewer, why = self._fewer(low_for_s, least)
        if why:
            return attrs.evolve(self._staying, line=why)
        change = self._cost(fewer)
        worth_s = min(LONGEST_S, round(hold_s(change, len(self._tasks)))) if change else 0
        if worth_s > low_for_s:
            fewer, why = self._fewer(worth_s, least)
            if why:
                return attrs.evolve(self._staying, change=change, line=why)
        line = f"{counted(fewer, 'member')} would have been enough for {span_text(max(low_for_s, worth_s) * 1_000)}{self._hot_text()}"
        (leaves, _) = changes_between(self._found.state, self._now, fewer)
        assert isinstance(leaves, Leave), "fewer members are to run"
        return attrs.evolve(self._said(fewer, line), change=change, leave=leaves.members)

    def _fewer(self, for_s: int, least: int) -> tuple[int, str]:
        """Returns how many would have been enough for so long; and why nobody leaves, "": fewer
        would have been.
        """
        needs, text = self._lately(for_s), span_text(for_s * 1_000)
        if needs is None:
            return self._now, f"{counted(least, 'member')} would do now; that is believed when loads were reported for {text}"
        fewer = _within(max(least, needs), self._policy)
        if self._draws.basis == HANDLERS_ALONE:
            fewer = max(fewer, self._now - 1)  # what a member can do shows when it is busy
        return fewer, "" if fewer < self._now else f"{counted(least, 'member')} would do now, and not in all of the last {text}{self._hot_text()}"

    def _lately(self, for_s: int) -> int | None:
        """Returns how many members would have been enough for so long; None: the log does not say."""
        whole = self._found.demand.between(self._now_ms - for_s * 1_000, self._now_ms)
        if len(whole.buckets) < 0.9 * for_s / whole.bucket_s - 2:
            return None
        work = {task: [each * whole.weights[task] for each in series] for task, series in whole.arrivals.items()}
        return count_at(self._load(work).needs(self._tasks, self._policy.lag_s), SURE_OF_FEWER)

    def _load(self, work: dict[TaskId, list[float]]) -> DrawnLoad:
        return attrs.evolve(self._draws, work=work, put_up_with=frozenset(self._hot))

    def _present_work(self, *, waiting: bool = True) -> dict[TaskId, list[float]]:
        """Returns the work of the time to come: as in the last minute, more by its trend, and
        what is `waiting` now.
        """
        demand, buckets = self._found.demand, round(HORIZON_S * 1_000 / self._found.demand.bucket_ms)
        lately = demand.between(self._now_ms - PRESENT_S * 1_000 - demand.bucket_ms, self._now_ms)
        rise = self._rise()
        waits = self._found.state.behind if waiting else {}
        most = self._draws.per_s * demand.bucket_s * MOST_OF_MEMBER
        work = {}
        for task, series in lately.arrivals.items():
            comes = demand.weights[task] * rise * sum(series) / len(series)
            waited = demand.weights[task] * waits.get(task, 0) * demand.bucket_s / RECOVER_S
            work[task] = [max(comes, min(comes + waited, most))] * buckets
        return work

    def _rise(self) -> float:
        """Returns by which factor more arrives at the end of HORIZON_S, as far as it rises
        steadily.
        """
        totals = self._found.demand.between(self._now_ms - TREND_S * 1_000, self._now_ms).totals()
        if len(totals) < TREND_S * 500 / self._found.demand.bucket_ms or len(set(totals.values())) < 2:
            return 1.0
        places, values = list(map(float, totals)), list(totals.values())
        if statistics.correlation(places, values) < math.sqrt(STEADY):
            return 1.0
        slope, base = statistics.linear_regression(places, values)
        last = base + slope * places[-1]
        return min(MOST_RISE, max(1.0, 1 + slope * HORIZON_S * 1_000 / self._found.demand.bucket_ms / last)) if last > 0 else 1.0

    def _cost(self, members: int) -> tuple[Prediction, ...]:
        """Returns what it costs to get there and back; empty: nothing shows how fast members
        restore.
        """
        changes = changes_between(self._found.state, self._now, members)
        habits = self._found.habits.or_measured(self._present.restore_records_per_s)
        try:
            return tuple(predict_in_turn(self._present, habits, changes, runs=RUNS))
        except InputError:
            return ()

    def _said(self, members: int, line: str) -> Following:
        return attrs.evolve(self._staying, members=members, line=line, holds=False)

    def _hot_text(self) -> str:
        if not self._hot:
            return ""
        named: Sequence[str] = [str(task) for task in self._hot[:3]]
        return f"; {', '.join(named)} {'gets' if len(self._hot) == 1 else 'get'} more than one member does, which more members cannot help"


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


# Reads what is needed of a group's log, for as long as it is followed: what is older than some
# hours is forgotten.

KEPT_MS = LONGEST_S * 1_000 + 600_000
"""So much is known at least, and twice as much at most."""


@attrs.define
class _Readers:
    """Readers that have begun at `since_ms`."""

    habits: HabitsReader
    demand: DemandReader
    since_ms: int


class FollowingReader:
    """Takes the records of one group in stored order. `state`: as of `HabitsReader`; None: the log
    is read from its beginning.
    """

    def __init__(self, group: str, state: GroupState | None = None) -> None:
        self._group, self._state = group, state
        self._older: _Readers | None = None
        self._newer: _Readers | None = None

    def take(self, record: FactRecord | DecisionRecord) -> None:
        """Takes a record. Raises UnknownKindError for a kind that this build does not know."""
        if isinstance(record, FactRecord):
            self._turn(record.append_ms)
        for each in (self._older, self._newer):
            if each is not None:
                each.habits.take(record)
                each.demand.take(record)

    def _turn(self, now_ms: int) -> None:
        if self._newer is None or now_ms - self._newer.since_ms >= KEPT_MS:
            self._older, self._newer = self._newer, self._begun(now_ms)

    def _begun(self, since_ms: int) -> _Readers:
        newer = self._newer
        habits = HabitsReader(group=self._group, state=self._state) if newer is None else newer.habits.afresh()
        return _Readers(habits, DemandReader(group=self._group, bucket_ms=BUCKET_MS), since_ms)

    def read(self) -> tuple[Habits, Demand]:
        """Returns what the group does, and its loads."""
        readers = self._older or self._newer or self._begun(0)
        return readers.habits.habits(), readers.demand.demand()
