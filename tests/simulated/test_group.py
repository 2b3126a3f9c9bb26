"""`equipoise.testing.Group`: members of an application in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError

from equipoise import ErrorPolicy, JsonSerde, Record, StringSerde, TaskContext
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.member.http.metrics import MemberCollector
from equipoise.testing import Group, SentRecord
from tests.groups import configured

BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
KEYS = 9
EVERY_S = 0.02
MOST_SILENT_S = 0.15
"""Half of what it may take with processors that are not infinitely fast."""


def count(record: Record, context: TaskContext) -> None:
    total = (context.state.get(record.key) or 0) + record.value
    context.state.put(record.key, total)
    context.send("counts", total, key=record.key, headers=record.headers)


def made(guarantee: str = "at_least_once", **options: object) -> Group:
    return Group(
        count,
        sources="orders",
        state="log",
        outputs="counts",
        key_serde=StringSerde(),
        value_serde=JsonSerde(),
        guarantee=guarantee,
        **options,  # type: ignore[arg-type]
    )


def send(group: Group, rounds: int) -> None:
    for number in range(rounds * KEYS):
        group.send(1, key=f"k{number % KEYS}")


@BOTH
def test_group_counts_each_record_once_over_joins_leaves_and_crashes(guarantee: str) -> None:
    with made(guarantee) as group:
        group.join("m1")
        send(group, 3)
        group.settle()
        assert set(group.running.values()) == {"m1"}
        group.join("m2", "m3")
        send(group, 2)
        group.advance(60)
        assert len(group.running) == 4
        assert set(group.running.values()) == {"m1", "m2", "m3"}
        group.crash("m2")
        send(group, 1)
        group.settle()
        assert set(group.running.values()) == {"m1", "m3"}
        group.join("m2")
        group.leave("m3")
        group.settle()
        assert "m3" not in group.running.values()
        assert group.state() == {f"k{number}": 6 for number in range(KEYS)}
        group.recount()


@BOTH
def test_tasks_with_standbys_are_silent_for_a_moment_only_when_their_member_restarts(guarantee: str) -> None:
    tasks, members = 9, ("m1", "m2", "m3")
    handled: dict[int, list[float]] = {}

    def note(record: Record, context: TaskContext) -> None:
        count(record, context)
        handled.setdefault(context.task.partition, []).append(group.now_s)

    def feed(seconds: float) -> None:
        for _ in range(round(seconds / EVERY_S)):
            for partition in range(tasks):
                group.send(1, key=f"k{partition}", partition=partition)
            group.advance(EVERY_S)

    config = configured(num_standbys=1, initial_delay_ms=1_000, acceptable_recovery_lag=1_000)
    group = Group(
        note,
        sources="orders",
        state="log",
        outputs="counts",
        key_serde=StringSerde(),
        value_serde=JsonSerde(),
        guarantee=guarantee,
        group_config=config,
        partitions=tasks,
    )
    with group:
        group.join(*members)
        group.settle()
        group.advance(30)  # all standbys are there
        feed(0.5)
        assert Counter(group.running.values()) == dict.fromkeys(members, 3)
        handled.clear()
        member, process = group._running("m1")
        process.app.create_task(member.leave(back_within_s=30))
        while "m1" in group.running.values():
            feed(0.2)
        feed(2)
        group.join("m1")
        while Counter(group.running.values()) != dict.fromkeys(members, 3):
            feed(0.2)
        feed(0.5)
        silences = [max(after - before for before, after in pairwise(times)) for _, times in sorted(handled.items())]
        assert EVERY_S < max(silences) <= MOST_SILENT_S, silences
        group.settle()
        group.recount()


def test_group_returns_outputs_with_the_headers_of_the_application() -> None:
    with made() as group:
        group.join("m1")
        group.send(2, key="k", headers=[("trace", b"7")])
        group.settle()
        (sent,) = group.outputs()
        assert (sent.key, sent.value, sent.headers) == ("k", 2, (("trace", b"7"),))
        assert isinstance(sent, SentRecord)


def test_recount_finds_a_state_that_another_order_of_events_has_changed() -> None:
    seen: list[str] = []

    def forgetful(record: Record, context: TaskContext) -> None:
        """Its memory is not in its state."""
        seen.append(record.key)
        context.state.put(record.key, seen.count(record.key))

    with Group(forgetful, key_serde=StringSerde(), value_serde=JsonSerde()) as group:
        group.join("m1")
        group.send(1, key="k")
        group.settle()
        with pytest.raises(AssertionError, match=r"state of task 0_. in state: {'k': 1}; alone it has {'k': 2}"):
            group.recount()


def test_recount_says_that_the_handler_reads_the_clock() -> None:
    def handle(record: Record, context: TaskContext) -> None:
        context.send("out", context.now_ms, key=record.key)

    with Group(handle, sources="in", state=(), outputs="out", key_serde=StringSerde(), value_serde=JsonSerde()) as group:
        group.join("m1")
        group.send(1, key="k")
        group.settle()
        with pytest.raises(AssertionError, match=r"outputs are missing: .*: the handler reads context.now_ms, which is another time alone"):
            group.recount()


def test_settle_says_what_is_missing() -> None:
    def fail(record: Record, context: TaskContext) -> None:
        raise ValueError("poison")

    with Group(fail, partitions=1) as group:
        with pytest.raises(AssertionError, match="task 0_0 does not run"):
            group.settle(within_s=5)
        group.join("m1")
        group.send(b"v", key=b"k")
        with pytest.raises(AssertionError, match="task 0_0 has failed: ValueError: poison"):
            group.settle(within_s=30)
        assert group.failed_tasks[TaskId(0, 0)].offset == 0
    with Group(fail, partitions=1, on_error=ErrorPolicy.dead_letter("dead")) as group:
        group.join("m1")
        group.send(b"v", key=b"k")
        group.settle()
        assert [each.value for each in group.outputs("dead")] == [b"v"]


@BOTH
def test_task_whose_output_was_refused_fails_at_its_next_owner_too(guarantee: str) -> None:
    def misdirected(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.value == 100:
            context.send("counts", 0, key=record.key, partition=99)

    with Group(
        misdirected,
        sources="orders",
        state="log",
        outputs="counts",
        partitions=1,
        key_serde=StringSerde(),
        value_serde=JsonSerde(),
        guarantee=guarantee,
    ) as group:
        group.join("m1")
        group.send(1, key="k")
        group.settle()
        group.send(100, key="k")
        group.advance(10)
        assert "no partition 99" in group.failed_tasks[TaskId(0, 0)].error
        group.join("m2")
        group.advance(60)
        group.leave("m1")
        group.advance(10)
        assert group.running == {TaskId(0, 0): "m2"}
        assert group.failed_tasks[TaskId(0, 0)].offset == 1  # nothing of it was committed
        assert [each.value for each in group.outputs()] == [1]


def test_member_starts_once_brokers_can_make_its_topics(caplog: pytest.LogCaptureFixture) -> None:
    with made() as running:
        usual: Any = running._cluster.create_topic
        asked = Counter[str]()

        def create(name: str, *settings: Any) -> Any:
            asked[name] += 1
            return usual(name, *settings) if asked[name] > 3 else RequestTimedOutError

        running._cluster.create_topic = create  # type: ignore[assignment, method-assign]  # the controller has no time
        running.join("m1")
        running.send(1, key="a")
        running.settle()
        assert max(asked.values()) == 4
        assert running.state() == {"a": 1}
    assert "member m1 cannot start yet, and tries again: " in caplog.text


def test_member_ends_when_brokers_never_can() -> None:
    with made() as running:
        running._cluster.create_topic = lambda *_: RequestTimedOutError  # type: ignore[method-assign]  # the controller never has time
        running.join("m1")
        running.advance(45)
        with pytest.raises(AssertionError, match=r"member m1 has ended: NotNowError.*cannot be made now"):
            running.settle(within_s=1)


def test_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[SentRecord]:
        with made(seed=seed) as group:
            group.join("m1", "m2")
            send(group, 2)
            group.settle()
            return group.outputs()

    assert run(1) == run(1)


def test_group_in_a_coroutine_is_refused() -> None:
    async def test() -> None:
        with pytest.raises(InputError, match="event loops of its own"):
            made().__enter__()

    asyncio.run(test())


def test_member_that_does_not_run_is_refused() -> None:
    with made() as group:
        group.join("m1")
        with pytest.raises(InputError, match="member m1 runs"):
            group.join("m1")
        with pytest.raises(InputError, match="member m2 does not run"):
            group.crash("m2")
        with pytest.raises(InputError, match="there is no partition orders/9"):
            group.send(1, key="k", topic="orders", partition=9)


def test_gauges_of_a_member_name_the_tasks_that_it_has_and_are_zero_at_rest() -> None:
    """Also where copies of tasks that have moved away are left on its disk."""
    with made("exactly_once", group_config=configured(num_standbys=1, acceptable_recovery_lag=0)) as group:

        def check() -> None:
            left = 0
            for name, member in group._members():
                host = member._host
                assert host is not None
                session = host.session
                has = {str(task) for task in (*session.grants, *session.standby, *session.warmup)}
                left += len({str(task) for task in host.work.lags} - has)
                gauges = [metric for metric in MemberCollector("test", name, host.work.figures).collect() if metric.type == "gauge"]
                of_tasks = [sample for metric in gauges for sample in metric.samples if "task" in sample.labels]
                assert {sample.name for sample in of_tasks} == {"equipoise_member_source_lag_records", "equipoise_member_restore_lag_records"}
                assert {sample.labels["task"] for sample in of_tasks} <= has, name
                assert {sample.value for sample in of_tasks} == {0}, name
            lefts.append(left)

        lefts: list[int] = []
        group.join("m1", "m2", "m3")
        send(group, 30)
        group.settle()
        group.advance(20)
        check()
        group.join("m4")
        send(group, 20)
        group.settle()
        group.leave("m4")
        send(group, 20)
        group.settle()
        group.crash("m3")
        group.settle()
        group.join("m3")
        send(group, 20)
        group.settle()
        group.advance(60)
        check()
        assert any(lefts), "a copy that nobody keeps up to date is on some disk"


@pytest.mark.parametrize("orderly", [False, True])
def test_console_knows_what_was_decided_before_a_takeover(orderly: bool) -> None:
    """After a worker's crash by the facts since its last checkpoint, which are folded again; after
    an orderly end, with checkpoints of everything, by the log.
    """
    with made() as group:
        group.join("m1", "m2")
        send(group, 3)
        group.settle()
        group.leave("m2")
        group.settle()
        worker = group._worker

        def said() -> tuple[list[tuple[int, str]], int]:
            known = worker.recent.groups["test"]
            assert [each.number for each in known.sentences] == sorted(each.number for each in known.sentences)
            return [(each.append_ms, each.sentence.text) for each in known.sentences], known.rejections

        async def another_takes_over() -> None:
            await worker._partitions.hosts.pop(0).stop(checkpoint=orderly)
            worker._partitions.start([0])

        before = said()
        assert any("m2 left" in text or "m2 leaves" in text for _, text in before[0])
        taken = worker.process.app.create_task(another_takes_over())
        group._until(lambda: taken.done() and not worker.unready(), 60)
        group.advance(5)
        assert said() == before
        assert said()[1] == 0, "joins of a new group and topologies that are known are nothing wrong"
        seen = worker.recent.groups["test"].first_append_ms
        assert seen is not None
        assert (seen > before[0][0][0]) is orderly, "the timeline begins with the checkpoint"
