"""`Member.query` reads the state of a task wherever it runs, in virtual time: the owner's and that
of copies, committed and newest, while tasks move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from equipoise import Member, QueryError, Record, TaskContext
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, partition_of_key
from equipoise.member.http.queries import StateQuestion
from equipoise.member.http.query_routes import answered, parameters_of, question_of
from equipoise.streams import StreamJoin, StreamTable, TableJoin, count, sessions, sliding, tumbling
from equipoise.testing.simulated.kafka.partition_log import Batch
from tests.simulated.test_owner import asked, settle
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

KEYS = [b"k%02d" % number for number in range(40)]
users: StreamTable[str] = StreamTable("users")
views = tumbling("views", count(), size_ms=60_000, grace_ms=3_600_000)
visits = sessions("visits", count(), gap_ms=60_000)
last = sliding("last", count(), size_ms=10, grace_ms=10)
pairs: StreamJoin[int, int] = StreamJoin("pairs", before_ms=10)
rows: TableJoin[int, int] = TableJoin("rows")


def keep(record: Record, context: TaskContext) -> None:
    context.state.put(record.key, record.value)
    users.put(context, record.key, record.value.decode())
    views.add(context, record.key, None, 120_000)
    visits.add(context, record.key, None, 120_000)
    for at_ms in (119_995, 120_000):
        last.add(context, record.key, None, at_ms)


def feed(group: NewGroup) -> None:
    for key in KEYS:
        place = group.cluster.partition(TopicPartition("in", partition_of_key(key, TASKS)))
        assert place is not None
        group.cluster.append(place, Batch(-1, -1, -1, False, [(key, b"v" + key, (), group.cluster.now_ms())], 100))


def started(group: NewGroup, *names: str, **options: Any) -> dict[str, Member]:
    """Members that reach each other: in the place of HTTP their requests are passed on."""
    members = {name: group.start(name, handler=keep, advertised=f"{name}:80", **options) for name in names}
    group.runs_all_after_s()
    for member in members.values():
        connect(member, members)
    return members


def connect(member: Member, members: Mapping[str, Member]) -> None:
    async def fetch(address: str, parameters: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
        other = members.get(address.partition(":")[0])
        if other is None or other._queries is None or other.member_id in gone:
            raise ConnectionRefusedError("nobody there")
        try:
            return 200, json.dumps(answered(await other._queries.answer(question_of(parameters))))
        except QueryError as error:
            return 404, json.dumps({"reason": error.reason, "problem": error.problem})

    assert member._queries is not None, "it has joined"
    member._queries._routes._fetch = fetch  # type: ignore[method-assign]  # there is no network


gone: set[str] = set()
"""Members that do not answer any more."""


def test_each_member_reads_each_key_and_range_wherever_its_task_runs(group: NewGroup) -> None:
    members = started(group, "m1", "m2")
    assert {name for name, member in members.items() if member.running} == {"m1", "m2"}
    feed(group)
    settle(group, 5)
    for member in members.values():
        assert [asked(group, member, member.query(key)) for key in KEYS] == [b"v" + key for key in KEYS]
        assert asked(group, member, member.query(b"nobody")) is None
        assert asked(group, member, member.query_range()) == [(key, b"v" + key) for key in KEYS]
        assert asked(group, member, member.query_range(b"k05", b"k08")) == [(key, b"v" + key) for key in (b"k05", b"k06", b"k07")]
        assert asked(group, member, member.query_range(limit=3)) == [(key, b"v" + key) for key in KEYS[:3]]
        assert asked(group, member, member.query(b"k07", of=users)) == "vk07"
        assert asked(group, member, member.query_range(b"k38", of=users)) == [(b"k38", "vk38"), (b"k39", "vk39")]
        assert asked(group, member, member.query(b"k07", of=views, at_ms=120_000)) == 1
        assert asked(group, member, member.query(b"k07", of=views, at_ms=60_000)) is None
        (window, *_) = asked(group, member, member.query_range(120_000, 180_000, of=views, limit=1))
        assert (window.key, window.start_ms, window.end_ms, window.value) == (b"k00", 120_000, 180_000, 1)
        assert asked(group, member, member.query(b"k07", of=visits)) == [(120_000, 120_000, 1)]
        assert asked(group, member, member.query(b"k07", of=last, at_ms=120_000)) == 2
        assert asked(group, member, member.query(b"k07", of=last, at_ms=119_999)) is None
        windows = asked(group, member, member.query_range(b"k07", of=last))
        assert [(each.key, each.start_ms, each.end_ms, each.value) for each in windows] == [
            (b"k07", 119_985, 119_995, 1),
            (b"k07", 119_990, 120_000, 2),
        ]
        assert {(each.key, each.value) for each in asked(group, member, member.query_range(of=last))} == {(key, n) for key in KEYS for n in (1, 2)}


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (pairs, r"of=StreamJoin\(\.\.\.\) is neither a table nor windows; keep what is to be asked in a table or in the state"),
        (rows, r"of=TableJoin\(\.\.\.\) is neither a table nor windows; ask its left_table and its right_table"),
        (last, "sliding windows 'last' are asked for one key"),
    ],
)
def test_what_cannot_be_asked_is_said(group: NewGroup, of: Any, problem: str) -> None:
    (member,) = started(group, "m1").values()
    with pytest.raises(InputError, match=problem):
        asked(group, member, member.query_range(b"k01", b"k02", of=of))
    if of is not last:
        with pytest.raises(InputError, match=problem):
            asked(group, member, member.query(b"k01", of=of))


def test_pages_of_a_range_make_the_whole(group: NewGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.member.http.queries.MOST_ROWS", 3)
    members = started(group, "m1", "m2")
    feed(group)
    settle(group, 5)
    assert asked(group, members["m2"], members["m2"].query_range(limit=100)) == [(key, b"v" + key) for key in KEYS]


def test_newest_is_what_was_handled_and_committed_what_lasts(group: NewGroup) -> None:
    (member,) = started(group, "m1", commit_interval_ms=20_000).values()
    feed(group)
    settle(group, 1)
    task = TaskId(0, partition_of_key(b"k07", TASKS))
    assert asked(group, member, member.query(b"k07")) is None
    assert asked(group, member, member.query(b"k07", newest=True)) == b"vk07"
    assert (b"k07", b"vk07") in asked(group, member, member.query_range(task=task, newest=True))
    assert asked(group, member, member.query_range(task=task)) == []
    settle(group, 30)
    assert asked(group, member, member.query(b"k07")) == b"vk07"


def test_copies_answer_when_they_may_be_behind_even_while_nobody_runs_the_task(group: NewGroup) -> None:
    members = started(group, "m1", "m2", num_standbys=1)
    feed(group)
    settle(group, 15)
    one = members["m1"]
    theirs = next(key for key in KEYS if TaskId(0, partition_of_key(key, TASKS)) not in one.running)
    gone.add("m2")
    try:
        assert asked(group, one, one.query(theirs, max_lag=0)) == b"v" + theirs
        with pytest.raises(QueryError, match="m2 at m2:80 does not answer") as caught:
            asked(group, one, one.query(theirs, timeout_s=0.5))
        assert caught.value.reason == "unreachable"
    finally:
        gone.clear()
    question = StateQuestion(task=TaskId(0, partition_of_key(theirs, TASKS)), topic="log", key=theirs)
    assert one._queries is not None
    with pytest.raises(QueryError, match="member m1 does not run task") as caught:
        asked(group, one, one._queries.answer(question))
    assert caught.value.reason == "not_here"


def test_query_waits_for_the_next_owner(group: NewGroup) -> None:
    members = started(group, "m1", "m2")
    feed(group)
    settle(group, 5)
    one, two = members["m1"], members["m2"]
    theirs = next(key for key in KEYS if TaskId(0, partition_of_key(key, TASKS)) in two.running)
    two.close()
    gone.add("m2")
    try:
        assert asked(group, one, one.query(theirs, timeout_s=25)) == b"v" + theirs
    finally:
        gone.clear()
    assert not two.running


def test_state_that_is_not_there_is_said(group: NewGroup) -> None:
    (member,) = started(group, "m1").values()
    with pytest.raises(QueryError, match=r"task 0_0 has no state 'lag'; it has: log") as caught:
        asked(group, member, member.query(b"k", state="lag", task=TaskId(0, 0)))
    assert caught.value.reason == "no_such_state"
    with pytest.raises(InputError, match="there is no sub-topology 3; there are 0"):
        asked(group, member, member.query(b"k", subtopology=3))
    assert member._queries is not None
    with pytest.raises(QueryError, match=r"task 0_0 has no state 'lag'"):
        asked(group, member, member._queries.answer(StateQuestion(task=TaskId(0, 0), topic="lag", key=b"k")))


@pytest.mark.parametrize(
    "question",
    [
        StateQuestion(task=TaskId(1, 2), topic="t", key=b"\x00\xff", newest=True),
        StateQuestion(task=TaskId(0, 0), topic="t", start=b"a", end=b"", limit=7, max_lag=0),
        StateQuestion(task=TaskId(0, 0), topic="t", key=b""),
    ],
)
def test_question_is_the_same_behind_a_request(question: StateQuestion) -> None:
    assert question_of(parameters_of(question)) == question


@pytest.mark.parametrize(("given", "named"), [({}, "task"), ({"limit": "0"}, "limit"), ({"key": "ä"}, "key"), ({"max_lag": "x"}, "max_lag")])
def test_request_that_is_wrong_names_the_parameter(given: dict[str, str], named: str) -> None:
    usual = {"task": "0_0", "state": "log"} if given else {}
    with pytest.raises(InputError, match=f"^{named}: "):
        question_of(usual | given)
