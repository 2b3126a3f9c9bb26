"""Windows and joins against a model in memory: late and unordered records, records that fail,
commits, crashes and hand-overs at any step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import JsonSerde, MemoryStore, Record, State, StringSerde, TaskContext, TaskId, streams
from equipoise.events.errors import FieldError, InputError
from equipoise.streams import (
    Aggregate,
    FixedWindows,
    StreamJoin,
    StreamTable,
    TableJoin,
    Timers,
    advance,
    aggregate,
    count,
    hopping,
    sessions,
    sliding,
    stream_time_ms,
    tumbling,
)
from equipoise.streams.windows import AnyWindows
from equipoise.testing import TaskDriver

KEYS = "ab"
TIMES = st.integers(0, 60) | st.integers(0, 15) | st.sampled_from([0, 3, 5, 7, 10, 13, 15, 20, 23, 25, 30])
RECORDS = st.lists(st.tuples(st.sampled_from(KEYS), TIMES, st.integers(1, 9)), min_size=3, max_size=40)
"""Key, time and value of records. The times are in no order."""
STEPS = st.lists(st.sampled_from(["go on", "commit", "fail", "move", "crash"]), min_size=1, max_size=9)
GRACES = st.sampled_from([0, 5, 100])
MOST = st.sampled_from([1, 2, 1_000])
"""How many windows close with one record."""
LISTED: Aggregate[int, list[int], list[int]] = aggregate(list, lambda kept, value: [*kept, value], lambda one, other: [*one, *other])


class Task:
    """The state of a task. After each record comes one of `steps`: nothing, a commit, a record that
    fails when it has changed everything, a hand-over (a commit, and another process opens the
    store) or a crash: another process opens it without what was not committed, and handles the
    records since the last commit again. What they return then is what they have returned before.
    """

    def __init__(self, steps: list[str]) -> None:
        self.store = MemoryStore()
        self.steps, self.number = steps, 0
        self.uncommitted: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
        self.open()

    def open(self) -> None:
        self.state = State(self.store, StringSerde(), JsonSerde())
        self.context = TaskContext(TaskId(0, 0), 1, {"state": self.state})

    def handle(self, work: Callable[..., Any], *given: Any) -> Any:
        step = self.steps[self.number % len(self.steps)]
        self.number += 1
        self.context.savepoint()
        if step == "fail":
            work(self.context, *given)
            self.context.rollback()
            self.context.savepoint()
        result = work(self.context, *given)
        self.uncommitted.append((work, given, result))
        if step in ("commit", "move"):
            self.store.apply(self.state.begin_commit(), offset=self.store.offset + 1)
            self.uncommitted.clear()
        if step in ("move", "crash"):
            self.open()
        for done, its, before in self.uncommitted if step == "crash" else ():
            self.context.savepoint()
            assert done(self.context, *its) == before
        return result


def results_of(
    windows: AnyWindows[int, Any, Any], records: Iterable[tuple[str, int, int]], steps: list[str], most: int = 1_000
) -> tuple[list[Any], Task]:
    """What `add` returned in all, and the task at the end: stream time is far behind everything."""
    task, found = Task(steps), []
    windows._most = min(windows._most, most)
    if isinstance(windows, FixedWindows):
        windows._most_dropped = most
    for key, at_ms, value in records:
        found += task.handle(windows.add, key, value, at_ms)

    def end(context: TaskContext) -> list[Any]:
        advance(context, 10_000)
        return windows.close(context)

    return found + task.handle(end), task


def accepted(records: Iterable[tuple[str, int, int]], is_late: Callable[[int, int], bool]) -> list[tuple[str, int, int]]:
    now_ms, found = 0, []
    for key, at_ms, value in records:
        now_ms = max(now_ms, at_ms)
        if not is_late(at_ms, now_ms):
            found.append((key, at_ms, value))
    return found


@given(RECORDS, STEPS, GRACES, st.sampled_from([(10, 10), (10, 5), (10, 3), (7, 7)]), MOST)
def test_fixed_windows_have_what_came_in_time(
    records: list[tuple[str, int, int]], steps: list[str], grace: int, shape: tuple[int, int], most: int
) -> None:
    size, every = shape
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    now_ms, late = 0, 0
    for key, at_ms, value in records:
        now_ms = max(now_ms, at_ms)
        its = [start for start in range(0, 100, every) if start <= at_ms < start + size]
        for start in its:
            if start + size + grace > now_ms:
                expected[key, start].append(value)
        late += all(start + size + grace <= now_ms for start in its)
    windows = hopping("w", LISTED, size_ms=size, advance_ms=every, grace_ms=grace, emit="final")
    found, task = results_of(windows, records, steps, most)
    assert {(each.key, each.start_ms): each.value for each in found} == expected
    assert len(found) == len(expected)
    assert all(each.is_closed and each.end_ms == each.start_ms + size for each in found)
    assert windows.late_records(task.context) == late
    assert list(windows.items(task.context)) == []  # all are dropped
    assert not list(task.state.range_own(windows._prefix + b"t", windows._prefix + b"u"))
    assert task.state.get_often(windows._closed_to, bytes) is task.state.get_often(windows._dropped_to, bytes) is None
    changes, task = results_of(hopping("w", LISTED, size_ms=size, advance_ms=every, grace_ms=grace), records, steps, most)
    assert not list(task.state.range_own(windows._prefix + b"t", windows._prefix + b"u"))
    assert {(each.key, each.start_ms): each.value for each in changes} == expected
    assert len(changes) == sum(map(len, expected.values()))


@given(RECORDS, STEPS, GRACES, st.sampled_from([3, 10]), MOST)
def test_sessions_have_what_is_near_each_other(records: list[tuple[str, int, int]], steps: list[str], grace: int, gap: int, most: int) -> None:
    open_sessions: dict[str, list[tuple[int, int, list[int]]]] = defaultdict(list)
    closed: list[tuple[str, int, int, list[int]]] = []
    now_ms, late = 0, 0
    for key, at_ms, value in records:
        now_ms = max(now_ms, at_ms)
        near = [each for each in open_sessions[key] if each[0] - gap <= at_ms <= each[1] + gap]
        start, end = min([at_ms, *(each[0] for each in near)]), max([at_ms, *(each[1] for each in near)])
        if end + gap + grace < now_ms:
            late += 1
        else:
            values = [value, *(each for _, _, its in near for each in its)]
            open_sessions[key] = [each for each in open_sessions[key] if each not in near] + [(start, end, sorted(values))]
        for its_key, its in open_sessions.items():
            closed += [(its_key, *each) for each in its if each[1] + gap + grace < now_ms]
            open_sessions[its_key] = [each for each in its if each[1] + gap + grace >= now_ms]
    closed += [(key, *each) for key, its in open_sessions.items() for each in its]
    windows = sessions("s", LISTED, gap_ms=gap, grace_ms=grace, emit="final")
    found, task = results_of(windows, records, steps, most)
    assert sorted((each.key, each.start_ms, each.end_ms, sorted(each.value)) for each in found) == sorted(closed)
    assert windows.late_records(task.context) == late
    kept: dict[tuple[str, int, int], list[int]] = {}
    for each in results_of(sessions("s", LISTED, gap_ms=gap, grace_ms=grace), records, steps, most)[0]:
        for replaced in each.replaces:
            del kept[each.key, *replaced]
        kept[each.key, each.start_ms, each.end_ms] = sorted(each.value)
    assert sorted((*each, values) for each, values in kept.items()) == sorted(closed)


@given(RECORDS, STEPS, GRACES, MOST)
def test_sliding_windows_have_the_last_so_many_ms_of_each_record(
    records: list[tuple[str, int, int]], steps: list[str], grace: int, most: int
) -> None:
    size, taken = 10, accepted(records, lambda at_ms, now_ms: at_ms + grace < now_ms)
    expected = {(key, end): sorted(value for other, at_ms, value in taken if other == key and end - size <= at_ms <= end) for key, end, _ in taken}
    windows = sliding("l", LISTED, size_ms=size, grace_ms=grace, emit="final")
    found, task = results_of(windows, records, steps, most)
    assert {(each.key, each.end_ms): sorted(each.value) for each in found} == expected
    assert len(found) == len(expected)
    assert windows.late_records(task.context) == len(records) - len(taken)
    changes, _ = results_of(sliding("l", LISTED, size_ms=size, grace_ms=grace), records, steps, most)
    assert {(each.key, each.end_ms): sorted(each.value) for each in changes} == expected


@given(
    st.lists(st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(KEYS), TIMES), min_size=3, max_size=30),
    STEPS,
    GRACES,
    st.sampled_from([(10, 10), (0, 7), (3, 0)]),
    st.sampled_from(["inner", "left", "outer"]),
    MOST,
)
def test_joined_streams_have_each_pair_once(
    records: list[tuple[str, str, int]], steps: list[str], grace: int, within: tuple[int, int], kind: str, most: int
) -> None:
    before, after = within
    now_ms, taken = 0, []
    for number, (side, key, at_ms) in enumerate(records):
        now_ms = max(now_ms, at_ms)
        if at_ms + (after if side == "left" else before) + grace >= now_ms:
            taken.append((side, key, at_ms, number))
    lefts, rights = ([each for each in taken if each[0] == side] for side in ("left", "right"))
    pairs = [(left, right) for left in lefts for right in rights if left[1] == right[1] and left[2] - before <= right[2] <= left[2] + after]
    expected: list[tuple[int | None, int | None]] = [(left[3], right[3]) for left, right in pairs]
    if kind != "inner":
        expected += [(each[3], None) for each in lefts if each not in [left for left, _ in pairs]]
    if kind == "outer":
        expected += [(None, each[3]) for each in rights if each not in [right for _, right in pairs]]
    join: StreamJoin[int, int] = StreamJoin("j", before_ms=before, after_ms=after, grace_ms=grace, kind=kind)
    join._most = most
    task, found = Task(steps), []
    for number, (side, key, at_ms) in enumerate(records):
        found += task.handle(join.left if side == "left" else join.right, key, number, at_ms)

    def end(context: TaskContext) -> list[Any]:
        advance(context, 10_000)
        return join.close(context)

    found += task.handle(end)
    assert sorted(map(repr, ((each.left, each.right) for each in found))) == sorted(map(repr, expected))
    assert join.late_records(task.context) == len(records) - len(taken)
    assert {key for key, value in task.state.raw_items(b"", None) if value is not None and b"\0j\0k" in key} == set()


@given(st.lists(st.tuples(st.sampled_from(["user", "click"]), st.sampled_from(KEYS), TIMES, st.none() | st.integers(1, 9)), max_size=30), STEPS)
def test_stream_joined_with_a_table_has_the_newest_row(records: list[tuple[str, str, int, int | None]], steps: list[str]) -> None:
    """By the order in which records are handled, whatever their times are."""
    users: StreamTable[int] = StreamTable("u")
    visits = tumbling("v", LISTED, size_ms=10, grace_ms=100)
    task, model = Task(steps), {}  # type: tuple[Task, dict[str, int | None]]
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)

    def change(context: TaskContext, key: str, value: int | None, at_ms: int) -> int | None:
        advance(context, at_ms)
        return users.put(context, key, value)

    def join(context: TaskContext, key: str, at_ms: int) -> Any:
        return visits.add(context, key, users.get(context, key) or 0, at_ms)

    for kind, key, at_ms, value in records:
        if kind == "user":
            assert task.handle(change, key, value, at_ms) == model.get(key)
            model[key] = value
        else:
            start = at_ms // 10 * 10
            expected[key, start].append(model.get(key) or 0)
            (changed,) = task.handle(join, key, at_ms)
            assert (changed.start_ms, changed.value) == (start, expected[key, start])
    assert dict(users.items(task.context)) == {key: value for key, value in model.items() if value is not None}
    assert stream_time_ms(task.context) == max((at_ms for _, _, at_ms, _ in records), default=0)
    assert {(each.key, each.start_ms): each.value for each in visits.items(task.context)} == expected


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS), st.none() | st.integers(1, 9)), max_size=30), STEPS)
def test_joined_tables_have_the_newest_of_both(changes: list[tuple[bool, str, int | None]], steps: list[str]) -> None:
    join: TableJoin[int, int] = TableJoin("t")
    task, model = Task(steps), ({}, {})  # type: tuple[Task, tuple[dict[str, int | None], dict[str, int | None]]]
    for is_left, key, value in changes:
        row = task.handle(join.left if is_left else join.right, key, value)
        model[not is_left][key] = value
        assert (row.left, row.right) == (model[0].get(key), model[1].get(key))
        assert row.is_whole == (None not in row)
    assert dict(join.left_table.items(task.context)) == {key: value for key, value in model[0].items() if value is not None}


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(KEYS), st.integers(0, 80)), max_size=30), STEPS)
def test_timers_come_once_in_order_and_not_before_stream_time(given: list[tuple[int, str, int]], steps: list[str]) -> None:
    called: list[tuple[int, str]] = []
    timers = Timers("r", lambda context, key, value, due_ms: called.append((due_ms, key)))
    task, now_ms = Task([each for each in steps if each not in ("fail", "crash")] or ["commit"]), 0
    waiting: set[tuple[int, str]] = set()
    expected: list[tuple[int, str]] = []
    for at_ms, key, due_ms in given:
        now_ms = max(now_ms, at_ms)
        due = sorted(each for each in waiting if each[0] <= now_ms)
        expected += due
        waiting -= set(due)
        waiting.add((due_ms, key))

        task.handle(timers.run, at_ms)
        task.handle(timers.set, due_ms, key)
        assert called == expected
        assert timers.pending(task.context) == len(waiting)
        assert stream_time_ms(task.context) == now_ms


def test_timers_by_the_clock_wait_until_the_task_has_caught_up() -> None:
    async def run() -> None:
        called: list[tuple[Any, Any]] = []
        timers = Timers("r", lambda context, key, value, due_ms: called.append((key, value)), by="clock")

        def set_timer(record: Record, context: TaskContext) -> None:
            timers.set(context, context.now_ms + 10_000, record.key, record.value)

        driver = TaskDriver(set_timer, on_assigned=timers.start, key_serde=StringSerde(), value_serde=JsonSerde())
        await driver.send("v", key="k")
        await driver.advance(9)
        assert called == []
        driver.context.behind = lambda: 1
        await driver.advance(5)
        assert called == []
        driver.context.behind = lambda: 0
        await driver.advance(1)
        await driver.advance(60)
        assert called == [("k", "v")]

    asyncio.run(run())


async def test_timers_by_the_clock_set_before_start_are_refused() -> None:
    timers = Timers("r", lambda context, key, value, due_ms: None, by="clock")
    driver = TaskDriver(lambda record, context: timers.set(context, 10, record.key), key_serde=StringSerde(), value_serde=JsonSerde())
    with pytest.raises(InputError, match=r"Timers 'r': nobody looks at the clock for them; call start\(context\) in on_assigned"):
        await driver.send("v", key="k")


def test_aggregate_with_one_list_for_all_windows_is_refused() -> None:
    shared: list[int] = []
    with pytest.raises(InputError, match=r"Aggregate.init: it returns one list for all windows; return a new one"):
        aggregate(lambda: shared, lambda kept, value: [*kept, value], lambda kept, other: kept + other)
    aggregate(list, lambda kept, value: [*kept, value], lambda kept, other: kept + other)


def test_windows_of_a_function_that_makes_aggregates_are_refused() -> None:
    made: Any = count
    with pytest.raises(InputError, match=r"FixedWindows.aggregate: <function count .* is no Aggregate; call what makes one, as in count\(\)"):
        tumbling("w", made, size_ms=10)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(count(), 3), (streams.sum(int), 9), (streams.min(int), 1), (streams.max(int), 5), (streams.reduce(lambda kept, value: kept * 10 + value), 153)],
)
def test_aggregates(kind: Aggregate[int, Any, int], expected: int) -> None:
    found, _ = results_of(tumbling("w", kind, size_ms=10, emit="final"), [("a", 1, 1), ("a", 2, 5), ("a", 3, 3)], ["go on"])
    assert [each.value for each in found] == [expected]
    one, other = kind.add(kind.init(), 1), kind.add(kind.init(), 5)
    assert kind.result(kind.merge(kind.init(), one)) == kind.result(one)
    assert kind.result(kind.merge(one, other)) == kind.result(kind.add(one, 5))


def test_session_takes_a_record_exactly_a_gap_later_though_another_key_was_there_before() -> None:
    records = [("u", 0, 9), ("a", 5, 1), ("b", 15, 2), ("a", 15, 3), ("b", 26, 4)]
    found, _ = results_of(sessions("s", LISTED, gap_ms=10, emit="final"), records, ["go on"])
    assert [(each.key, each.start_ms, each.end_ms, each.value) for each in found] == [
        ("u", 0, 0, [9]),
        ("a", 5, 15, [1, 3]),
        ("b", 15, 15, [2]),
        ("b", 26, 26, [4]),
    ]


def test_record_finds_its_first_partner_though_stream_time_is_at_its_last() -> None:
    join: StreamJoin[str, str] = StreamJoin("j", before_ms=10, after_ms=10)
    task = Task(["commit"])
    task.handle(join.right, "k", "early", 10)
    task.handle(join.right, "other", "later", 30)
    assert [(each.left, each.right) for each in task.handle(join.left, "k", "left", 20)] == [("left", "early")]


def test_what_a_failed_record_has_closed_is_closed_by_the_next_one() -> None:
    task, windows = Task(["go on"]), sessions("s", count(), gap_ms=10, emit="final")
    for number in range(40):
        task.handle(windows.add, f"u{number}", 1, 5)
    task.context.savepoint()
    assert len(windows.add(task.context, "a", 1, 100)) == 40
    assert not list(task.state.range_own(windows._by_time, windows._by_time + b"\x00" * 7 + b"\x50"))
    task.context.rollback()
    task.steps = ["commit"]
    assert len(task.handle(windows.add, "a", 1, 100)) == 40
    assert task.handle(windows.add, "a", 1, 100) == []


def test_windows_are_kept_for_their_retention_and_late_records_go_where_they_are_sent() -> None:
    late: list[Any] = []
    windows = tumbling("w", count(), size_ms=10, grace_ms=5, retention_ms=40, on_late=lambda context, *record: late.append(record))
    task = Task(["commit"])
    for at_ms in (1, 14, 15, 3, 39):
        task.handle(windows.add, "a", "v", at_ms)
    assert late == [("a", "v", 3)]
    assert windows.get(task.context, "a", 0) == 1
    assert [(each.start_ms, each.value, each.is_closed) for each in windows.items(task.context)] == [(0, 1, True), (10, 2, True), (30, 1, False)]
    task.handle(windows.add, "a", "v", 40)
    assert windows.get(task.context, "a", 0) is None
    assert list(task.state.items()) == []  # a handler does not see them


def test_windows_of_one_state_do_not_disturb_each_other_or_the_handler() -> None:
    task = Task(["commit"])
    one, other, table = tumbling("w", count(), size_ms=10), tumbling("w2", count(), size_ms=10), StreamTable[int]("w.t")
    task.handle(one.add, "a", 1, 5)
    task.handle(other.add, "b", 1, 5)
    task.handle(table.put, "a", 1)
    task.handle(lambda context: context.state.put("a", "own"))
    assert [(each.key, each.value) for each in one.items(task.context)] == [("a", 1)]
    assert [(each.key, each.value) for each in other.items(task.context)] == [("b", 1)]
    assert list(task.state.items()) == [("a", "own")]
    with pytest.raises(InputError, match="are the member's own"):
        task.state.put("\0equipoise:w", 1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: tumbling("w", count(), size_ms=0), r"FixedWindows\.size_ms: 0 is no number of milliseconds"),
        (lambda: hopping("w", count(), size_ms=5, advance_ms=6), r"advance_ms: 6 is more than size_ms 5"),
        (lambda: tumbling("w", count(), size_ms=5, emit="closed"), "'closed' is neither 'update' nor 'final'"),
        (lambda: sessions("w", count(), gap_ms=-1), r"SessionWindows\.gap_ms: -1"),
        (lambda: StreamJoin("j", before_ms=1, kind="right"), "'right' is none of inner, left, outer"),
        (lambda: Timers("r", print, by="time"), "'time' is neither 'stream' nor 'clock'"),
        (lambda: Timers("r", print).start(Task(["commit"]).context), "they go by stream time"),
        (lambda: tumbling("w", count(), size_ms=5, state="x").add(Task(["commit"]).context, "k", 1, 1), "the task has no state 'x'"),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises((InputError, FieldError), match=problem):
        make()


def test_one_record_closes_1000_windows_and_drops_a_few_and_close_takes_the_rest() -> None:
    task = Task(["commit"])
    closing, changing = tumbling("c", count(), size_ms=10, emit="final"), tumbling("w", count(), size_ms=10, retention_ms=20)
    for number in range(2_500):
        task.handle(closing.add, f"u{number}", 1, 5)
        task.handle(changing.add, f"u{number}", 1, 5)
    first, second = (task.handle(closing.add, "a", 1, 100) for _ in range(2))
    assert (len(first), len(second)) == (1_000, 1_000)
    assert len({each.key for each in first + second + task.handle(closing.close)}) == 2_500
    assert task.handle(closing.add, "a", 1, 100) == []
    task.handle(changing.add, "a", 1, 100)
    assert [each.key for each in changing.items(task.context)] == ["a"]
    assert changing.get(task.context, "u2400", 0) is None  # it is there, and does not count any more
    assert len(list(task.state.range_own(changing._by_time, changing._by_time + b"\xff"))) == 2_501 - changing._most_dropped
    task.handle(changing.close)
    assert len(list(task.state.range_own(changing._by_time, changing._by_time + b"\xff"))) == 1


def test_expiry_costs_what_it_expires_however_much_was_deleted() -> None:
    """Steps over keys are counted, not time."""
    task, windows = Task(["go on"]), sessions("s", count(), gap_ms=10, emit="final")
    steps = 0
    usual = task.state.raw_items

    def counted(start: bytes, end: bytes | None) -> Any:
        nonlocal steps
        for each in usual(start, end):
            steps += 1
            yield each

    task.state.raw_items = counted  # type: ignore[method-assign]  # that is what is counted
    closed = sum(len(task.handle(windows.add, f"u{number}", 1, number * 5)) for number in range(3_000))
    assert closed > 2_990
    assert steps < 12 * 3_000
