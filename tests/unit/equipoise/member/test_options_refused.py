"""Options that are misspelt, and classes where instances belong, are refused with the fix."""

from __future__ import annotations

import copy
import pickle
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from equipoise import JsonSerde, Member, MemberOptions, MemoryStore, Processor, Record, TaskContext
from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import TaskId
from equipoise.member.tasks.context import State
from equipoise.member.tasks.timers import IntervalTimers
from equipoise.testing import TaskDriver

SERDES = ["key_serde", "value_serde", "state_key_serde", "state_serde"]


MEMBER: Any = Member
PROCESSOR: Any = Processor
DRIVER: Any = TaskDriver
"""As a caller without a type checker knows them."""


def handle(record: Record, context: TaskContext) -> None: ...


@pytest.mark.parametrize("field", SERDES)
def test_class_of_a_serde_is_refused_with_the_instance_to_give(field: str) -> None:
    wrong: Any = {field: JsonSerde}
    for make in (lambda: MemberOptions(**wrong), lambda: Member("g", handle, sources="in", **wrong), lambda: TaskDriver(handle, **wrong)):
        with pytest.raises(FieldError, match=rf"{field}: JsonSerde is a class; give an instance of it: JsonSerde\(\)"):
            make()


@pytest.mark.parametrize("field", SERDES)
def test_what_is_no_serde_is_refused_with_what_it_lacks(field: str) -> None:
    wrong: Any = {field: "json"}
    with pytest.raises(FieldError, match=rf"{field}: 'json' is no serde: it has no serialize and no deserialize"):
        MemberOptions(**wrong)


@pytest.mark.parametrize("field", SERDES[:2])
def test_class_of_a_serde_of_one_record_is_refused(field: str) -> None:
    wrong: Any = {field: JsonSerde}
    context = TaskContext(TaskId(0, 0), 1, {"log": State(MemoryStore())})
    with pytest.raises(FieldError, match=rf"{field}: JsonSerde is a class"):
        context.send("out", b"v", key=b"k", **wrong)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MEMBER("g", handle, sources="in", guarante="exactly_once"), "Member: no such option 'guarante'; did you mean 'guarantee'?"),
        (lambda: MEMBER("g", handle, source="in"), "Member: no such option 'source'; did you mean 'sources'?"),
        (lambda: MEMBER("g", handle, sources="in", xyz=1), "Member: no such option 'xyz'; there are: adopts, advertised"),
        (lambda: PROCESSOR(handle, source="in"), "Processor: no such option 'source'; did you mean 'sources'?"),
        (lambda: PROCESSOR(handle, sources="in", out="x"), "Processor: no such option 'out'; did you mean 'outputs'?"),
        (lambda: DRIVER(handle, value_serd=JsonSerde()), "TaskDriver: no such option 'value_serd'; did you mean 'value_serde'"),
    ],
)
def test_unknown_option_is_refused_with_those_that_look_like_it(make: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        make()
    assert str(raised.value).startswith(said)


def test_processor_can_still_be_copied_and_pickled() -> None:
    made = Processor(handle, sources="in", outputs=("out",))
    assert copy.deepcopy(made) == copy.copy(made) == pickle.loads(pickle.dumps(made)) == made  # noqa: S301  # its own


async def yields(*_: Any) -> AsyncIterator[None]:
    yield


class Yields:
    def __call__(self, *_: Any) -> Iterator[None]:
        yield


CALLBACKS = ["handler", "batch_handler", "on_assigned", "on_standby", "on_revoked", "on_asked", "prepare", "open_store"]


@pytest.mark.parametrize("field", CALLBACKS)
def test_callback_that_would_do_nothing_is_refused(field: str) -> None:
    given = {} if field in ("handler", "batch_handler") else {"handler": handle}
    wrongs = {5: "5 cannot be called", yields: "yields has a yield", Yields(): "Yields has a yield", partial(yields, 1): "has a yield"}
    if field != "open_store":
        wrongs[Yields] = r"Yields is a class; give a function, or an instance of it: Yields\(\)"
    for wrong, said in wrongs.items():
        with pytest.raises(FieldError, match=f"{field}: .*{said}"):
            MEMBER("g", sources="in", **given, **{field: wrong})


async def test_function_that_returns_a_generator_is_an_error() -> None:
    """It looks like any other until it is called."""
    with pytest.raises(InputError, match="returns a generator, of which no line runs: write it without yield"):
        await DRIVER(lambda record, context: yields()).send(b"v", key=b"k")
    context = TaskContext(TaskId(0, 0), 1, {}, IntervalTimers(lambda: 0.0))
    with pytest.raises(FieldError, match="every: callback: yields has a yield"):
        context.every(1.0, yields)
