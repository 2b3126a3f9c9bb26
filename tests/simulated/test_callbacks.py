"""Every callback that an application gives to a member, with everything that it may raise: the task
fails, or the member ends within a bound and others take its tasks; `/health` and the leader say
the same; and SIGTERM works. A callback that is added later has to be added to the table here.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any

import pytest

import equipoise
from equipoise import Member, MemoryStore, Record, Source, TaskContext
from equipoise.member.http.server import MemberServer
from equipoise.member.options import MemberOptions
from tests.simulated.test_raised import Throwing, ThrowingWriter, assert_others_run_all, async_thrower, put_it, send_it, thrower
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

RAISED: list[BaseException] = [
    ValueError("v"),
    type("Odd", (BaseException,), {})("o"),
    SystemExit(7),
    KeyboardInterrupt(),
    asyncio.CancelledError("c"),
    ExceptionGroup("several", [ValueError("v"), KeyError("k")]),
    BaseExceptionGroup("several", [SystemExit(7), ValueError("v")]),
    GeneratorExit(),
]
ENDS_S = 30.0


class BadStore(MemoryStore):
    """A store of which one method raises, for keys and changes of the application."""

    def __init__(self, method: str, error: BaseException, *, lasting: bool = False) -> None:
        self.is_armed = False
        super().__init__()
        self._method, self._error = method, error
        self.is_armed = True

    def _check(self, method: str) -> None:
        if self.is_armed and method == self._method:
            raise self._error

    @property
    def offset(self) -> int:
        if self.is_armed and self._offset:
            self._check("offset")
        return super().offset

    def get(self, key: bytes) -> bytes | None:
        if not key.startswith(b"\0"):
            self._check("get")
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check("get_many")
        return super().get_many(keys)

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for each in super().items(start, end):
            if not each[0].startswith(b"\0"):
                self._check("items")
            yield each

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        if b"k" in changes:
            self._check("apply")
        super().apply(changes, offset=offset, bulk=bulk)

    def close(self) -> None:
        self._check("close")


def reading(record: Record, context: TaskContext) -> None:
    context.state.get(b"k")
    context.state.get_many([b"k"])
    list(context.state.items())
    context.state.put(b"k", record.value)


def stored(method: str) -> Callable[[BaseException], dict[str, Any]]:
    return lambda error: {"open_store": lambda folder: BadStore(method, error), "handler": reading}


def every(error: BaseException, make: Callable[[BaseException], Any] = thrower) -> dict[str, Any]:
    return {"on_assigned": lambda context: context.every(1.0, make(error))}


def raising(error: BaseException) -> Iterator[Any]:
    yield b"k", b"v"
    raise error


def many(error: BaseException) -> dict[str, Any]:
    return {"handler": lambda record, context: context.send_many("out", raising(error), partition=0)}


def headed(error: BaseException) -> dict[str, Any]:
    return {"handler": lambda record, context: context.send("out", b"v", headers=raising(error), partition=0)}


def got(error: BaseException) -> dict[str, Any]:
    return {"handler": lambda record, context: context.state.get_many(raising(error))}


def sent_with(name: str) -> Callable[[BaseException], dict[str, Any]]:
    def make(error: BaseException) -> dict[str, Any]:
        return {"handler": lambda record, context: context.send("out", b"v", key=b"k", partition=0, **{name: ThrowingWriter(error)})}

    return make


def owned(error: BaseException) -> dict[str, Any]:
    members: list[Member] = []

    async def ask(record: Record, context: TaskContext) -> None:
        await members[0].owner(b"k", partitioner=thrower(error))  # type: ignore[arg-type]  # it returns nothing

    return {"handler": ask, "then": members.append}


def asked_with(make: Callable[[Member, BaseException], Any]) -> Callable[[BaseException], dict[str, Any]]:
    """A handler that asks its own member for state, with a callback that raises."""

    def options(error: BaseException) -> dict[str, Any]:
        members: list[Member] = []

        async def ask(record: Record, context: TaskContext) -> None:
            await make(members[0], error)

        return {"handler": ask, "then": members.append}

    return options


class ThrowingView:
    """A table whose every part raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


CLOSED = stored("close")
"""Its error is logged at the end of the member: the changelog has what is in the store."""
TABLE: dict[str, list[Callable[[BaseException], dict[str, Any]]]] = {
    "Member.handler": [lambda error: {"handler": thrower(error)}, lambda error: {"handler": async_thrower(error)}],
    "Member.batch_handler": [
        lambda error: {"handler": None, "batch_handler": thrower(error)},
        lambda error: {"handler": None, "batch_handler": async_thrower(error)},
    ],
    "Member.on_assigned": [lambda error: {"on_assigned": thrower(error)}, lambda error: {"on_assigned": async_thrower(error)}],
    "Member.on_standby": [lambda error: {"on_standby": thrower(error)}, lambda error: {"on_standby": async_thrower(error)}],
    "Member.on_revoked": [lambda error: {"on_revoked": thrower(error)}, lambda error: {"on_revoked": async_thrower(error)}],
    "Member.on_asked": [lambda error: {"on_asked": thrower(error)}, lambda error: {"on_asked": async_thrower(error)}],
    "Member.prepare": [lambda error: {"prepare": thrower(error)}, lambda error: {"prepare": async_thrower(error)}],
    "Member.owner.partitioner": [owned],
    "Member.query.partitioner": [asked_with(lambda member, error: member.query(b"k", partitioner=thrower(error)))],  # type: ignore[arg-type]
    "Member.query.of": [asked_with(lambda member, error: member.query(b"k", of=ThrowingView(error)))],
    "Member.query_range.of": [asked_with(lambda member, error: member.query_range(of=ThrowingView(error)))],
    "MemberOptions.key_serde": [lambda error: {"key_serde": Throwing(error)}, lambda error: {"key_serde": ThrowingWriter(error), "handler": put_it}],
    "MemberOptions.value_serde": [
        lambda error: {"value_serde": Throwing(error)},
        lambda error: {"value_serde": ThrowingWriter(error), "handler": send_it},
    ],
    "MemberOptions.state_key_serde": [lambda error: {"state_key_serde": ThrowingWriter(error), "handler": put_it}],
    "MemberOptions.state_serde": [lambda error: {"state_serde": ThrowingWriter(error), "handler": put_it}],
    "MemberOptions.open_store": [
        lambda error: {"open_store": thrower(error)},
        *map(stored, ("offset", "get", "get_many", "items", "apply")),
        CLOSED,
    ],
    "Source.key_serde": [lambda error: {"sources": [Source("in", key_serde=Throwing(error))]}],
    "Source.value_serde": [lambda error: {"sources": [Source("in", value_serde=Throwing(error))]}],
    "TaskContext.every.callback": [every, lambda error: every(error, async_thrower)],
    "TaskContext.send.headers": [headed],
    "TaskContext.send.key_serde": [sent_with("key_serde")],
    "TaskContext.send.value_serde": [sent_with("value_serde")],
    "TaskContext.send_many.records": [many],
    "State.get_many.keys": [got],
}
"""Class, method unless it is the constructor, and parameter -> options of a member that has it."""
SAME = {"Processor.handler": "Member.handler", "Processor.batch_handler": "Member.batch_handler"}
"""What `Member` makes of its own arguments."""
NO_MEMBERS = {
    "TaskContext.key_serde",
    "TaskContext.value_serde",
    "State.keys",
    "State.values",
    "State.store",
    "GroupMachine.load",
    "GroupMachine.restore.load",
    "State.write_again.changes",
    "State.get_often.unpack",
    "State.put_often.pack",
    "State.raise_often.unpack",
    "State.raise_often.pack",
}
"""What the member gives to its own parts, and what belongs to a log."""


def _mentions(annotation: Any) -> bool:
    """Whether values of a type have code of the application."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, UnionType):
        return any(map(_mentions, typing.get_args(annotation)))
    kind = origin or annotation
    if kind in (Iterable, Iterator, AsyncIterator, Callable):  # of a tuple or a Mapping nothing is asked but items
        return True
    return getattr(kind, "_is_protocol", False) and kind.__module__.startswith("equipoise.")


def callbacks_of(names: Iterable[tuple[str, Any]]) -> set[str]:
    """Each parameter of a public class that takes code."""
    found = set()
    for name, public in names:
        if not inspect.isclass(public) or getattr(public, "_is_protocol", False):
            continue
        functions = {name: public.__init__} | {
            f"{name}.{each}": getattr(value, "__func__", value)
            for each, value in vars(public).items()
            if not each.startswith("_") and inspect.isfunction(getattr(value, "__func__", value))
        }
        for place, function in functions.items():
            module = vars(importlib.import_module(public.__module__))
            hints = typing.get_type_hints(function, {**_ALL, **module})
            given = {each: annotation for each, annotation in hints.items() if each != "return" and not each.startswith("_")}
            found |= {f"{place}.{each}" for each, annotation in given.items() if _mentions(annotation)}
    return found


PUBLIC: dict[str, Any] = {name: getattr(equipoise, name) for name in equipoise.__all__}
_ALL = dict(PUBLIC)
"""What the annotations of these name."""
for _module in ("equipoise.worker.settings", "equipoise.member.options"):
    _ALL |= {name: each for name, each in vars(importlib.import_module(_module)).items() if not name.startswith("_")}


def test_every_callback_of_the_public_names_is_in_the_table() -> None:
    assert callbacks_of(PUBLIC.items()) == TABLE.keys() | SAME | NO_MEMBERS


FORMS = [(name, number) for name, makes in TABLE.items() for number in range(len(makes))]
CASES = [
    pytest.param(name, number, error, id=f"{name}-{number}-{type(error).__name__}", marks=[] if place == form % len(RAISED) else [pytest.mark.slow])
    for form, (name, number) in enumerate(FORMS)
    for place, error in enumerate(RAISED)
]
"""Each form of a callback with one of the errors; the other pairs take turns."""


@pytest.mark.parametrize(("name", "number", "error"), CASES)
def test_callback_that_raises_fails_its_task_or_ends_the_member(group: NewGroup, name: str, number: int, error: BaseException) -> None:
    options = TABLE[name][number](error)
    then = options.pop("then", lambda member: None)
    group.start("m2", num_standbys=1)
    member = group.start("m1", num_standbys=1, **options)
    then(member)
    health = MemberServer("g", "m1", MemberOptions(), member._runtime, lambda: member._host)
    group.settle(8)
    for _ in range(2):
        for partition in range(TASKS):
            group.send(partition)
        group.settle(3)
    if member._host is not None and "m1" not in group.ended:
        member._host.work.call_on_asked(True)
    group.settle(ENDS_S)

    ((_, lead),) = group.worker.groups()
    assert ("m1" in lead.machine.state.members) == ("m1" not in group.ended)
    assert health.unhealthy().startswith("the member has ended") == ("m1" in group.ended and member._host is not None)
    parked = {} if "m1" in group.ended else member.failed_tasks
    assert lead.machine.state.parked.keys() == parked.keys()
    if "m1" not in group.ended:
        assert member._host is not None
        member._host.leave()
        group.settle(2 * ENDS_S)
    assert "m1" in group.ended
    is_exception = isinstance(error, Exception | asyncio.CancelledError)
    tries_again = name == "Member.prepare" and is_exception
    assert parked or tries_again or group.ended["m1"] is not None or TABLE[name][number] is CLOSED
    if not is_exception and name != "MemberOptions.open_store":
        assert not parked
    assert_others_run_all(group, "m1")
