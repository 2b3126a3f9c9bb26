"""Finds what a handler uses of the things that are declared outside of it, such as windows, so that
they are compared with the state of a task before its first record.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from equipoise.member.tasks.context import KeptError, TaskContext

MOST_LOOKED_AT = 2_000
"""Objects. A handler that names more is looked at in part."""
_LIBRARIES = sys.stdlib_module_names - {"__main__", "builtins", "types"}
MOST_IN_ONE = 100
"""Things of one container."""


class Declared(ABC):
    """Something that a handler uses with the state of its task."""

    @abstractmethod
    def place_in(self, context: TaskContext) -> tuple[str, str] | None:
        """Returns the changelog topic and the name of what it keeps there; None: the task has no
        such state.
        """

    @abstractmethod
    def check(self, context: TaskContext) -> None:
        """Raises KeptError when what is kept does not fit. Changes nothing."""


def misfit(handler: Any, context: TaskContext) -> KeptError | None:
    """Returns why a handler cannot go on with the state of its task; None: it can, as far as its
    code says. Of several things with one name it is enough that one fits: a handler may serve tasks
    with different states.
    """
    errors: dict[tuple[str, str], KeptError | None] = {}
    for each in used_by(handler):
        place = each.place_in(context)
        if place is None or errors.get(place, place) is None:
            continue
        try:
            each.check(context)
            errors[place] = None
        except KeptError as error:
            errors[place] = error
    return next(filter(None, errors.values()), None)


def used_by(function: Any) -> list[Declared]:
    """Returns what a function names, each thing once: in variables around it, attributes of what it
    names, and functions of the application that it names. Calls nothing. What a function makes or
    looks up itself is not found.
    """
    found: list[Declared] = []
    seen: dict[tuple[int, frozenset[str]], Any] = {}  # holds what it has seen, so that no id is given twice
    rest: list[tuple[Any, frozenset[str]]] = [(function, frozenset({"__call__"}))]
    while rest and len(seen) < MOST_LOOKED_AT:
        each, names = rest.pop()
        names = frozenset() if isinstance(each, (FunctionType, Declared)) else names
        if (id(each), names) in seen:
            continue
        seen[id(each), names] = each
        if isinstance(each, Declared):
            found.append(each)
        elif isinstance(each, FunctionType):
            if not _is_library(each.__module__):
                own = _names_in(each)
                rest += [(value, own) for value in _around(each, own)]
        elif isinstance(each, MethodType):
            rest += [(each.__func__, names), (each.__self__, _names_in(each.__func__))]
        elif isinstance(each, partial):
            rest += [(value, names) for value in (each.func, *each.args, *each.keywords.values())]
        elif isinstance(each, (dict, list, tuple, set, frozenset)):
            values = each.values() if isinstance(each, dict) else each
            rest += [(value, names) for value in islice(values, MOST_IN_ONE)]
        elif not _is_library(each.__name__ if isinstance(each, ModuleType) else type(each).__module__):
            rest += _attributes(each, names)
    return found


def _is_library(module: str | None) -> bool:
    top, _, rest = (module or "").partition(".")
    return top in _LIBRARIES or (top == "equipoise" and not rest.startswith("streams"))


def _names_in(function: Any) -> frozenset[str]:
    """The names that are in the code of a function, and of those inside."""
    codes, names = [getattr(function, "__code__", None)], set[str]()
    while codes:
        code = codes.pop()
        if isinstance(code, CodeType):
            names.update(code.co_names)
            codes += code.co_consts
    return frozenset(names)


def _around(function: FunctionType, names: frozenset[str]) -> Iterator[Any]:
    """The variables that a function sees and does not make."""
    yield from (function.__globals__[name] for name in names & function.__globals__.keys())
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has none yet
            continue


def _attributes(each: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yields what has one of these names in an object or its class, and the object for the names
    that its functions have.
    """
    own = getattr(each, "__dict__", {})
    yield from ((own[name], names) for name in names & own.keys())
    for kind in type(each).__mro__:
        for name in names & kind.__dict__.keys():
            value = kind.__dict__[name]
            if isinstance(value, MemberDescriptorType):
                yield getattr(each, name, None), names
                continue
            for field, wrapper in (("fget", property), ("func", cached_property), ("__func__", (staticmethod, classmethod))):
                value = getattr(value, field) if isinstance(value, wrapper) else value
            yield value, names
            if isinstance(value, FunctionType):
                yield each, _names_in(value)
