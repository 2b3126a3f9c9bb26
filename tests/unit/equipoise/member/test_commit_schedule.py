"""When tasks send and commit: the tables, ticks, and what a member has uncommitted. Nothing waits:
times are given.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.member.tasks.commit_schedule import (
    ALONE_S,
    AT_LEAST_ONCE,
    BEHIND_S,
    CHANGES_AT,
    EXACTLY_ONCE,
    FEW_RECORDS,
    GATHER_S,
    LONGEST_S,
    MANY_RECORDS,
    MOST_OF_TRANSACTION,
    MOST_UNSENT,
    OPEN_FACTOR,
    SEND_S,
    CommitInput,
    CommitOrder,
    CommitSchedule,
    CommitState,
    CommitTicks,
    Table,
    TransactionSchedule,
    TransactionState,
    Uncommitted,
    WrongCommitInputError,
)

In, Do, Is = CommitInput, CommitOrder, CommitState
BOTH = pytest.mark.parametrize("table", [AT_LEAST_ONCE, EXACTLY_ONCE], ids=["at_least_once", "exactly_once"])
MOST = 200


@attrs.define
class Load:
    """What a task says of itself."""

    unsent: int = 0
    is_acknowledged: bool = True
    behind: int | None = 0
    most: int = MOST


class Bench:
    """Tasks that commit with the same ticks, as `open_task.TaskCommits` has them do."""

    def __init__(self, *, rest_s: float = 0.1, parts: int = 1, most: int = 100_000) -> None:
        self.now_s = 0.0
        self.tick_s: float | None = None
        self.looks = 0
        self.ticks = CommitTicks(rest_s, self._plan, parts=parts)
        self.of_member = Uncommitted(most)
        self.begun: list[tuple[str, int]] = []
        """Commits: the task, and when it began (ms)."""
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def _plan(self, at_s: float | None) -> None:
        self.tick_s = at_s
        self.looks += 1

    def at(self, after_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now_s + after_s, len(self._later), do))

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            tick_s, later_s = self.tick_s, self._later[0][0] if self._later else None
            due_s = min((each for each in (tick_s, later_s) if each is not None), default=end_s + 1)
            if due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            if tick_s is not None and due_s == tick_s:
                self.tick_s = None
                self.ticks.begin(self.now_s)
            else:
                heapq.heappop(self._later)[2]()
        self.now_s = end_s

    def task(self, name: str, takes_s: float | None = None, *, again: bool = False, table: Table = AT_LEAST_ONCE) -> CommitSchedule:
        """A task whose commits take so long; None: they never end. `again`: it always has more."""

        def came(order: CommitOrder) -> None:
            if order in (Do.BEGIN_NOW, Do.WAKE) and schedule.records and schedule.state is Is.FILLING:
                schedule.tell(In.BEGUN_DUE, self.now_s)
                self.begun.append((name, round(self.now_s * 1_000)))
                if takes_s is not None:
                    self.at(takes_s, end)

        def end() -> None:
            schedule.tell(In.ENDED, self.now_s)
            if again:
                self.want(schedule)

        schedule = CommitSchedule(table, 60.0, Load(), self.ticks, self.of_member, came)
        return schedule

    def want(self, task: CommitSchedule) -> None:
        """The task has a record to commit, and nothing else to do."""
        if not task.records:
            task.processed(1, self.now_s)
        task.tell(In.WAITS, self.now_s)

    def due(self, task: CommitSchedule) -> None:
        task.processed(1, self.now_s)
        assert task.tell(In.ASKED_DUE, self.now_s) is Do.AWAIT_TURN

    def two_that_committed(self) -> tuple[CommitSchedule, CommitSchedule]:
        """Tasks that committed 200 and 100 ms ago."""
        tasks = self.task("older", 0.0), self.task("younger", 0.0)
        for task in tasks:
            self.due(task)
            self.advance(0.1)
        self.begun.clear()
        return tasks


# Ticks


@pytest.mark.parametrize(("is_due", "begins_ms"), [(True, 20), (False, 40)])
def test_commits_wanted_during_a_tick_begin_together_after_it(is_due: bool, begins_ms: int) -> None:
    """One that is not due leaves half of the time free."""
    bench = Bench()
    bench.want(bench.task("first", 0.02))
    bench.advance(0.005)
    for name in ("second", "third"):
        (bench.due if is_due else bench.want)(bench.task(name, 0.02))
    bench.advance(1)
    assert bench.begun == [("first", 0), ("second", begins_ms), ("third", begins_ms)]


@pytest.mark.parametrize(("takes_s", "begins_ms"), [(0.01, 20), (1.0, 1_100)])
def test_ticks_rest_as_long_as_their_commits_took_and_at_most_the_interval(takes_s: float, begins_ms: int) -> None:
    bench = Bench(rest_s=0.1)
    bench.want(bench.task("first", takes_s, again=True))
    bench.advance(begins_ms / 1_000 - 0.001)
    assert len(bench.begun) == 1
    bench.advance(0.002)
    assert bench.begun[1:] == [("first", begins_ms)]


def test_ticks_in_parts_begin_the_commits_of_some_tasks_each() -> None:
    bench = Bench(rest_s=1.0, parts=5)
    for name in "abcdefghij":
        bench.want(bench.task(name, 0.01, again=True))
    bench.advance(5)
    times = sorted({ms for _, ms in bench.begun})
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {210}
    assert all(sum(ms == each for _, ms in bench.begun) == 2 for each in times)
    assert [name for name, _ in bench.begun[10:40]] == [name for name, _ in bench.begun[:10]] * 3, "each in its turn"


def test_ticks_in_parts_leave_half_of_the_interval_between_commits_of_a_task() -> None:
    bench = Bench(rest_s=1.0, parts=5)
    bench.want(bench.task("a", 0.0, again=True))
    bench.advance(1.6)
    bench.want(bench.task("fresh", 0.0))  # has not committed yet, and so waits for no other
    bench.advance(0.3)
    assert bench.begun == [("a", 0), ("a", 500), ("a", 1_000), ("a", 1_500), ("fresh", 1_700)]


def test_tick_in_parts_is_for_the_task_that_has_not_committed_for_the_longest_time() -> None:
    bench = Bench(rest_s=1.0, parts=2)
    older, younger = bench.two_that_committed()
    bench.want(younger)
    bench.want(older)
    bench.advance(0.45)
    assert [name for name, _ in bench.begun] == ["older"]


def test_commits_that_never_end_hold_up_no_other_part() -> None:
    bench = Bench(rest_s=1.0, parts=5)
    for number in range(10):
        bench.want(bench.task(str(number)))
    for number in (2, 4, 6, 7, 8, 9, 10):  # a fifth of those that wait
        bench.advance(LONGEST_S)
        assert len(bench.begun) >= number


def test_turn_that_is_wanted_during_its_own_long_commit_comes_after_it() -> None:
    bench = Bench(rest_s=0.1, parts=2)
    task = bench.task("a")
    bench.want(task)
    bench.advance(0.0)
    bench.want(task)
    bench.advance(2)
    assert len(bench.begun) == 1
    assert bench.looks < 20, "it does not look again and again"
    task.tell(In.ENDED, bench.now_s)
    bench.want(task)
    bench.advance(0.06)
    assert bench.begun == [("a", 0), ("a", 2_050)]


def test_due_commit_waits_for_no_part_and_begins_no_other() -> None:
    bench = Bench(rest_s=1.0, parts=5)
    bench.want(bench.task("first", 0.005))
    bench.advance(0.01)
    bench.want(bench.task("waiting", 0.0))
    bench.due(bench.task("due", 0.0))
    bench.advance(0.21)
    assert bench.begun == [("first", 0), ("due", 10), ("waiting", 210)]


def test_tick_whose_tasks_have_withdrawn_is_planned_again() -> None:
    bench = Bench(rest_s=1.0, parts=5)
    older, younger = bench.two_that_committed()
    bench.want(older)
    bench.want(younger)
    older.woken()
    bench.advance(0.25)
    assert not bench.begun
    bench.advance(0.16)
    assert [name for name, _ in bench.begun] == ["younger"]


def test_task_that_wants_the_next_commit_during_its_own_is_in_the_next_tick() -> None:
    bench = Bench(rest_s=0.0)
    task = bench.task("a", 0.005)
    for _ in range(3):
        bench.due(task)
        bench.advance(0.0)
        other = bench.task("other", 0.01)
        bench.want(other)
        bench.want(task)
        bench.advance(0.005)
        assert bench.begun[-2:] == [("a", bench.begun[-2][1]), ("other", bench.begun[-2][1] + 5)] or bench.begun[-1][0] == "a"
        bench.advance(0.1)
    assert sum(name == "a" for name, _ in bench.begun) == 6


def test_commit_that_takes_long_holds_up_others_for_a_moment() -> None:
    bench = Bench()
    bench.want(bench.task("stuck", 10.0))
    bench.advance(0.01)
    bench.want(bench.task("second", 0.001))
    bench.advance(1)
    bench.want(bench.task("third", 0.001))
    bench.advance(1)
    assert bench.begun == [("stuck", 0), ("second", round(LONGEST_S * 1_000)), ("third", 1_010)]


def test_task_that_wants_no_commit_any_more_holds_up_no_other() -> None:
    bench = Bench()
    bench.want(bench.task("first", 0.02))
    bench.advance(0.005)
    withdrawn = bench.task("withdrawn", 0.0)
    bench.want(withdrawn)
    withdrawn.woken()
    bench.advance(1)
    gone = bench.task("gone", 0.0)
    bench.want(gone)
    gone.tell(In.LEFT, bench.now_s)
    bench.want(bench.task("second", 0.0))
    bench.advance(0.1)
    assert bench.begun == [("first", 0), ("second", 1_005)]


def test_task_that_closes_waits_for_no_other() -> None:
    bench = Bench()
    bench.want(bench.task("stuck"))
    bench.advance(0.01)
    closing = bench.task("closing", 0.0)
    closing.processed(1, bench.now_s)
    closing.come(bench.now_s)
    assert bench.begun == [("stuck", 0), ("closing", 10)]


# The tables


def in_state(table: Table, state: CommitState, **load: object) -> CommitSchedule:
    """A schedule in this state at 0 s, with an interval of 0.5 s. FILLING has one record."""
    schedule = CommitSchedule(table, 0.5, Load(**load), CommitTicks(0.5, lambda at_s: None), Uncommitted(100_000), lambda order: None)  # type: ignore[arg-type]
    schedule.set_due(0.0)
    if state is not Is.IDLE:
        schedule.processed(1, 0.0)
    if state is Is.COMMITTING_OPEN:
        schedule.tell(In.BEGUN, 0.0)
    elif state in (Is.COMMITTING_CLOSING, Is.FAILED, Is.CLOSED):
        schedule.tell(In.BEGUN_DUE, 0.0)
    if state is Is.FAILED:
        schedule.tell(In.FAILED, 0.0)
    elif state is Is.CLOSED:
        schedule.tell(In.LEFT, 0.0)
    assert schedule.state is state
    return schedule


@BOTH
def test_what_cannot_be_in_a_state_is_an_error(table: Table) -> None:
    for state, rules in table.items():
        for heard in set(CommitInput) - rules.keys():
            with pytest.raises(WrongCommitInputError, match=f"{heard.name} cannot be in {state.name}"):
                in_state(table, state).tell(heard, 1.0)


@BOTH
def test_every_rule_of_a_table_can_be_carried_out_and_leads_to_one_of_its_states(table: Table) -> None:
    for state, rules in table.items():
        for heard in rules:
            schedule = in_state(table, state)
            assert isinstance(schedule.tell(heard, 1.0), CommitOrder)
            assert schedule.state in table


def test_no_commit_is_open_with_at_least_once() -> None:
    assert AT_LEAST_ONCE.keys() == EXACTLY_ONCE.keys() - {Is.COMMITTING_OPEN}


@BOTH
def test_commit_is_due_by_number_by_time_or_when_its_turn_has_come(table: Table) -> None:
    schedule = in_state(table, Is.FILLING)
    assert schedule.processed(MOST - 2, 0.1) is Do.NOTHING
    assert schedule.tell(In.BATCH_OVER, 0.05) is Do.NOTHING
    assert schedule.processed(1, 0.1) is Do.COMMIT
    assert schedule.tell(In.BATCH_OVER, 0.5) is Do.COMMIT
    turn = in_state(table, Is.FILLING)
    turn.has_turn = True
    assert turn.tell(In.BATCH_OVER, 0.05) is Do.COMMIT


@BOTH
def test_commit_is_due_later_where_the_task_is_far_behind(table: Table) -> None:
    schedule = in_state(table, Is.FILLING, behind=MOST)
    assert schedule.tell(In.BATCH_OVER, 0.05) is Do.NOTHING
    assert (schedule.commit_by_s, schedule.send_by_s) == (BEHIND_S, SEND_S)


@BOTH
def test_interval_counts_from_the_end_of_a_commit_and_from_the_end_of_a_rest(table: Table) -> None:
    schedule = in_state(table, Is.COMMITTING_CLOSING)
    schedule.tell(In.ENDED, 7.0)
    assert schedule.commit_by_s == 7.5
    schedule.tell(In.LOOKED, 7.4)
    assert schedule.commit_by_s == 7.5
    schedule.tell(In.LOOKED, 9.0)
    assert schedule.commit_by_s == 9.5
    schedule.processed(1, 9.0)
    schedule.tell(In.LOOKED, 10.0)
    assert schedule.commit_by_s == 9.5


@BOTH
def test_task_with_many_records_to_come_commits_when_it_is_due(table: Table) -> None:
    schedule = in_state(table, Is.FILLING, behind=MANY_RECORDS, unsent=1)
    assert schedule.tell(In.NOTHING_TO_READ, 0.1) is not Do.NOTHING, "it has few"
    schedule.processed(FEW_RECORDS, 0.1)
    assert schedule.tell(In.NOTHING_TO_READ, 0.1) is Do.NOTHING
    schedule.tell(In.WAITS, 0.1)
    assert schedule.wait_s(0.1) == schedule.commit_by_s - 0.1
    schedule.tell(In.BEGUN_DUE, 0.2)
    assert schedule.wait_s(0.2) is None, "its end wakes the task"


@BOTH
def test_task_is_woken_at_the_end_of_a_commit_only_if_there_is_more(table: Table) -> None:
    assert in_state(table, Is.COMMITTING_CLOSING).tell(In.ENDED, 1.0) is Do.NOTHING
    more = in_state(table, Is.COMMITTING_CLOSING)
    more.processed(1, 0.5)
    assert (more.tell(In.ENDED, 1.0), more.state) == (Do.WAKE, Is.FILLING)
    assert in_state(table, Is.COMMITTING_CLOSING).tell(In.FAILED, 1.0) is Do.WAKE, "to raise it"


@BOTH
def test_failed_commit_is_heard_before_anything_else_is_begun(table: Table) -> None:
    schedule = in_state(table, Is.FAILED)
    schedule.processed(1, 1.0)
    for heard in (In.BATCH_OVER, In.NOTHING_TO_READ, In.ASKED_DUE):
        assert schedule.tell(heard, 100.0) is Do.AWAIT_END


@BOTH
def test_due_commit_waits_for_the_former_one_and_for_its_turn(table: Table) -> None:
    schedule = in_state(table, Is.COMMITTING_CLOSING)
    schedule.processed(2, 0.1)
    assert schedule.tell(In.ASKED_DUE, 0.1) is Do.AWAIT_END
    schedule.tell(In.ENDED, 0.2)
    assert schedule.tell(In.ASKED_DUE, 0.2) is Do.AWAIT_TURN
    schedule.come(0.3)
    assert schedule.tell(In.ASKED_DUE, 0.3) is Do.TAKE_OUTPUTS
    assert schedule.tell(In.READY, 0.3) is Do.BEGIN
    schedule.tell(In.BEGUN_DUE, 0.3)
    assert (schedule.records, schedule.in_commit, schedule.has_turn) == (0, 2, False)


@pytest.mark.parametrize(
    ("unsent", "is_acknowledged", "now_s", "order"),
    [
        (1, True, 0.05, Do.NOTHING),
        (1, True, SEND_S, Do.SEND),
        (1, False, SEND_S, Do.NOTHING),
        (MOST_UNSENT, False, 0.05, Do.SEND),
        (0, True, SEND_S, Do.NOTHING),
        (1, True, 0.5, Do.COMMIT),
    ],
)
def test_outputs_are_sent_between_commits_with_at_least_once(unsent: int, is_acknowledged: bool, now_s: float, order: CommitOrder) -> None:
    """Few wait for those that are on their way. With exactly_once a transaction takes them."""
    load = {"unsent": unsent, "is_acknowledged": is_acknowledged}
    assert in_state(AT_LEAST_ONCE, Is.FILLING, **load).tell(In.BATCH_OVER, now_s) is order
    assert in_state(EXACTLY_ONCE, Is.FILLING, **load).tell(In.BATCH_OVER, now_s) is (Do.COMMIT if order is Do.COMMIT else Do.NOTHING)


def test_outputs_of_a_task_that_waits_are_sent_without_waking_it_and_none_during_a_commit() -> None:
    schedule = in_state(AT_LEAST_ONCE, Is.FILLING, unsent=1)
    assert schedule.tell(In.ACKNOWLEDGED, 0.01) is Do.WAKE
    assert schedule.tell(In.NOTHING_TO_READ, 0.01) is Do.SEND
    schedule.tell(In.WAITS, 0.01)
    assert schedule.tell(In.ACKNOWLEDGED, 0.01) is Do.SEND_NOW
    assert schedule.tell(In.TURN, 0.02) is Do.BEGIN_NOW
    schedule.tell(In.BEGUN_DUE, 0.02)
    schedule.processed(1, 0.02)
    for heard in (In.ACKNOWLEDGED, In.BATCH_OVER, In.NOTHING_TO_READ):
        assert schedule.tell(heard, 10.0) is Do.NOTHING


def test_task_adds_to_an_open_commit_until_its_transaction_closes() -> None:
    schedule = in_state(EXACTLY_ONCE, Is.FILLING)
    assert schedule.tell(In.NOTHING_TO_READ, 0.0) is Do.COMMIT_EARLY
    assert schedule.tell(In.ASKED, 0.0) is Do.TAKE_OUTPUTS, "without a turn"
    assert schedule.tell(In.READY, 0.0) is Do.BEGIN
    schedule.tell(In.BEGUN, 0.0)
    schedule.processed(1, 0.01)
    assert schedule.tell(In.NOTHING_TO_READ, 0.01) is Do.COMMIT_EARLY
    assert [schedule.tell(each, 0.01) for each in (In.ASKED, In.READY)] == [Do.TAKE_OUTPUTS, Do.EXTEND]
    schedule.tell(In.ADDED, 0.01)
    schedule.processed(MOST - 2, 0.02)
    assert schedule.tell(In.NOTHING_TO_READ, 0.02) is Do.COMMIT, "with those that are in it, as many as one takes"
    schedule.tell(In.TRANSACTION_CLOSES, 0.03)
    assert schedule.tell(In.NOTHING_TO_READ, 0.03) is Do.NOTHING if schedule.expects_more else Do.ANNOUNCE
    assert schedule.tell(In.READY, 0.03) is Do.AWAIT_END, "it has closed while the outputs were taken"
    schedule.tell(In.ENDED, 0.04)
    assert (schedule.in_commit, schedule.records, schedule.tell(In.READY, 0.04)) == (2, MOST - 2, Do.BEGIN)


def test_closing_task_hurries_an_open_commit_to_which_it_has_nothing_to_add() -> None:
    schedule = in_state(EXACTLY_ONCE, Is.COMMITTING_OPEN)
    assert schedule.tell(In.ASKED_DUE, 0.0) is Do.HURRY
    schedule.tell(In.ADDED_DUE, 0.0)
    assert schedule.state is Is.COMMITTING_CLOSING


# Transactions


@attrs.frozen
class Part:
    task: str
    records: int = 1
    is_due: bool = False


OPENING = (TransactionState.BEGINNING, TransactionState.OPEN)
WRITTEN = (*OPENING, TransactionState.WRITING)
CLOSED = (*WRITTEN, TransactionState.CLOSING)


def transaction(*states: TransactionState, most_open_s: float = 0.1, took_s: float = 0.0, now_s: float = 0.0) -> TransactionSchedule:
    """One that went through these states at `now_s`, after one that took so long to close."""
    schedule = TransactionSchedule(most_open_s)
    for state in CLOSED:
        schedule.go_to(state, now_s - took_s)
    schedule.committed(now_s)
    for state in states:
        schedule.go_to(state, now_s)
    return schedule


@pytest.mark.parametrize(
    ("took_s", "is_due", "changes_s", "closes_s"),
    [
        (0.001, False, GATHER_S + CHANGES_AT * (OPEN_FACTOR * 0.001 - GATHER_S), OPEN_FACTOR * 0.001),
        (1.0, False, GATHER_S + CHANGES_AT * (0.1 - GATHER_S), 0.1),
        (1.0, True, GATHER_S, GATHER_S),
        (0.0, False, GATHER_S, GATHER_S),
    ],
)
def test_transaction_is_open_by_the_time_that_the_former_one_took_unless_a_part_is_due(
    took_s: float, is_due: bool, changes_s: float, closes_s: float
) -> None:
    parts = [Part("a"), Part("b", is_due=is_due)]
    schedule = transaction(*OPENING, took_s=took_s)
    assert schedule.is_open
    assert schedule.until_s(parts) == pytest.approx(changes_s)
    schedule.go_to(TransactionState.WRITING, changes_s)
    assert schedule.is_open
    assert schedule.until_s(parts) == pytest.approx(closes_s)
    schedule.go_to(TransactionState.CLOSING, closes_s)
    assert not schedule.is_open


@pytest.mark.parametrize("state", TransactionState)
def test_transaction_that_cannot_be_is_an_error(state: TransactionState) -> None:
    for states, allowed in (((), {TransactionState.BEGINNING}), (CLOSED, {TransactionState.NONE})):
        if state not in allowed:
            with pytest.raises(WrongCommitInputError, match=f"to {state.name}"):
                transaction(*states).go_to(state, 0.0)


@pytest.mark.parametrize(("most", "together"), [(50_000, [3]), (18, [3]), (17, [2, 1]), (6, [1, 1, 1]), (5, [1, 1, 1])])
def test_commits_with_many_records_are_made_one_after_the_other(most: int, together: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.member.tasks.commit_schedule.MOST_OF_TRANSACTION", most)
    waiting, taken = [Part(name, 6) for name in "abc"], []
    while waiting:
        found = transaction().taken(waiting, [], 0.0)
        taken.append(len(found))
        waiting = [each for each in waiting if each not in found]
    assert taken == together


def test_transaction_takes_one_commit_of_a_task_and_those_that_have_waited_longest() -> None:
    schedule = transaction(*OPENING)
    assert schedule.taken([Part("a"), Part("b"), Part("a", 2)], [], 0.0) == [Part("a"), Part("b")]
    assert schedule.taken([Part("a"), Part("b")], [Part("a")], 0.0) == [Part("b")]
    assert schedule.taken([Part("b", 2), Part("c")], [Part("a", MOST_OF_TRANSACTION - 1)], 0.0) == [], "those behind it wait, too"


def test_task_whose_commit_has_failed_has_transactions_of_its_own_for_a_while() -> None:
    schedule = transaction(*OPENING)
    schedule.failed(1.0, ["a"])
    waiting = [Part("b"), Part("a"), Part("c")]
    assert schedule.taken(waiting, [], 1.0) == [Part("b"), Part("c")]
    assert schedule.taken(waiting[1:], [], 1.0) == [Part("a")]
    assert schedule.taken(waiting, [Part("a")], 1.0) == []
    assert schedule.taken(waiting, [], 1.0 + ALONE_S) == waiting


# What a member has uncommitted


@given(tasks=st.integers(1, 12), most=st.integers(12, 600), under_way=st.integers(0, 3), turns=st.integers(1, 400))
def test_tasks_that_progress_side_by_side_stay_below_the_limit_and_all_progress(tasks: int, most: int, under_way: int, turns: int) -> None:
    at_once = 5
    uncommitted, counts = Uncommitted(most), dict.fromkeys(range(tasks), 0)
    commits: deque[tuple[int, int]] = deque()
    for _ in range(turns):
        for task in counts:
            counts[task] += at_once
            uncommitted.note(task, counts[task])
            if uncommitted.is_next(task):
                commits.append((task, counts[task]))
                uncommitted.begin(task)
                counts[task] = 0
            while len(commits) > under_way:
                uncommitted.end(commits.popleft()[0])
            while uncommitted.is_held_back:
                uncommitted.end(commits.popleft()[0])
            assert sum(counts.values()) + sum(records for _, records in commits) < most + at_once


def test_commits_follow_one_another_with_the_size_of_commits_that_come_together() -> None:
    tasks, most, at_once = 20, 3_000, 5
    uncommitted, counts = Uncommitted(most), dict.fromkeys(range(tasks), 0)
    sizes, peaks = [], []
    for _ in range(200):
        for task in counts:
            counts[task] += at_once
            uncommitted.note(task, counts[task])
            if uncommitted.is_next(task):
                sizes.append(counts[task])
                uncommitted.begin(task)
                uncommitted.end(task)
                counts[task] = 0
            peaks.append(sum(counts.values()))
    settled = sizes[len(sizes) // 2 :]
    assert min(settled) >= 0.9 * uncommitted.most_of_task(tasks)
    assert max(peaks) <= most * 2 // 3 + tasks * at_once


def test_full_member_without_a_commit_under_way_has_any_task_commit() -> None:
    uncommitted = Uncommitted(30)
    uncommitted.note("in a slow handler", 20)
    uncommitted.note("other", 9)
    assert not uncommitted.is_next("other")
    uncommitted.note("other", 10)
    assert uncommitted.is_next("other")
    assert not uncommitted.is_held_back


def test_task_whose_commit_hangs_is_not_the_next_and_others_hear_its_end() -> None:
    uncommitted, heard = Uncommitted(30), list[str]()
    uncommitted.note("hangs", 10)
    uncommitted.begin("hangs")
    uncommitted.note("hangs", 15)
    uncommitted.note("other", 5)
    assert uncommitted.is_held_back
    assert not uncommitted.is_next("hangs")
    assert uncommitted.is_next("other"), "it has the most of those that can commit"
    uncommitted.held_back.append(lambda: heard.append("over"))
    uncommitted.end("hangs")
    uncommitted.end("hangs")
    assert heard == ["over"]
    assert not uncommitted.is_full


def test_task_that_has_as_many_as_the_member_may_have_is_held_back() -> None:
    bench = Bench(most=30)
    first, second = bench.task("first"), bench.task("second")
    assert first.processed(20, 0.0) is Do.COMMIT, "two thirds"
    first.tell(In.BEGUN_DUE, 0.0)
    assert second.processed(10, 0.0) is Do.HOLD_BACK
    first.tell(In.ENDED, 0.0)
    assert second.processed(1, 0.0) is Do.NOTHING


# What each rule leaves behind


def test_schedule_begins_with_nothing() -> None:
    schedule = Bench().task("a")
    assert (schedule.records, schedule.in_commit, schedule.commit_by_s, schedule.send_by_s) == (0, 0, 0.0, 0.0)
    assert (schedule.has_turn, schedule.is_waiting, schedule.expects_more) == (False, False, False)


def test_waiting_ends_when_the_task_is_woken() -> None:
    schedule = Bench().task("a")
    assert schedule.tell(In.WAITS, 0.0) is Do.NOTHING
    assert schedule.is_waiting is True
    schedule.woken()
    assert schedule.is_waiting is False


def test_times_by_which_outputs_and_commits_are_due() -> None:
    schedule = Bench().task("a")
    schedule.sent(5.0)
    assert schedule.send_by_s == 5.0 + SEND_S
    schedule.commit_by_s = 7.0
    schedule.tell(In.LOOKED, 6.9)
    assert schedule.commit_by_s == 7.0
    schedule.tell(In.LOOKED, 7.0)
    assert (schedule.commit_by_s, schedule.send_by_s) == (67.0, 7.0 + SEND_S)
    schedule.expects_more = True
    assert (schedule.wait_s(60.0), schedule.wait_s(80.0)) == (7.0, 0.0)


def test_task_of_which_nobody_knows_how_far_behind_it_is_has_the_usual_interval() -> None:
    schedule = CommitSchedule(AT_LEAST_ONCE, 0.01, Load(behind=None, most=1), Bench().ticks, Uncommitted(9), lambda order: None)
    schedule.set_due(0.0)
    assert schedule.commit_by_s == 0.01 < BEHIND_S


def test_turn_with_nothing_to_commit_is_given_back() -> None:
    bench = Bench(most=1)
    schedule = bench.task("a")
    bench.ticks.want(schedule, is_due=True)
    bench.advance(0.0)
    assert schedule.has_turn is True
    bench.of_member.note(schedule, 7)
    bench.ticks.want(schedule, is_due=False)
    bench.now_s = 3.0
    assert schedule.tell(In.ASKED_DUE, 3.0) is Do.NOTHING
    assert (schedule.has_turn, schedule.over_s, schedule.commit_by_s) == (False, 3.0, 63.0)
    assert (bench.of_member.is_full, bench.tick_s) == (False, None)


@pytest.mark.parametrize(("records", "behind", "expects"), [(FEW_RECORDS, MANY_RECORDS, True), (FEW_RECORDS - 1, MANY_RECORDS, False)])
@BOTH
def test_many_records_are_expected_at_the_limits(table: Table, records: int, behind: int, expects: bool) -> None:
    schedule = Bench().task("a", table=table)
    schedule.processed(1, 0.0)
    schedule.tell(In.BEGUN_DUE, 0.0)
    schedule.records, schedule.task.behind = records, behind  # type: ignore[misc]  # a load of these tests
    assert schedule.tell(In.NOTHING_TO_READ, 0.0) is (Do.ANNOUNCE if table is EXACTLY_ONCE and not expects else Do.NOTHING)
    assert schedule.expects_more is expects
    schedule.records = 0
    assert schedule.tell(In.NOTHING_TO_READ, 0.0) is Do.NOTHING


def test_commit_is_early_until_it_takes_no_more() -> None:
    schedule = Bench().task("a", table=EXACTLY_ONCE)
    schedule.processed(MOST - 1, 0.0)
    assert schedule.tell(In.NOTHING_TO_READ, 0.0) is Do.COMMIT_EARLY
    schedule.processed(1, 0.0)
    assert schedule.tell(In.NOTHING_TO_READ, 0.0) is Do.COMMIT


def test_turn_is_wanted_by_a_task_with_records_and_without_one() -> None:
    for records, has_turn, wanted in ((1, False, True), (0, False, False), (1, True, False)):
        bench = Bench()
        schedule = bench.task("a")
        schedule.processed(1, 0.0)
        schedule.tell(In.BEGUN_DUE, 0.0)
        schedule.records, schedule.has_turn = records, has_turn
        schedule.tell(In.WAITS, 0.0)
        assert (schedule in bench.ticks._waiting) is wanted


def test_open_commit_has_used_its_turn_and_a_due_one_without_more_hurries() -> None:
    schedule = Bench().task("a", table=EXACTLY_ONCE)
    schedule.processed(3, 0.0)
    schedule.has_turn = True
    schedule.tell(In.BEGUN, 0.0)
    assert (schedule.has_turn, schedule.in_commit) == (False, 3)
    schedule.has_turn = True
    assert schedule.tell(In.ASKED_DUE, 1.0) is Do.HURRY
    assert schedule.has_turn is False


def test_task_that_leaves_has_nothing_uncommitted_and_no_turn() -> None:
    bench = Bench(most=4)
    schedule = bench.task("a")
    schedule.processed(4, 0.0)
    schedule.tell(In.BEGUN_DUE, 0.0)
    schedule.processed(1, 0.0)
    schedule.has_turn = True
    assert bench.of_member.is_held_back
    schedule.tell(In.LEFT, 2.0)
    assert (bench.of_member.is_full, schedule.has_turn, schedule.over_s) == (False, False, 2.0)


def test_tick_is_for_all_that_wait_and_is_planned_once() -> None:
    begun: list[CommitOrder] = []
    planned: list[float | None] = []
    ticks = CommitTicks(0.1, planned.append)
    tasks = [CommitSchedule(AT_LEAST_ONCE, 60.0, Load(), ticks, Uncommitted(9), begun.append) for _ in range(3)]
    ticks.want(tasks[0], is_due=False)
    ticks.want(tasks[1], is_due=False)
    assert planned == [0.0], "the tick that is planned is for both"
    ticks.want(tasks[2], is_due=True)
    ticks.begin(0.0)
    assert begun == [Do.WAKE] * 3


def test_task_whose_commit_does_not_end_is_planned_by_its_end() -> None:
    bench = Bench()
    hangs, other = bench.task("hangs"), bench.task("other", 0.0)
    bench.want(hangs)
    bench.advance(0.0)
    bench.want(other)
    bench.advance(1.0)
    assert [name for name, _ in bench.begun] == ["hangs", "other"]
    bench.want(hangs)
    assert bench.tick_s is None


def test_transaction_before_the_first_is_open_for_no_longer_than_others_need() -> None:
    schedule = TransactionSchedule(1.0)
    assert schedule.until_s([]) == 0.0
    for state in (TransactionState.BEGINNING, TransactionState.OPEN):
        schedule.go_to(state, 0.0)
    assert schedule.until_s([]) == GATHER_S


def test_tasks_of_two_failures_have_transactions_of_their_own() -> None:
    schedule = TransactionSchedule(1.0)
    for now_s, task in ((0.0, "a"), (1.0, "b")):
        schedule.go_to(TransactionState.BEGINNING, now_s)
        schedule.failed(now_s, [task])
        assert schedule.state is TransactionState.NONE
    assert schedule.alone_until_s == {"a": ALONE_S, "b": 1.0 + ALONE_S}


def test_share_of_a_task_and_what_is_in_commits_are_whole_numbers() -> None:
    assert (Uncommitted(10).most_of_task(1), Uncommitted(10).most_of_task(5)) == (12, 2)
    nothing = Uncommitted(1)
    nothing.begin("a")
    assert not nothing.is_full
    member = Uncommitted(6)
    member.note("a", 3)
    member.begin("a")
    member.note("a", 2)
    member.begin("a")
    assert not member.is_full, "five are in the commit, and none beside"
    member.end("a")
    member.note("a", 5)
    assert not member.is_full
    member.end("nobody")
    member.note("a", 6)
    assert member.is_full
