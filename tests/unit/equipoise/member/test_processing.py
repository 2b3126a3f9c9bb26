"""Handlers, batch handlers and error policies, without Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Processor, Record, StringSerde, TaskContext
from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.producer.errors import InvalidRecordError
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.tasks.context import State
from equipoise.member.tasks.error_policy import LONGEST_BACKOFF_S, FailedTask
from equipoise.member.tasks.failures import AGAIN_S, Failures
from equipoise.member.tasks.processing import Processing
from equipoise.member.tasks.sizes import OversizedError
from equipoise.member.tasks.timers import IntervalTimers
from equipoise.testing.simulated.kafka.partition_log import Batch, StoredRecord

SENT = Batch(-1, -1, -1, False, [], 0)


def stored(*values: bytes | None, first: int = 0) -> list[StoredRecord]:
    return [StoredRecord("in", 2, first + number, 1_000 + number, 0, b"k", value, (("h", b"x"),), SENT) for number, value in enumerate(values)]


class World:
    """One task, whose records are handled as a runner does."""

    def __init__(
        self, *, policy: ErrorPolicy | None = None, handler: Any = None, batch_handler: Any = None, failures: Failures | None = None
    ) -> None:
        self.now_s = 0.0
        self.timers = IntervalTimers(lambda: self.now_s)
        self.failures = failures or Failures(lambda: self.now_s)
        keys, values = StringSerde(), JsonSerde()
        self.state = State(MemoryStore(), keys, values)
        self.context = TaskContext(TaskId(0, 2), 1, {"log": self.state}, self.timers, keys, values)
        self.processing = Processing(
            Processor(handler, batch_handler=batch_handler, sources="in"),
            self.context,
            self.timers,
            group="g",
            policy=policy or ErrorPolicy.stop(),
            key_serde=keys,
            value_serde=values,
            failures=self.failures,
        )
        self.waits_s: list[float] = []

    async def handle(self, records: Sequence[StoredRecord], most: int = 100) -> int:
        """Returns how many are done with when it stops."""
        done = 0
        while done < len(records) and self.processing.parked is None:
            done += await self.processing.handle(records, done, min(len(records), done + most), lambda: 0, 1)
            if self.processing.retry_in_s is not None:
                self.waits_s.append(self.processing.retry_in_s)
        return done

    @property
    def sent(self) -> list[bytes | None]:
        return [value for _, _, (_, value, _, _) in self.context.outputs.unplaced]


def count(record: Record, context: TaskContext) -> None:
    """It fails after it has put and sent something."""
    total = (context.state.get("total") or 0) + 1
    context.state.put("total", total)
    context.send("out", total)
    if record.value["poison"]:
        raise RuntimeError("cannot\nread it")


def count_all(records: Sequence[Record], context: TaskContext) -> None:
    for record in records:
        count(record, context)


GOOD, POISON, UNREADABLE = b'{"poison": 0}', b'{"poison": 1}', b"{"
Given = dict[str, Any]
EACH = pytest.mark.parametrize("given", [{"handler": count}, {"batch_handler": count_all}], ids=["records", "batches"])
BAD = pytest.mark.parametrize("bad", [POISON, UNREADABLE], ids=["handler raises", "serde raises"])


async def test_handler_gets_deserialized_records_with_headers_and_times() -> None:
    found = []

    async def handle(record: Record, context: TaskContext) -> None:
        found.append(record)

    world = World(handler=handle)
    assert await world.handle(stored(b"[1]", None, first=7)) == 2
    assert found == [Record("k", [1], "in", 2, 7, 1_000, (("h", b"x"),)), Record("k", None, "in", 2, 8, 1_001, (("h", b"x"),))]


async def test_batch_handler_gets_all_that_are_there_at_most_the_limit() -> None:
    found = []

    async def handle(records: Sequence[Record], context: TaskContext) -> None:
        found.append([record.offset for record in records])

    world = World(batch_handler=handle)
    assert await world.handle(stored(*[b"1"] * 5), most=3) == 5
    assert found == [[0, 1, 2], [3, 4]]


@EACH
@BAD
async def test_poison_record_with_stop_fails_the_task_behind_the_good_ones(given: Given, bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = World(**given)
    assert await world.handle(stored(GOOD, GOOD, bad, GOOD)) == 2
    error = "RuntimeError: cannot read it" if bad == POISON else world.processing.parked.error  # type: ignore[union-attr]
    assert world.processing.parked == FailedTask(task=TaskId(0, 2), topic="in", partition=2, offset=2, error=error)
    assert (world.state.get("total"), world.sent) == (2, [b"1", b"2"])
    what = "its handler failed for" if bad == POISON else "its serde cannot read"
    assert f"task 0_2 has failed, other tasks go on: {what} in/2 at offset 2" in caplog.text
    assert ("cannot be read: JSONDecodeError" in world.processing.parked.error) == (bad == UNREADABLE)
    assert world.failures.counts == {("in", "parked"): 1}
    assert not await world.processing.run_timers()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OversizedError("a record for out has 9 bytes"), "what was put or sent for in/2 at offset 0 is too large: OversizedError: a record"),
        (InputError("send to out: a record needs a key"), "its handler failed for in/2 at offset 0: InputError: send to out: a record"),
        (InvalidRecordError(), "brokers refuse what was put or sent for in/2 at offset 0: InvalidRecordError: the brokers take no such record: a "),
        (RuntimeError("no"), "its handler failed for in/2 at offset 0: RuntimeError: no. Mend the handler, and restart the member"),
    ],
)
async def test_failed_task_for_each_kind_of_error_has_its_own_advice(error: Exception, advice: str, caplog: pytest.LogCaptureFixture) -> None:
    def handle(record: Record, context: TaskContext) -> None:
        raise error

    assert await World(handler=handle).handle(stored(GOOD)) == 0
    assert advice in caplog.text
    assert ("puts and sends less" in caplog.text) == isinstance(error, OversizedError)


@EACH
@BAD
async def test_poison_record_with_skip_leaves_no_trace(given: Given, bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = World(policy=ErrorPolicy.skip(), **given)
    assert await world.handle(stored(GOOD, bad, GOOD, bad, bad, GOOD)) == 6
    assert world.sent == [b"1", b"2", b"3"]
    assert caplog.text.count("was skipped") == 1
    assert caplog.text.count("Traceback") == 1, "of errors of one kind, once in a while"
    assert ("it cannot be read: " in caplog.text) == (bad == UNREADABLE)
    assert world.failures.drops.counts == {("0", "in", "skipped"): 3}
    assert not world.failures.counts
    world.now_s += AGAIN_S
    await world.handle(stored(bad))
    assert caplog.text.count("Traceback") == 2


async def test_retries_and_dead_letters_are_counted_and_each_kind_of_error_has_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def handle(record: Record, context: TaskContext) -> None:
        if record.value["poison"]:
            raise KeyError("page")
        raise ValueError

    world = World(policy=ErrorPolicy.retry(2, then=ErrorPolicy.dead_letter("dead")), handler=handle)
    await world.handle(stored(GOOD, POISON, UNREADABLE))
    assert world.failures.counts == {("in", "retried"): 6}
    assert world.failures.drops.counts == {("0", "in", "dead_lettered"): 3}
    assert caplog.text.count("Traceback") == 3
    assert "KeyError: 'page'" in caplog.text


async def test_tasks_that_fail_for_one_kind_of_error_have_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    one = World(handler=count)
    other = World(handler=count, failures=one.failures)
    for each in (one, other):
        assert await each.handle(stored(POISON)) == 0
    assert caplog.text.count("has failed, other tasks go on") == 2
    assert caplog.text.count("Traceback") == 1


@EACH
async def test_dead_letter_has_the_record_its_place_and_the_error(given: Given) -> None:
    world = World(policy=ErrorPolicy.dead_letter("dead"), **given)
    assert await world.handle(stored(GOOD, POISON, GOOD, first=5)) == 3
    topic, partition, (key, value, headers, timestamp_ms) = world.context.outputs.unplaced[1]
    assert world.sent == [b"1", POISON, b"2"]
    assert (topic, key, value, partition, timestamp_ms) == ("dead", b"k", POISON, None, None)
    assert dict(headers) == {
        "h": b"x",
        "equipoise.error.topic": b"in",
        "equipoise.error.partition": b"2",
        "equipoise.error.offset": b"6",
        "equipoise.error.timestamp": b"1001",
        "equipoise.error.group": b"g",
        "equipoise.error.task": b"0_2",
        "equipoise.error.class": b"builtins.RuntimeError",
        "equipoise.error.message": b"RuntimeError: cannot read it",
    }


@pytest.mark.parametrize(("failures", "handled"), [(2, True), (3, False)])
async def test_retry_calls_again_after_longer_and_longer_waits(failures: int, handled: bool) -> None:
    calls = 0

    async def handle(record: Record, context: TaskContext) -> None:
        nonlocal calls
        calls += 1
        count(Record(None, {"poison": record.value == "x" and calls <= failures}, "in", 2, 0, 0), context)

    world = World(policy=ErrorPolicy.retry(2, backoff_s=0.5, then=ErrorPolicy.dead_letter("dead")), handler=handle)
    assert await world.handle(stored(b'"x"', b'"y"')) == 2
    assert world.waits_s == [0.5, 1.0]
    assert world.sent == ([b"1", b"2"] if handled else [b'"x"', b"1"])
    assert calls == 4


async def test_retry_of_a_batch_repeats_the_failing_record_alone() -> None:
    world = World(policy=ErrorPolicy.retry(1, backoff_s=0), batch_handler=count_all)
    assert await world.handle(stored(GOOD, GOOD, POISON, GOOD)) == 2
    assert world.sent == [b"1", b"2"]
    assert world.processing.parked is not None


async def test_batches_are_whole_again_behind_a_failed_one() -> None:
    sizes = []

    def handle(records: Sequence[Record], context: TaskContext) -> None:
        sizes.append(len(records))
        count_all(records, context)

    world = World(policy=ErrorPolicy.skip(), batch_handler=handle)
    assert await world.handle(stored(GOOD, POISON, GOOD, *[GOOD] * 6), most=3) == 9
    assert sizes == [3, 2, 1, 1, 1, 3, 3]


def test_error_policy_is_checked() -> None:
    assert ErrorPolicy.retry(5) == ErrorPolicy(retries=5, backoff_s=1.0)
    assert [ErrorPolicy.retry(9, backoff_s=20).backoff_of(attempt) for attempt in (1, 2, 3, 2_000)] == [20, 40, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S]
    text: Any = "x"
    for wrong in (
        lambda: ErrorPolicy.retry(-1),
        lambda: ErrorPolicy.retry(1, backoff_s=-1),
        lambda: ErrorPolicy.retry(3, backoff_s=text),
        lambda: ErrorPolicy.dead_letter(""),
        lambda: ErrorPolicy.dead_letter("dead letters"),
    ):
        with pytest.raises(FieldError, match=r"ErrorPolicy\."):
            wrong()


@pytest.mark.parametrize("policy", [ErrorPolicy.stop(), ErrorPolicy.skip()])
async def test_timers_run_between_records_and_their_errors_drop_what_they_wrote(policy: ErrorPolicy) -> None:
    world = World(policy=policy, handler=count)

    async def good(context: TaskContext) -> None:
        context.send("out", "good")

    def bad(context: TaskContext) -> None:
        context.state.put("bad", 1)
        context.send("out", "bad")
        raise RuntimeError("bad timer")

    world.context.every(10, good)
    world.context.every(20, bad)
    assert not await world.processing.run_timers()
    world.now_s = 10.0
    assert await world.processing.run_timers()
    world.now_s = 20.0
    assert await world.processing.run_timers()
    assert (world.sent, world.state.get("bad")) == ([b'"good"', b'"good"'], None)
    parked = world.processing.parked
    assert (None if parked is None else parked.place) == ("a timer" if policy.action == "stop" else None)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sources": "in"}, "give it a handler or a batch_handler"),
        ({"handler": count, "batch_handler": count_all, "sources": "in"}, "give it a handler or a batch_handler"),
        ({"handler": count, "sources": ()}, "name the topics it reads"),
        ({"handler": count, "sources": "in", "state": "x" * 250}, r"Processor.state: .* is no name of a topic; write 1 to 249 of the characters"),
        ({"handler": count, "sources": "a b"}, r"Processor.sources: 'a b' is no name of a topic"),
        ({"handler": count, "sources": ".."}, r"Processor.sources: '..' is no name of a topic"),
        ({"handler": lambda record: None, "sources": "in"}, r"handler: .*<lambda> is called with \(record, context\): too many positional arguments"),
        ({"batch_handler": lambda: None, "sources": "in"}, r"batch_handler: .*<lambda> is called with \(records, context\): too many positional"),
        ({"handler": lambda record, context, *, more: None, "sources": "in"}, r"handler: .* missing a required (keyword-only )?argument: 'more'"),
    ],
)
def test_processor_is_checked(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Processor(**wrong)


def test_failures_of_each_source_are_counted_from_0_on() -> None:
    failures = Failures(lambda: 0.0, [("views", "in")])
    failures.note("in", "parked")
    assert failures.counts == {("in", "retried"): 0, ("in", "parked"): 1}
    assert not any(failures.drops.counts.values())
