"""`ApplicationDriver` drives a chain of processors, and `differences` compares two of its versions."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, MsgpackSerde, Processor, Record, Source, StringSerde, TaskContext
from equipoise.events.errors import InputError
from equipoise.streams import Timers, count, tumbling
from equipoise.testing import ApplicationDriver, SentRecord, VersionDifference, differences
from examples.pageviews import OPTIONS, PROCESSORS

SERDES: dict[str, Any] = {"key_serde": StringSerde(), "value_serde": JsonSerde()}
MINUTE_MS = 60_000
views = tumbling("views", count(), size_ms=MINUTE_MS, emit="final")


def by_page(record: Record, context: TaskContext) -> None:
    context.send("by-page", record.value, key=record.value["page"], timestamp_ms=record.timestamp_ms, value_serde=MsgpackSerde())


def count_views(record: Record, context: TaskContext) -> None:
    for each in views.add(context, record.key, None, record.timestamp_ms):
        context.send("views", each.value, key=each.key)
    context.state.put(record.key, record.value["user"])


def count_twice(record: Record, context: TaskContext) -> None:
    count_views(record, context)
    if record.value["user"] == "bob":
        views.add(context, record.key, None, record.timestamp_ms)


def chain(second: Any = count_views) -> list[Processor]:
    between = Source("by-page", value_serde=MsgpackSerde())
    return [Processor(by_page, sources="clicks", outputs="by-page"), Processor(second, sources=between, state="pages", outputs="views")]


def click(user: str, page: str, at_ms: int) -> SentRecord:
    return SentRecord("clicks", user, {"user": user, "page": page}, timestamp_ms=at_ms)


async def test_records_go_along_the_chain_with_their_time_and_serdes() -> None:
    driver = ApplicationDriver(chain(), **SERDES)
    sent = await driver.send({"user": "ann", "page": "/"}, key="ann", timestamp_ms=5)
    assert [(each.topic, each.key, each.timestamp_ms) for each in sent] == [("by-page", "/", 5)]
    assert driver.state("pages").get("/") == "ann"
    (_, closed) = await driver.send({"user": "bob", "page": "/b"}, key="bob", timestamp_ms=MINUTE_MS + 7)
    assert (closed.topic, closed.key, closed.value) == ("views", "/", 1)
    assert driver.stream_time_ms == MINUTE_MS + 7


async def test_what_any_processor_drops_is_counted() -> None:
    def refuse(record: Record, context: TaskContext) -> None:
        by_page(record, context)
        assert record.value["user"], "who was it?"

    processors = [Processor(refuse, sources="clicks", outputs="by-page"), chain()[1]]
    driver = ApplicationDriver(processors, **SERDES, on_error=ErrorPolicy.skip())
    assert driver.dropped == {}
    for user, at_ms in (("ann", 5), ("bob", MINUTE_MS + 7), ("ann", 6), ("", MINUTE_MS + 8)):
        await driver.send({"user": user, "page": "/"}, key=user, timestamp_ms=at_ms)
    assert driver.dropped == {("views", "late"): 1, ("clicks", "skipped"): 1}


async def test_timers_of_all_tasks_run_and_what_they_send_is_handled() -> None:
    timers = Timers("r", lambda context, key, value, due_ms: context.send("due", value, key=key), by="clock")

    def set_timer(record: Record, context: TaskContext) -> None:
        timers.set(context, context.now_ms + 10_000, record.key, record.value)

    def note(record: Record, context: TaskContext) -> None:
        context.state.put(record.key, record.timestamp_ms)

    def on_assigned(context: TaskContext) -> None:
        if context.task.subtopology == 0:
            timers.start(context)

    processors = [Processor(set_timer, sources="in", state="waiting"), Processor(note, sources="due", state="noted")]
    driver = ApplicationDriver(processors, on_assigned=on_assigned, **SERDES)
    await driver.send("v", key="k")
    assert await driver.advance(9) == []
    assert [(each.topic, each.value) for each in await driver.advance(2)] == [("due", "v")]
    assert driver.state("noted").get("k") == 11_000


async def test_same_version_has_no_differences_and_another_one_has_those_of_each_key() -> None:
    records = [click("ann", "/", 1), click("bob", "/b", 2), click("ann", "/b", MINUTE_MS + 1), click("cy", "/", 3 * MINUTE_MS)]
    assert await differences(chain(), chain(), records, **SERDES) == []
    assert await differences(chain(), chain(count_twice), records, **SERDES) == [VersionDifference("views", "/b", [1, 1], [2, 1])]
    shorter = [Processor(by_page, sources="clicks", outputs="by-page")]
    assert {(each.topic, each.after) for each in await differences(chain(), shorter, records, **SERDES)} == {("views", None), ("pages", None)}


async def test_example_of_page_views_is_driven_whole() -> None:
    driver = ApplicationDriver(PROCESSORS, **OPTIONS)
    await driver.send({"country": "SE"}, key="ann", topic="users", timestamp_ms=1)
    (_, counted) = await driver.send({"page": "/"}, key="ann", topic="clicks", timestamp_ms=2)
    assert (counted.topic, counted.key, counted.value) == ("pv-counts", "SE", {"minute": 0, "views": 1})


async def test_failed_record_goes_where_the_policy_says() -> None:
    driver = ApplicationDriver(chain(), on_error=ErrorPolicy.dead_letter("dead"), **SERDES)
    (letter,) = await driver.send({"no": "page"}, key="ann")
    assert letter.topic == "dead"


async def test_what_is_wrong_is_said() -> None:
    circle = [Processor(lambda record, context: context.send("a", record.value), sources="a")]
    with pytest.raises(InputError, match="processors send to each other in a circle"):
        await ApplicationDriver(circle).send(b"x")
    with pytest.raises(InputError, match=r"nothing is no source of this application; there are: clicks, by-page"):
        await ApplicationDriver(chain(), **SERDES).send({}, topic="nothing")
    with pytest.raises(InputError, match=r"no processor has a state other; there are: pages"):
        ApplicationDriver(chain(), **SERDES).state("other")
    with pytest.raises(InputError, match=r"ApplicationDriver\.processors: there is none"):
        ApplicationDriver([])
