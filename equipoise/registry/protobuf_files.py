"""The messages of a Protobuf file as a registry has it: text, or its descriptor in base64. A record
names its message by its place in that file.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import attrs

_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|([\w.]+|[^\s\w])""", re.DOTALL)


@attrs.define
class DeclaredMessage:
    """A message, and those that are declared within it. `is_entry`: of a map, which no one wrote."""

    name: str
    within: list[DeclaredMessage] = attrs.Factory(list)
    is_entry: bool = False


def names_at(text: str, path: Sequence[int]) -> set[str]:
    """The full names that the message at `path` may have; none: the file has no such message. There
    are two where a message has a map and messages within: clients do not agree whether the entries
    of a map count.
    """
    package, outermost = _read(text)
    found = set()
    for counts_entries in (False, True):
        names, there = [package] if package else [], outermost
        for index in path:
            counted = [each for each in there if counts_entries or not each.is_entry]
            if index >= len(counted) or counted[index].is_entry:
                break
            names.append(counted[index].name)
            there = counted[index].within
        else:
            found.add(".".join(names))
    return found


def _read(text: str) -> tuple[str, list[DeclaredMessage]]:
    """The package and the outermost messages."""
    if re.fullmatch(r"[A-Za-z0-9+/]+=*", text):  # a file as text has spaces
        descriptors: Any = import_module("google.protobuf.descriptor_pb2")
        file = descriptors.FileDescriptorProto.FromString(b64decode(text))
        return file.package, list(map(_described, file.message_type))
    tokens = [match[1] for match in _TOKEN.finditer(text) if match[1]]
    package = next((tokens[at + 1] for at, token in enumerate(tokens[:-2]) if token == "package" and tokens[at + 2] == ";"), "")
    file_scope = DeclaredMessage("")
    _declared(iter([*tokens, "}"]), file_scope)
    return package, file_scope.within


def _described(descriptor: Any) -> DeclaredMessage:
    return DeclaredMessage(descriptor.name, list(map(_described, descriptor.nested_type)), descriptor.options.map_entry)


def _declared(tokens: Iterator[str], scope: DeclaredMessage) -> None:
    """Adds the messages that are declared before the end of this block."""
    statement: list[str] = []
    for token in tokens:
        if token == "}":
            return
        if token == ";":
            if statement[:2] == ["map", "<"]:
                scope.within.append(DeclaredMessage("", is_entry=True))
            statement = []
        elif token != "{":
            statement.append(token)
        else:
            inner = DeclaredMessage("")
            if statement[:1] == ["message"]:
                inner.name = statement[1]
                scope.within.append(inner)
            elif "group" in statement[:2] and "=" in statement:
                inner.name = statement[statement.index("group") + 1]
                scope.within.append(inner)
            elif statement[:1] == ["oneof"]:
                inner = scope  # a group within is a message of this one
            _declared(tokens, inner)
            statement = statement if "[" in statement else []  # options of a field may be in braces
